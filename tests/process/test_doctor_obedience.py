"""What the doctor passes on of an agent that runs: whether it is ready, and what it refused."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.clock import SystemClock
from services.doctor import mqtt, obedience
from services.doctor.finding import Finding
from services.http import HttpServer, as_json, as_metrics
from services.install import status as statuses
from services.install.layout import Layout
from services.install.status import ask, ask_refused
from services.metrics import Page, Sample
from tests.process.ward import Ward, ward

__all__ = ["ward"]  # the fixture
REFUSES = "it refuses all commands, the last 7, since no key that it trusts has signed them"


@pytest.fixture
def answering(ward: Ward) -> Iterator[Ward]:
    """An agent's page of metrics, of one that refused commands, and of its probe."""
    refused = [
        Sample("tidegate_commands_refused_total", count, (why,))
        for why, count in (("unsigned", 0), ("unknown_key", 7), ("expired", 2))
    ]
    metrics = Page("edge-agent", lambda: refused)
    server = HttpServer(
        "127.0.0.1",
        0,
        {
            "/metrics": lambda: as_metrics(metrics.text()),
            "/readyz": lambda: as_json(False, {"name": "edge-17", "reasons": [REFUSES]}),
        },
    )
    ward.settings |= {"http.host": "127.0.0.1", "http.port": server.port}
    yield ward
    server.close()


def test_what_the_agent_refused_is_read_from_its_own_pages(answering: Ward) -> None:
    config = answering.context(clock=SystemClock()).config
    refused, readiness = ask_refused(config), ask(config)
    assert refused == {"unsigned": 0, "unknown_key": 7, "expired": 2}
    found = answering.only(obedience.check, readiness=readiness, refused=refused)
    assert found.verdict == "problem"
    assert found.found == f"the agent runs, and is not ready: {REFUSES}"
    assert found.fix.startswith("compare agent.trusted_keys with the schedulers'")


def test_some_commands_that_no_key_has_signed_are_worth_a_word(ward: Ward) -> None:
    ready = {"name": "edge-17", "reasons": []}
    found = ward.only(obedience.check, readiness=ready, refused={"forged": 1, "expired": 3})
    assert found.verdict == "warning"
    assert "has refused 1 command that no key it trusts has signed (forged 1)" in found.found
    well = ward.only(obedience.check, readiness=ready, refused={"forged": 0, "expired": 3})
    assert well.verdict == "ok"


def test_an_agent_that_is_not_ready_for_another_reason(ward: Ward) -> None:
    away = "no connection to the MQTT broker at b:1883: it refuses the login"
    newer = "a newer start of this agent is running"
    said = {"name": "edge-17", "reasons": [away, newer]}
    found = ward.only(obedience.check, readiness=said)
    assert (found.verdict, newer in found.found) == ("problem", True), "the bus says the other"
    assert ward.says(obedience.check) == [], "none runs"


def test_an_agent_that_runs_and_does_not_answer_is_a_problem(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that hangs, or was stopped (SIGSTOP): all would be well."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert ward.says(obedience.check, is_running=True) == [], "it has no probe"
    ward.settings["http.port"] = port
    found = ward.only(obedience.check, is_running=True)
    assert found.verdict == "problem"
    assert f"nothing of it answers at http://127.0.0.1:{port}" in found.found
    status = statuses.Status(tmp_path / "own.toml")
    monkeypatch.setattr(statuses, "held", lambda _: (True, 7))
    statuses._look_at_agent(status, ward.context(clock=SystemClock()).config, Layout())
    (problem,) = status.problems
    assert f"it runs, and nothing of it answers at http://127.0.0.1:{port}" in problem


def test_an_agent_without_a_login_that_has_no_connection_is_a_problem(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is cut off by a second login, but its own connection is what counts."""
    away = "no connection to the MQTT broker at b:1883: it hung up"
    let_in = Finding("bus", "ok", "edge-17 may speak and listen, and a bridge hears it")

    async def well(*_: object) -> Finding:
        return let_in

    monkeypatch.setattr(mqtt, "_let_in", well)
    with socket.create_server(("127.0.0.1", 0)) as broker:
        ward.settings["mqtt.url"] = f"mqtt://127.0.0.1:{broker.getsockname()[1]}"
        said = {"name": "edge-17", "reasons": []}
        assert ward.says(mqtt.check, is_running=True, readiness=said)[-1] == let_in
        said = {"name": "edge-17", "reasons": [away]}
        found = ward.says(mqtt.check, is_running=True, readiness=said)[-1]
    assert (found.verdict, found.found) == ("problem", f"the agent that runs says: {away}")
