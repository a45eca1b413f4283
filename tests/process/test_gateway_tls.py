"""A gateway that others reach: TLS with a certificate, its name, robots that come and go."""

import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from bus.sqlite_file import create
from console.main import main
from tests.certificates import Authority
from tests.patience import PATIENCE_S
from tests.ports import free_port

NAME = "tidegate.example.org"


def robot(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Make a robot's token as an admin does; give it and its table."""
    assert main(["gateway", "token", *arguments]) == 0
    said = capsys.readouterr()
    token = said.err.strip().rpartition(" ")[2]
    assert token not in said.out
    return token, said.out


def test_over_tls_it_is_asked_by_its_name_and_robots_come_and_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.db"
    command = ["demo", "--hours", "0.1", "--seconds", "0", "--no-live", "--log", str(log)]
    assert main([*command, "--json", str(tmp_path / "demo.json")]) == 0
    capsys.readouterr()
    authority = Authority(tmp_path / "certs")
    files = authority.sign("gateway", names=(NAME,), server=True)
    assert files.key is not None
    files.key.chmod(0o644)
    token, table = robot(capsys, "ci", "--role", "tenant", "--tenant", "acme", "--expires", "12h")
    admin, other = robot(capsys, "boss", "--role", "admin")
    port, config = free_port(), tmp_path / "tidegate.toml"
    section = (
        f'[gateway]\nhost = "0.0.0.0"\nport = {port}\npublic_url = "https://{NAME}:{port}"\n'
        f'cert_file = "{files.cert}"\nkey_file = "{files.key}"\n'
    )
    config.write_text(section + table + other)
    process = subprocess.Popen(
        [sys.executable, "-m", "console.main", "serve", str(log), "--no-browser",
         "--config", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == f"https://{NAME}:{port}"
        assert not list(tmp_path.glob("tidegate/gateway-*.json")), "no token lies about"
        trusting = ssl.create_default_context(cafile=str(authority.ca))

        def ask(
            given: str, host: str = f"{NAME}:{port}", path: str = "/api/v1/me"
        ) -> httpx.Response:
            with httpx.Client(verify=trusting, timeout=PATIENCE_S) as client:
                return client.get(
                    f"https://127.0.0.1:{port}{path}",
                    headers={"Host": host, "Authorization": f"Bearer {given}"},
                    extensions={"sni_hostname": NAME},
                )

        me = ask(token).json()
        assert (me["name"], me["role"], me["tenant"]) == ("robot:ci", "tenant", "acme")
        assert ask(admin).json()["role"] == "admin"
        for host in ("evil.example", f"127.0.0.1:{port}", f"localhost:{port}"):
            assert ask(token, host).status_code == 421
            assert ask(token, host, "/login").status_code == 421
        assert ask("nobody").status_code == 401
        assert ask(token, path="/login").status_code == 404
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
            httpx.get(f"https://127.0.0.1:{port}/")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/")

        config.write_text(section + table + "revoked = true\n" + other)
        deadline_s = time.monotonic() + PATIENCE_S
        while ask(token).status_code != 401:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        assert ask(admin).status_code == 200
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert f"gateway.key_file: every user of this machine can read {files.key}" in said
    for secret in (token, admin):
        assert secret not in said


def test_what_keeps_it_from_starting_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, config = tmp_path / "run.db", tmp_path / "tidegate.toml"
    create(log)
    files = Authority(tmp_path / "certs").sign("gateway", names=(NAME,), server=True)
    other = Authority(tmp_path / "other").sign("gateway", names=(NAME,), server=True)
    start = ["serve", str(log), "--no-browser", "--port", "0", "--config", str(config)]
    tls = f'cert_file = "{files.cert}"\nkey_file = "{files.key}"\n'
    reached = f'[gateway]\nhost = "0.0.0.0"\npublic_url = "https://{NAME}"\n'
    oidc = (
        '[gateway.auth]\nissuer = "https://id.example.org"\nclient_id = "tidegate"\n'
        f'secret_file = "{tmp_path / "secret"}"\n'
    )
    for text, says in (
        (reached, "must be given in [gateway] first: cert_file and key_file (TLS), auth.issuer"),
        (reached + tls, "must be given in [gateway] first: auth.issuer or auth.robots"),
        (reached + tls + oidc, "secret: No such file"),
        (reached + tls.replace(str(files.key), str(other.key)) + oidc, "belong together"),
    ):
        config.write_text(text)
        assert main(start) == 2
        assert says in capsys.readouterr().err
    (tmp_path / "secret").write_text("short")
    assert main([*start[:-1], _written(config, reached + tls + oidc)]) == 2
    assert "has 5 bytes, and needs 32" in capsys.readouterr().err
    assert main(["gateway", "token", "ci", "--role", "tenant"]) == 2
    assert "add --tenant" in capsys.readouterr().err
    assert main(["gateway", "token", "ci", "--expires", "soon"]) == 2
    assert "write 12h or 90d" in capsys.readouterr().err


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
