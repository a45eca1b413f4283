"""What others wrote is text, and who may see less sees less: hostile names, viewers, tenants."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, expect

from gateway.identities import new_token
from scheduler.core.stimuli import Input, LeaderStarted, TimePassed
from schemas.programs import Program
from schemas.requests import HoldJob
from tests.browser.conftest import apart
from tests.browser.test_accessible import serious
from tests.browser.window import Window
from tests.builders import node_born, request_of, submitted
from tests.gateway.test_sight import NAMES, PROGRAM, START_S, told, write_told
from tests.process.gateway_process import Process

MARKUP = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
TURNED = "a\u202egnp.exe\u2066\u200f"
LONG = "\N{PARTY POPPER}" * 1024  # 4 KiB
HOSTILE = (MARKUP, TURNED, LONG)
VIEWS = (
    "/", "/fleet", "/fleet?table=1", "/fleet?colour=tenant", "/fleet?node=n0", "/jobs?state=all",
    "/loans", "/decisions", "/what-if", "/tenants", "/health", "/audit", "/compare?entry=4&vs=7",
)  # fmt: skip


def _hostile() -> list[tuple[str, Input]]:
    """What no gateway takes, but who writes the log can write, and what anybody may write."""
    said: list[tuple[str, Input]] = [
        ("/schedulers/a", LeaderStarted("test", 1, "fifo", {})),
        ("/agents/a", node_born("n0")),
    ]
    for text in HOSTILE:
        program = Program(argv=["train", text], env={"KEY": text})
        names = {"job": text, "tenant": text, "model": text, "program": program}
        said.append(("/tenants/x", submitted("j", gpus_min=1, gpus_max=1).model_copy(update=names)))
    said.append(("/tenants/t", submitted("mild", gpus_min=1, gpus_max=1)))
    said.append(("/schedulers/a", TimePassed()))
    for number, text in enumerate(HOSTILE):
        asked = request_of(START_S, HoldJob(job="mild"), f"r{number}", reason=text[:1000])
        said.append(("/gateways/g", asked))
    return said


def test_what_strangers_wrote_is_text(browser: Browser, tmp_path: Path) -> None:
    log = tmp_path / "hostile.db"
    apart(lambda: asyncio.run(write_told(log, _hostile())))
    gateway = Process(log, tmp_path / "run")
    try:
        gateway.ready()
        window = Window(browser, gateway)
        page = window.page
        for path in (*VIEWS, "/jobs/mild", *(f"/decisions/{number}" for number in range(2, 10))):
            window.open(path)
            assert page.locator("main img[src=x], main script").count() == 0, path
            assert "taken" not in page.title(), path
            wide = "document.documentElement.scrollWidth <= innerWidth"
            assert page.evaluate(f"() => {wide}"), f"{path} is wider than the window"
            expect(page.get_by_text("This view failed")).to_have_count(0)
        window.open("/jobs?state=all")
        names = page.locator("[aria-label=Jobs] tbody bdi").all_inner_texts()
        assert MARKUP in names
        window.open("/audit")
        reasons = page.locator("[aria-label='What was asked for'] bdi")
        reasons.first.wait_for()  # its pages come after the view
        assert MARKUP in reasons.all_inner_texts()
        window.close()
    finally:
        gateway.kill()


class _Pair:
    """A gateway on the log of two tenants, and robots that may see less of it."""

    def __init__(self, folder: Path) -> None:
        log, config = folder / "two.db", folder / "tidegate.toml"
        apart(lambda: asyncio.run(write_told(log, told())))
        (folder / "secret").write_text("a secret of this test alone, " * 2)
        text = f'[gateway.auth]\nvisibility = "own"\nsecret_file = "{folder}/secret"\n'
        self.tokens: dict[str, str] = {}
        for name, role in (
            ("viewer", 'role = "viewer"'),
            ("acme", 'role = "tenant"\ntenant = "acme"'),
            ("boss", 'role = "operator"'),
        ):
            self.tokens[name], digest = new_token()
            text += (
                f'[[gateway.auth.robots]]\nname = "{name}"\n{role}\nsha256 = "{digest}"\n'
                "expires = 2099-01-01T00:00:00Z\n"
            )
        config.write_text(text)
        self.gateway = Process(log, folder / "run", "--config", str(config))
        self.gateway.token = self.tokens["boss"]
        self.gateway.ready()


@pytest.fixture(scope="module")
def pair(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Pair]:
    found = _Pair(tmp_path_factory.mktemp("pair"))
    yield found
    found.gateway.kill()


#: Verbs that views offer to those who may.
OFFERED = (
    "Hold", "Cancel", "Requeue", "Release", "Priority", "Size", "Cordon", "Uncordon", "Drain",
    "Freeze", "Recall", "Set a quota", "Set…",
)  # fmt: skip

#: A job's file that says in short all that can be said so.
SHORT = """
tenant: zeta
sizes: 1..3
command: train | tee out
deadline: 1h30m
environment: {N: 1, KEY: {secret: hub}}
workdir: /data
priority: 3
"""


def _offered(window: Window) -> list[str]:
    found = []
    for path in ("/jobs", "/jobs/acme-waits", "/fleet?node=n0", "/loans", "/tenants"):
        window.open(path)
        told = window.page.locator("main button").all_inner_texts()
        found += [text for text in told if text.startswith(OFFERED)]
    return found


def test_a_viewer_is_offered_no_verb(browser: Browser, pair: _Pair) -> None:
    boss = Window(browser, pair.gateway, pair.tokens["boss"])
    assert {"Hold", "Cancel"} <= set(_offered(boss))
    boss.close()
    viewer = Window(browser, pair.gateway, pair.tokens["viewer"])
    viewer.expected.append("403 (Forbidden)")  # of a job that is another's
    viewer.expected.append("404 (Not Found)")
    assert _offered(viewer) == []
    assert viewer.open("/jobs").page.get_by_role("link", name="Submit a job").count() == 0
    expect(viewer.open("/submit").page.locator("main")).to_contain_text("submit nothing")
    viewer.close()


def test_a_tenant_submits_for_itself_alone(browser: Browser, pair: _Pair) -> None:
    window = Window(browser, pair.gateway, pair.tokens["acme"])
    window.expected.append("422")  # what the gateway says of a field
    page = window.open("/jobs").page
    page.get_by_role("link", name="Submit a job").click()
    expect(page.locator(".submit-form")).to_contain_text("acme")
    expect(page.get_by_label("tenant")).to_have_count(0)
    file = page.get_by_label("the file of a job")
    wrong = page.locator(".submit-form .wrong")
    for text, said in (
        ("command: [a]\ncommand: [b]", "line 2, column 1: 'command' is said twice"),
        ('{"command": ["train"], "workers": "per_gpu"}', "did you mean program.workers?"),
        ('{"command": ["train"], "memory_mib": -4}', "memory_mib: "),
        # What a browser alone would read as another job.
        ('{"command": ["train"], "model": "a", "model": "b"}', "model: occurs twice"),
        (json.dumps({"model": "m" * 500_000}), "This is longer than the 500,000 letters"),
        ('{"command": ["train"], "tenant": "zeta", "deadline": "soon"}', "no length of time"),
    ):
        file.fill(text)
        page.get_by_role("button", name="Submit…").click()
        expect(wrong).to_contain_text(said)
        expect(file).to_be_focused()
    assert serious(window) == []
    file.fill("")
    large = {"name": "job.json", "mimeType": "application/json", "buffer": b"{}" + b" " * 500_000}
    page.get_by_label("from a file").set_input_files(cast("Any", large))
    expect(wrong).to_contain_text("This is longer than")
    expect(file).to_have_value("")
    file.fill(SHORT)
    posted: list[Any] = []
    page.on("request", lambda one: posted.append(one) if one.method == "POST" else None)
    page.get_by_role("button", name="Submit…").click()
    expect(page.locator("dialog.confirm")).to_contain_text("1 to 3 GPUs")
    file_sent, tried = posted  # the dialog does not try it once more
    assert file_sent.url.endswith("/api/v1/job-file")
    body: Any = tried.post_data_json
    now_s = window.api("/overview")["now_s"]
    assert body["dry_run"] is True
    name = body["args"]["spec"].pop("job")
    assert name.startswith("job-")
    assert body["args"]["spec"] == {
        "tenant": "acme", "model": "unnamed", "samples_per_step": 1, "priority": 3,
        "gpus_min": 1, "gpus_max": 3, "deadline_s": now_s + 5400,
        "rates": [{"gpus": n, "samples_per_s": n} for n in (1, 2, 3)],
        "program": {"argv": ["sh", "-c", "train | tee out"], "env": {"N": "1"},
                    "secrets": {"KEY": "hub"}, "workdir": "/data"},
    }  # fmt: skip
    page.get_by_role("button", name="Leave it").click()
    window.close()


def test_a_tenant_reads_no_other_tenants_names(browser: Browser, pair: _Pair) -> None:
    boss = Window(browser, pair.gateway, pair.tokens["boss"])
    assert "zeta-secret-run" in boss.open("/jobs").page.content()
    boss.close()
    window = Window(browser, pair.gateway, pair.tokens["acme"])
    window.expected.append("403 (Forbidden)")  # whole entries, and branches, are about everybody
    window.expected.append("404 (Not Found)")
    heard: list[str] = []
    window.page.on("response", lambda one: heard.append(one.url))
    for path in (*VIEWS, "/jobs/acme-waits", "/decisions/3", "/dead-letters", "/what-if"):
        page = window.open(path).page
        shown = page.content() + str(page.locator("body").text_content())
        for secret in (*NAMES, *PROGRAM):
            assert secret not in shown, f"{path} shows {secret}"
    assert "acme-waits" in window.open("/jobs").page.content()
    assert any("/api/v1/jobs" in url for url in heard)
    window.close()
