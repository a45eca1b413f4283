"""`tidegate serve` as a process: how it begins, is found, is asked, killed and ended."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from console.main import main
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.process.gateway_process import Process, gateway

__all__ = ["gateway"]


def test_its_answers_are_waited_for_as_long_as_anything(gateway: Process) -> None:
    """On a machine that others use, more than the five seconds that httpx waits by itself."""
    with gateway.client() as client:
        assert client.timeout == httpx.Timeout(PATIENCE_S)


def test_a_browser_and_a_program_come_in(gateway: Process) -> None:
    assert gateway.address == f"{gateway.url}/?token={gateway.token}"
    with httpx.Client(timeout=PATIENCE_S) as browser:
        api = f"{gateway.url}/api/v1/overview"
        assert browser.get(api).status_code == 401
        assert browser.get(api, headers={"Host": "evil.example"}).status_code == 421
        first = browser.get(gateway.address)
        assert (first.status_code, first.headers["location"]) == (303, "/")
        assert browser.get(api, params={"entry": 100}).json()["entry"] == 100
        with browser.stream("GET", f"{gateway.url}/api/v1/stream") as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            lines = events.iter_lines()
            assert next(line for line in lines if line.startswith("event")) == "event: head"
            data = json.loads(next(lines).removeprefix("data: "))
            assert data["entry"] == browser.get(api).json()["entry"]
    with gateway.client() as program:
        assert program.get("/me").json()["role"] == "admin"


def test_local_programs_find_it_while_it_is_there(gateway: Process, log: Path) -> None:
    (found,) = gateway.runtime.glob("gateway-*.json")
    said = json.loads(found.read_text())
    assert (said["url"], said["token"]) == (gateway.url, gateway.token)
    assert said["log"] == str(log)
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert stat.S_IMODE(gateway.runtime.stat().st_mode) == 0o700
    assert gateway.end() == (0, "")
    assert not found.exists()


def test_an_interrupt_ends_it_though_somebody_follows(gateway: Process) -> None:
    with gateway.client() as client, client.stream("GET", "/stream") as events:
        next(events.iter_lines())
        begun_s = time.monotonic()
        assert gateway.end(signal.SIGTERM)[0] == 0
        assert time.monotonic() - begun_s < 30


def test_it_ends_quietly_though_a_body_is_still_coming(gateway: Process) -> None:
    head = (
        f"POST /api/v1/requests HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n"
        f"Authorization: Bearer {gateway.token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 999\r\n\r\n{"
    )
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(head.encode())
        with gateway.client() as client:
            for _ in range(3):  # it reads the body by then: each is answered after what came before
                assert client.get("/health").status_code == 200
        assert gateway.end(signal.SIGTERM) == (0, "")
        assert b" 503 " in connection.recv(4096).splitlines()[0]


def test_a_port_in_use_and_an_open_address_are_refused(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", str(log), "--no-browser", "--port", port]) == 2
    said = capsys.readouterr().err
    assert f"--port: {port} is in use" in said
    assert main(["serve", str(log), "--no-browser", "--host", "0.0.0.0"]) == 2
    said = capsys.readouterr().err
    assert "gateway: host: 0.0.0.0 can be reached by others, so these must be given" in said
    assert "cert_file and key_file (TLS), public_url, auth.issuer or auth.robots" in said
    assert main(["serve", str(log.with_name("none.db")), "--no-browser"]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [("no log", "is not a Tidegate log"), ("", "is empty, not a Tidegate log")],
)
def test_what_is_no_log_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, says: str
) -> None:
    path = tmp_path / "run.db"
    path.write_text(content)
    with socket.socket() as taken:  # a gateway that tries to serve it ends all the same
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", str(path), "--no-browser", "--port", port]) == 2
    assert says in capsys.readouterr().err


def test_without_its_extra_it_says_which(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "gateway"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(log), "--no-browser"]) == 2
    said = capsys.readouterr().err
    assert said == "uvicorn is not installed; pip install 'tidegate[gateway]' has all it needs.\n"


def test_killed_while_it_builds_its_index_it_begins_again(log: Path, tmp_path: Path) -> None:
    index = log.with_name("run.db.index.db")
    expected = None
    for pause_s in (0.0, 0.1, 0.4, 0.8):
        killed = Process(log, tmp_path / "run")
        deadline_s = time.monotonic() + PATIENCE_S
        while not index.exists() and time.monotonic() < deadline_s:
            time.sleep(0.005)
        time.sleep(pause_s)
        assert killed.end(signal.SIGKILL)[0] == -signal.SIGKILL
        again = Process(log, tmp_path / "run")
        again.ready()
        with again.client() as client:
            answers = [client.get("/decisions", params={"rule": "market.price"}).json()]
            answers += [client.get("/overview", params={"entry": n}).json() for n in (0, 300, 700)]
            health = client.get("/health").json()
        assert health["cells"][0]["index"]["notice"] is None
        expected = expected or answers
        assert answers == expected
        assert again.end()[0] == 0
        if pause_s < 0.4:  # the next is killed at the beginning of its work, too
            for path in log.parent.glob("run.db.index.db*"):
                path.unlink()


def test_a_demo_is_served_beside_its_log(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "day.db"
    command = ["demo", "--hours", "0.2", "--seconds", "20", "--no-live", "--serve"]
    demo = subprocess.Popen(
        [sys.executable, "-m", "console.main", *command, "--port", str(port), "--log", str(log)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "200"},
    )  # fmt: skip
    assert demo.stderr is not None
    said = demo.stderr.readline()
    assert said.startswith(f"Served at http://127.0.0.1:{port}/?token=")
    token = said.strip().partition("token=")[2]
    url = f"http://127.0.0.1:{port}/api/v1/overview"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        seen: set[int] = set()
        deadline_s = time.monotonic() + PATIENCE_S
        while len(seen) < 3:  # it is followed while it is written
            assert time.monotonic() < deadline_s
            answer = httpx.get(url, headers=headers, timeout=PATIENCE_S)
            if answer.status_code == 200 and answer.json()["entry"] is not None:
                seen.add(answer.json()["entry"])
            time.sleep(0.3)
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=PATIENCE_S)
    with pytest.raises(httpx.TransportError):
        httpx.get(url)
