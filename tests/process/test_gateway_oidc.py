"""A gateway and a real provider of identities: npm's oidc-provider, as a process beside it."""

import base64
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from console.main import main
from tests.composed import lacks
from tests.console.conftest import Run
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tidegate_client import login

SOURCE = Path(__file__).with_name("oidc")


@pytest.fixture(scope="module")
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            lacks(program, f"{program} runs the provider of identities")
    folder = tmp_path_factory.mktemp("oidc")
    for file in SOURCE.iterdir():
        shutil.copyfile(file, folder / file.name)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Pair:
    """A gateway, and the provider that it trusts."""

    def __init__(self, installed: Path, folder: Path) -> None:
        ports = free_port(), free_port()
        self.issuer, self.url = (f"http://127.0.0.1:{port}" for port in ports)
        self.provider = subprocess.Popen(
            ["node", "provider.mjs", str(ports[0]), f"{self.url}/callback", "300"],
            cwd=installed, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._line() == "ready"
        log = folder / "run.db"
        command = ["demo", "--hours", "0.1", "--seconds", "0", "--no-live", "--log", str(log)]
        assert main([*command, "--json", str(folder / "demo.json")]) == 0
        (folder / "client").write_text("the-client-secret\n")
        (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
        (folder / "tidegate.toml").write_text(
            f'[gateway]\nport = {ports[1]}\npublic_url = "{self.url}"\n'
            f'[gateway.auth]\nissuer = "{self.issuer}"\nclient_id = "tidegate"\n'
            f'client_secret_file = "{folder / "client"}"\nsecret_file = "{folder / "secret"}"\n'
            'scopes = ["openid"]\nterminal_client_id = "tidegate-terminal"\n'
            '[[gateway.auth.bindings]]\ngroup = "acme-team"\nrole = "tenant"\ntenant = "acme"\n'
            '[[gateway.auth.bindings]]\ngroup = "operators"\nrole = "operator"\n'
        )
        self.gateway = subprocess.Popen(
            [sys.executable, "-m", "console.main", "serve", str(log), "--no-browser",
             "--config", str(folder / "tidegate.toml")],
            stdout=subprocess.PIPE, text=True, env=os.environ | {"XDG_RUNTIME_DIR": str(folder)},
        )  # fmt: skip
        assert self.gateway.stdout is not None
        assert self.gateway.stdout.readline().strip() == self.url
        deadline_s = time.monotonic() + PATIENCE_S
        while self.ask("none") != 401:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    def _line(self) -> str:
        assert self.provider.stdout is not None
        for line in self.provider.stdout:  # it gives advice, too
            if line.startswith("> "):
                return line.removeprefix("> ").strip()
        raise AssertionError("the provider has ended")

    def tell(self, line: str) -> str:
        """Give the provider a command; give its answer."""
        assert self.provider.stdin is not None
        self.provider.stdin.write(line + "\n")
        self.provider.stdin.flush()
        return self._line()

    def token(self, **other: Any) -> str:
        """Have the provider sign a token."""
        now_s = int(time.time())
        claims = {"iss": self.issuer, "aud": "tidegate", "sub": "anna", "groups": ["acme-team"],
                  "iat": now_s, "exp": now_s + 300} | other  # fmt: skip
        return self.tell("sign " + json.dumps(claims))

    def ask(self, token: str) -> int:
        """Ask who one is; give the status."""
        try:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.get(
                f"{self.url}/api/v1/me", headers=headers, timeout=PATIENCE_S
            ).status_code
        except httpx.TransportError:
            return 0

    def end(self) -> None:
        for process in (self.gateway, self.provider):
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def pair(_installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    found = Pair(_installed, tmp_path_factory.mktemp("gateway"))
    yield found
    found.end()


def sign_in(pair: Pair, browser: httpx.Client, name: str) -> httpx.Response:
    """Go from /login over the provider's pages back to the gateway, as a browser does."""
    return browse(pair, browser, f"{pair.url}/login", name)


def browse(pair: Pair, browser: httpx.Client, url: str, name: str) -> httpx.Response:
    """Go over the provider's pages, filling them in as somebody, until they lead elsewhere."""
    answer = browser.get(url)
    for _ in range(12):
        if answer.is_redirect:
            answer = browser.get(answer.next_request.url)  # type: ignore[union-attr]
            continue
        form = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
        if answer.url.port != httpx.URL(pair.issuer).port or form is None:
            return answer
        hidden = re.findall(r'name="(\w+)" value="([^"]*)"', answer.text)
        fields = {"prompt": "login", "login": name, "password": "any", **dict(hidden)}
        if 'value="consent"' in answer.text:
            fields = {"prompt": "consent"}
        answer = browser.post(answer.url.join(form[1]), data=fields)
    raise AssertionError(answer.text)


def test_people_sign_in_and_may_what_their_groups_may(pair: Pair) -> None:
    for name, role, tenant in (("anna", "tenant", "acme"), ("olga", "operator", None)):
        with httpx.Client(timeout=PATIENCE_S) as browser:
            assert sign_in(pair, browser, name).status_code == 200
            me = browser.get(f"{pair.url}/api/v1/me").json()
            assert (me["name"], me["role"], me["tenant"], me["via"]) == (
                name, role, tenant, "cookie")  # fmt: skip
            assert browser.get(f"{pair.url}/api/v1/overview").status_code == 200
    with httpx.Client(timeout=PATIENCE_S) as browser:
        answer = sign_in(pair, browser, "nora")
        assert answer.status_code == 403
        assert "you are nora, but nothing says what you may do here" in answer.json()["detail"]
        assert browser.get(f"{pair.url}/api/v1/me").status_code == 401


def test_programs_bring_the_providers_tokens(pair: Pair) -> None:
    now_s = int(time.time())
    good = pair.token()
    assert pair.ask(good) == 200
    assert pair.ask(pair.token(groups=[])) == 403
    for wrong in (
        pair.token(exp=now_s - 60),
        pair.token(iss="http://127.0.0.1:1"),
        pair.token(aud="another"),
        pair.token(nbf=now_s + 600),
        _tampered(good),
        _unsigned(good),
    ):
        assert pair.ask(wrong) == 401, wrong


def _tampered(token: str) -> str:
    head, body, mark = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    other = json.dumps(claims | {"groups": ["operators"]}).encode()
    return f"{head}.{base64.urlsafe_b64encode(other).decode().rstrip('=')}.{mark}"


def _unsigned(token: str) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


def test_the_providers_key_changes(pair: Pair) -> None:
    old = pair.token()
    assert pair.ask(old) == 200
    assert pair.tell("rotate") == "rotated"
    new = pair.token()
    deadline_s = time.monotonic() + PATIENCE_S
    while pair.ask(new) != 200:  # an unknown key is asked for at most every ten seconds
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    assert pair.ask(old) == 401


@pytest.fixture
def terminal(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """A command line whose context is this gateway, and whose browser signs in as anna."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run = Run(capsys)
    run.does("context", "add", "prod", pair.url)

    def opened(url: str) -> bool:
        thread = threading.Thread(target=as_anna, args=(pair, url), daemon=True)
        thread.start()
        return True

    monkeypatch.setattr("webbrowser.open", opened)
    return run


def as_anna(pair: Pair, url: str) -> None:
    with httpx.Client(timeout=PATIENCE_S) as browser:
        browse(pair, browser, url, "anna")


def test_people_sign_in_from_a_terminal(pair: Pair, terminal: Run, tmp_path: Path) -> None:
    strange = terminal.refuses("jobs")
    assert "Sign in by `tidegate context login prod`, or put a token that is in force" in strange
    said = terminal.does("context", "login").out
    assert re.match(
        r"prod: you are anna, tenant of acme, until \d{4}-\d\d-\d\d \d\d:\d\d UTC\.", said
    )
    file = tmp_path / "tidegate" / "tokens" / "prod"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert terminal.tells("context", "list")["contexts"][0]["token_file"] == str(file)
    terminal.does("jobs")
    file.write_text(pair.token(exp=int(time.time()) - 60))
    said = terminal.refuses("jobs")
    assert "the token has expired" in said
    assert "`tidegate context login prod`" in said
    terminal.does("context", "login", "prod")  # over the old one
    terminal.does("jobs")


def test_people_sign_in_by_a_code_that_they_type_in_elsewhere(
    pair: Pair, terminal: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def elsewhere(seconds: float) -> None:
        """Once it has been asked in vain, somebody types the code in."""
        waits.append(seconds)
        if len(waits) == 2:
            (address,) = addresses
            as_anna(pair, address)

    addresses: list[str] = []
    plain = login.by_device

    def patient(provider: Any, http: Any, show: Any) -> login.Token:
        def shown(address: str, code: str) -> None:
            addresses.append(address)
            show(address, code)

        return plain(provider, http, shown, elsewhere)

    monkeypatch.setattr(login, "by_device", patient)
    ran = terminal.does("context", "login", "--device")
    assert "type in: " in ran.err
    assert "you are anna, tenant of acme" in ran.out
    assert len(waits) == 2


def test_the_lock_file_names_one_registry() -> None:
    text = (SOURCE / "package-lock.json").read_text()
    assert set(re.findall(r"https?://([^/\"]+)", text)) <= {"registry.npmjs.org"}
