"""What others wrote is text, and who may see less sees less: hostile names, viewers, tenants."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from gateway.identities import new_token
from scheduler.core.stimuli import Input, LeaderStarted, TimePassed
from schemas.programs import Program
from schemas.requests import HoldJob
from tests.browser.conftest import apart
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
        reasons = page.locator("[aria-label='What was asked for'] bdi").all_inner_texts()
        assert MARKUP in reasons
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
    viewer.close()


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
