"""docs/team.md: each command as it stands there, with real brokers, TLS and access rules."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.brokers import JARS, QUICK_JAVA, need_brokers
from tests.patience import PATIENCE_S, wait_until
from tests.ports import answers, free_ports

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "team.md").read_text(encoding="utf-8")
BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
#: All there are, in the order in which a reader types them.
(
    INSTALL,
    BEGIN,
    KEYS,
    KAFKA,
    START_KAFKA,
    RIGHTS,
    MOSQUITTO,
    START_MOSQUITTO,
    CONFIG,
    SCHEDULER,
    BRIDGE,
    CLUSTER,
    EDGE,
    GATEWAY,
    SERVE,
    CONTEXTS,
    SUBMIT,
    REFUSED,
    STRANGERS,
    DRAIN,
    UNCORDON,
    AUDIT,
    PROVE,
    REVOKE,
) = BLOCKS
#: Where the page has things listen.
PORTS = ("9094", "9093", "8883", "8321")


class Engineer:
    """Somebody with a checkout and terminals."""

    def __init__(self, home: Path) -> None:
        # The checkout's `.venv` may be another one here, and usual ports others'.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        java = ("-XX:TieredStopAtLevel=1", *QUICK_JAVA)
        self._environment = {
            **os.environ, "HOME": str(home), "PATH": path, "COLUMNS": "200",
            "TIDEGATE_HTTP__PORT": "off",
            "JDK_JAVA_OPTIONS": " ".join(f'"{one}"' for one in java),
        }  # fmt: skip
        self._ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self.folder = home / "tidegate-team"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._before = BEGIN
        self._client: httpx.Client | None = None

    def port(self, there: str) -> int:
        return int(self._ports[there])

    def _here(self, text: str) -> str:
        text = text.replace("$CHECKOUT/.brokers/jars", str(JARS))
        text = text.replace("tidegate serve", f"tidegate serve --port {self._ports['8321']}")
        for there, here in self._ports.items():
            text = text.replace(f":{there}", f":{here}").replace(
                f"listener {there}", f"listener {here} 127.0.0.1"
            )
        return text

    def tries(self, block: str) -> subprocess.CompletedProcess[str]:
        """Type something in the last terminal; what it exports stays."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(self._before + block)],
            cwd=ROOT, env=self._environment, text=True, capture_output=True, check=False,
        )  # fmt: skip
        self._before += "".join(re.findall(r"^export .*\n", block, re.MULTILINE))
        return done

    def types(self, block: str) -> str:
        """Type what must succeed; give what it shows."""
        done = self.tries(block)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refuses(self, block: str, refused: bool) -> bool:
        """Whether something is refused, or is not, as it should be."""
        return (self.tries(block).returncode != 0) is refused

    def listens_here(self, name: str) -> None:
        """Have what a file of the repository sets up listen on this machine, at a free port."""
        path = self.folder / name
        path.write_text(self._here(path.read_text().replace("//0.0.0.0:", "//127.0.0.1:")))

    def starts(self, name: str, block: str) -> None:
        """Start something in a terminal of its own."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                ["bash", "-euc", self._here(f"{BEGIN}exec {block}")],
                cwd=ROOT, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def begins(self, name: str, block: str, sign: str = '"started"') -> None:
        """Start something, and wait until it says so."""
        self.starts(name, block)
        one = self.running[name]
        wait_until(lambda: sign in self.log(name) or one.poll() is not None, name)
        assert one.poll() is None, self.log(name)

    def asks(self, path: str) -> dict[str, Any]:
        """Ask the gateway as the operator does."""
        if self._client is None:
            token = (self.folder / "operator.token").read_text().strip()
            trusting = ssl.create_default_context(cafile=str(self.folder / "certs" / "ca.pem"))
            self._client = httpx.Client(
                base_url=f"https://localhost:{self.port('8321')}/api/v1", verify=trusting,
                headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S,
            )  # fmt: skip
        with suppress(httpx.TransportError):
            answer = self._client.get(path)
            while answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                time.sleep(float(answer.headers["Retry-After"]))
                answer = self._client.get(path)
            found: dict[str, Any] = answer.json()
            return found
        return {}

    def node(self, name: str) -> dict[str, Any]:
        nodes = self.asks("/nodes").get("nodes", [])
        return next((one for one in nodes if one["node"] == name), {})

    def states(self) -> dict[str, str]:
        """Give the state of each job."""
        return {job["job"]: job["state"] for job in self.asks("/jobs").get("jobs", [])}

    def closes(self) -> None:
        """Ask nothing more."""
        if self._client is not None:
            self._client.close()

    def ends(self) -> None:
        """End what is ours in good order; it can take Kafka minutes, so brokers are killed."""
        for name, one in reversed(self.running.items()):
            if name not in ("kafka", "mosquitto"):
                one.send_signal(signal.SIGINT)
                assert one.wait(PATIENCE_S) in (0, 130), self.log(name)


@pytest.fixture
def engineer(tmp_path: Path) -> Iterator[Engineer]:
    need_brokers()
    found = Engineer(tmp_path)
    yield found
    found.closes()
    for one in found.running.values():
        one.kill()
        one.wait()


def brokers(engineer: Engineer) -> None:
    """Set up Kafka and Mosquitto, with users, certificates and rules."""
    engineer.types(KEYS)
    engineer.types(KAFKA.partition("java ")[0])
    engineer.listens_here("kafka.properties")
    *_, last = KAFKA.partition("users=()")
    engineer.types("users=()" + last)
    engineer.starts("kafka", START_KAFKA)
    engineer.types(MOSQUITTO)
    engineer.listens_here("mosquitto.conf")
    if os.geteuid() == 0:  # else it becomes a user who may not read what is root's
        with (engineer.folder / "mosquitto.conf").open("a") as file:
            file.write("user root\n")
    engineer.starts("mosquitto", START_MOSQUITTO)
    for port in ("9094", "8883"):
        wait_until(partial(answers, engineer.port(port)), engineer.log("kafka"))
    engineer.types(RIGHTS)


def test_from_nothing_to_two_tenants_a_drain_and_an_audit(engineer: Engineer) -> None:
    assert "compose/brokers fetch" in INSTALL
    brokers(engineer)
    engineer.types(CONFIG)
    services = {"scheduler": SCHEDULER, "bridge": BRIDGE, "cluster": CLUSTER, "edge": EDGE}
    for name, block in services.items():
        engineer.begins(name, block)
    engineer.types(GATEWAY)
    engineer.begins("gateway", SERVE, "https://localhost:")
    engineer.types(CONTEXTS)
    wait_until(lambda: engineer.node("edge-1") and engineer.node("train-1"), "all join")

    shown = engineer.types(SUBMIT)
    assert re.search(r"\bjob-x[0-9a-f]+ +tenant-x", shown), shown
    assert shown.splitlines()[:2] == ["faces", "whisper"]
    assert "whisper" not in "".join(shown.splitlines()[2:])
    assert "speech" not in shown
    both = {"faces": "running", "whisper": "running"}
    wait_until(lambda: engineer.states() == both, "both train")

    refusals = (
        "whisper: no such job in vision;",
        "there is no job 'whisper' at this moment",
        "role: is tenant, but node.drain is for operator or admin",
    )
    for line, says in zip(REFUSED.splitlines(keepends=True), refusals, strict=True):
        refused = engineer.tries(line)
        assert refused.returncode in (1, 2), line
        assert says in refused.stderr, line
    for line in STRANGERS.splitlines(keepends=True):
        assert json.loads(engineer.types(line))["status"] == 401

    engineer.types(DRAIN)
    wait_until(
        lambda: (node := engineer.node("train-0")) and not any(node["holders"]),
        "the drained node is empty",
    )
    cordon = engineer.node("train-0")["cordon"]
    assert (cordon["by"], cordon["reason"]) == ("robot:on-call", "new power supply")
    wait_until(lambda: engineer.states() == both, "both train on the other node")
    engineer.types(UNCORDON)
    assert engineer.node("train-0")["cordon"] is None

    shown = engineer.types(AUDIT)
    for act in ("job.submit", "node.drain", "node.uncordon", "robot:vision-ci", "robot:on-call"):
        assert act in shown, shown
    proof = engineer.types(PROVE)
    assert "4 requests" in proof, proof
    engineer.types(REVOKE)
    for tenant, is_revoked in (("speech", True), ("vision", False)):
        looks = f"tidegate jobs --context {tenant}\n"
        wait_until(partial(engineer.refuses, looks, is_revoked), looks)
    engineer.ends()
