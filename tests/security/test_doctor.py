"""`tidegate doctor` at the real, secured broker: each thing that can be wrong, and what to do."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from console.main import main
from tests.brokers import need_brokers
from tests.certificates import Authority
from tests.mosquitto import Mosquitto
from tests.patience import wait_until
from tests.security.secure_broker import ROOT, SecureBroker, certs, sign

pytestmark = pytest.mark.broker

Found = dict[str, list[dict[str, Any]]]


@dataclass
class Ward:
    """An edge server whose everything is right until a test changes it."""

    folder: Path
    broker: SecureBroker

    def settings(self) -> dict[str, object]:
        certs = self.broker.certs
        return {
            "mqtt.url": f"mqtts://localhost:{self.broker.port}",
            "mqtt.ca_file": certs / "ca.pem",
            "mqtt.cert_file": certs / "edge-17.pem",
            "mqtt.key_file": certs / "edge-17.key",
            "agent.name": "edge-17",
            "agent.state_file": self.folder / "agent.db",
            "agent.gpus": 1,
            "agent.gpu_type": "cpu",
            "agent.runs": "processes",
            "agent.owner": "none",
            "agent.workers.isolation": "none",
            "agent.workers.folder": self.folder,
            "agent.workers.checkpoints": f"file://{self.folder}",
        }

    def words(self, verb: str, **other: object) -> list[str]:
        changed = {key.replace("__", "."): value for key, value in other.items()}
        return [verb, *(f"--set={k}={v}" for k, v in {**self.settings(), **changed}.items())]

    def doctor(self, **other: object) -> tuple[int, Found]:
        answer = self.folder / "answer.json"
        code = main([*self.words("doctor", **other), "--json", str(answer)])
        found: Found = {}
        for one in json.loads(answer.read_text())["findings"]:
            found.setdefault(one["check"], []).append(one)
        return code, found

    def problem(self, check: str = "bus", **other: object) -> dict[str, Any]:
        """Expect one problem of this check; its exit code, and that it says what to do."""
        code, found = self.doctor(**other)
        assert code == 1, found
        (one,) = [one for one in found[check] if one["verdict"] == "problem"]
        assert one["fix"]
        return one


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    need_brokers()
    with SecureBroker.running(tmp_path_factory.mktemp("broker")) as running:
        assert certs(running.certs, "device", "edge-17").returncode == 0
        yield running


@pytest.fixture
def ward(secured: SecureBroker, tmp_path: Path) -> Iterator[Ward]:
    yield Ward(tmp_path, secured)
    secured.close_clients()


def test_where_all_is_well_it_says_so(ward: Ward) -> None:
    ward.broker.bridge().subscribe("$share/bridge/tidegate/v1/+/up/+")
    code, found = ward.doctor()
    assert code == 0
    assert [one["verdict"] for one in found["bus"]] == ["ok", "ok"], found["bus"]
    assert found["bus"][1]["found"] == "edge-17 may speak and listen, and a bridge hears it"
    for check in ("certificates", "gpu", "store", "permissions"):
        assert [one["verdict"] for one in found[check]] == ["ok"], found[check]


def test_the_look_leaves_the_agents_session_as_it_was(ward: Ward) -> None:
    bridge = ward.broker.bridge()
    edge = ward.broker.device("edge-17", session_s=100)
    edge.subscribe("tidegate/v1/edge-17/down/command")
    edge.close()
    bridge.publish("tidegate/v1/edge-17/down/command", b"kept")
    bridge.subscribe("tidegate/v1/edge-17/up/+")
    assert ward.doctor()[0] == 0
    assert [value for _, value in bridge.heard if value] == []
    assert ward.broker.device("edge-17", session_s=100).hears(b"kept")


def test_without_a_bridge_it_warns(ward: Ward) -> None:
    code, found = ward.doctor()
    assert code == 0
    assert found["bus"][1]["verdict"] == "warning"
    assert "start a bridge" in found["bus"][1]["fix"]


@pytest.mark.parametrize(
    ("changed", "found", "fix"),
    [
        (
            {"mqtt__url": "mqtts://localhost:1"},
            "nothing listens at localhost:1",
            "correct the port in mqtt.url",
        ),
        (
            {"mqtt__url": "mqtts://broker.invalid:8883"},
            "the name broker.invalid does not resolve",
            "getent hosts broker.invalid",
        ),
        ({"mqtt__cert_file": "", "mqtt__key_file": ""}, "", "set mqtt.cert_file and key_file"),
    ],
    ids=["port", "name", "certificate"],
)
def test_what_is_wrong_or_missing_is_told_by_its_key(
    ward: Ward, changed: dict[str, Any], found: str, fix: str
) -> None:
    problem = ward.problem(**changed)
    assert found in problem["found"]
    assert fix in problem["fix"]


def test_a_wrong_authority(ward: Ward) -> None:
    theirs = Authority(ward.folder / "theirs")
    found = ward.problem(mqtt__ca_file=theirs.ca)
    assert "Tidegate test authority" in found["found"]
    assert "name in mqtt.ca_file the authority" in found["fix"]
    (found,) = ward.doctor(mqtt__ca_file=theirs.ca)[1]["certificates"]
    assert found["verdict"] == "warning", "the login decides"
    assert "not signed by the authority" in found["found"]


def test_a_certificate_of_ours_that_ended(ward: Ward) -> None:
    theirs = Authority(ward.folder / "theirs").sign("edge-17", begins=-9, ends=-1)
    changed: dict[str, Any] = {"mqtt__cert_file": theirs.cert, "mqtt__key_file": theirs.key}
    found = ward.problem(**changed)
    assert "refuses our certificate" in found["found"]
    assert "mqtt.cert_file signed anew" in found["fix"]
    complaints = ward.doctor(**changed)[1]["certificates"]
    assert "sign a new one for edge-17" in complaints[0]["fix"]


def test_a_certificate_for_another_name(ward: Ward) -> None:
    sign(ward.broker.certs, "edge-18", "edge-18")
    changed: dict[str, Any] = {
        f"mqtt__{k}_file": ward.broker.certs / f"edge-18.{e}" for k, e in _ENDS.items()
    }
    found = ward.problem(**changed)
    assert "lets edge-17 in, but not speak" in found["found"]
    assert "a certificate (or user) named edge-17" in found["fix"]


_ENDS = {"cert": "pem", "key": "key"}


def test_a_port_without_tls(ward: Ward, tmp_path: Path) -> None:
    with _plain(tmp_path, "allow_anonymous true\n") as plain:
        found = ward.problem(mqtt__url=f"mqtts://localhost:{plain.port}")
        assert "the port in mqtt.url is the one with TLS" in found["fix"]


@pytest.mark.parametrize(
    ("name", "days", "part", "fix"),
    [
        ("localhost", (-9, -1), "a certificate of the MQTT broker ended on", "renew the"),
        ("broker.example", (-9, 400), "its names are broker.example", "one of these names"),
    ],
)
def test_a_brokers_certificate_that_ended_or_is_anothers(
    ward: Ward, tmp_path: Path, name: str, days: tuple[float, float], part: str, fix: str
) -> None:
    ours = Authority(tmp_path / "ours")
    made = ours.sign("broker", begins=days[0], ends=days[1], names=(name,), server=True)
    settings = f"allow_anonymous true\ncertfile {made.cert}\nkeyfile {made.key}\n"
    with _plain(tmp_path, settings) as broker:
        found = ward.problem(mqtt__url=f"mqtts://localhost:{broker.port}", mqtt__ca_file=ours.ca)
        assert part in found["found"]
        assert fix in found["fix"]


def test_a_login_that_is_refused(ward: Ward, tmp_path: Path) -> None:
    passwords, secret = tmp_path / "passwords", tmp_path / "secret"
    secret.write_text("wrong\n")
    secret.chmod(0o600)
    made = ["mosquitto_passwd", "-c", "-b", str(passwords), "edge-17", "right"]
    subprocess.run(made, check=True, capture_output=True)
    passwords.chmod(0o644)
    with _plain(tmp_path, f"allow_anonymous false\npassword_file {passwords}\n") as broker:
        changed: dict[str, Any] = {f"mqtt__{k}_file": "" for k in ("ca", "cert", "key")}
        changed["mqtt__url"] = f"mqtt://edge-17@127.0.0.1:{broker.port}"
        found = ward.problem(**changed, mqtt__password_file=secret)
        assert "does not let edge-17 in" in found["found"]
        assert "correct mqtt.username and mqtt.password_file" in found["fix"]
        secret.write_text("right\n")
        assert ward.doctor(**changed, mqtt__password_file=secret)[0] == 0


@contextmanager
def _plain(folder: Path, settings: str) -> Iterator[Mosquitto]:
    broker = Mosquitto(folder, settings)
    try:
        yield broker
    finally:
        broker.stop()


def test_an_agent_that_runs_keeps_its_session(ward: Ward) -> None:
    command = [sys.executable, "-m", "console.main", *ward.words("edge-agent", http__port=0)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as agent:
        assert agent.stderr is not None
        port = next(said["port"] for line in agent.stderr if "port" in (said := json.loads(line)))
        try:
            wait_until(lambda: ward.doctor(http__port=port)[1]["bus"][1]["verdict"] == "ok")
            found = ward.doctor(http__port=port)[1]["bus"][1]
            assert found["found"] == "the agent that runs has its connection to the broker"
            assert "not disturbed" in ward.doctor()[1]["bus"][1]["found"]
        finally:
            agent.terminate()
            said = [json.loads(line)["event"] for line in agent.stderr]
    assert "ready" in said
    assert "not ready" not in said[1:], "its connection was cut"
