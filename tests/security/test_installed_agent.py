"""An agent as it is installed: started by the unit's command, with certificates, at a broker."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from console.main import main
from tests.brokers import need_brokers
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port
from tests.security.secure_broker import ROOT, SecureBroker, certs

pytestmark = pytest.mark.broker
_ETC, _STATE = "/etc/tidegate", "/var/lib/tidegate"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    need_brokers()
    with SecureBroker.running(tmp_path_factory.mktemp("broker")) as running:
        assert certs(running.certs, "device", "edge-17").returncode == 0
        yield running


class Site:
    """A staged tree that serves as its own machine: what names a place names it in the tree."""

    def __init__(self, tree: Path, broker: SecureBroker) -> None:
        self.tree = tree
        self.config = tree / "etc/tidegate/edge-agent.toml"
        command = ["edge-agent", "install", "--root", str(tree), "--name", "edge-17"]
        command += ["--broker", f"mqtts://localhost:{broker.port}", "--gpus", "2"]
        command += ["--checkpoints", f"file://{_STATE}/checkpoints", "--gpu-type", "cpu"]
        command += ["--owner", "none", "--isolation", "none"]
        for option, file in (("ca", "ca.pem"), ("cert", "edge-17.pem"), ("key", "edge-17.key")):
            command += [f"--{option}", str(broker.certs / file)]
        assert main(command) == 0
        port = free_port()
        text = self.config.read_text().replace("port = 9466", f"port = {port}")
        assert f"port = {port}" in text
        for place in (_ETC, _STATE):
            text = text.replace(place, f"{tree}{place}")
        self.config.write_text(text)

    def start(self) -> list[str]:
        """Give the unit's own command, at this place."""
        unit = (self.tree / "etc/systemd/system/tidegate-edge-agent.service").read_text()
        (line,) = [one for one in unit.splitlines() if one.startswith("ExecStart=")]
        words = shlex.split(line.removeprefix("ExecStart="))
        assert words[-1] == f"{_ETC}/edge-agent.toml"
        return [*words[:-1], str(self.config)]

    @contextmanager
    def agent(self) -> Iterator["subprocess.Popen[bytes]"]:
        with subprocess.Popen(self.start(), cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()

    def status(self, answer: Path) -> tuple[int, dict[str, object]]:
        code = main(["edge-agent", "status", "--config", str(self.config), "--json", str(answer)])
        return code, json.loads(answer.read_text())


def test_the_units_command_runs_an_agent_that_is_let_in(
    broker: SecureBroker, tmp_path: Path
) -> None:
    site, answer = Site(tmp_path / "tree", broker), tmp_path / "answer.json"
    assert Path(site.start()[0]).is_absolute()
    with site.agent() as agent:
        wait_until(lambda: site.status(answer)[1]["link_up"] is True, "it is let in")
        code, said = site.status(answer)
        assert code == 0
        assert (said["runs"], said["pid"], said["gangs"]) == (True, agent.pid, [])
        assert said["problems"] == []
        agent.kill()
        agent.wait(PATIENCE_S)
    code, said = site.status(answer)
    assert (code, said["runs"], said["link_up"]) == (1, False, None)
    assert "no agent runs with" in str(said["problems"])
    with site.agent():
        wait_until(lambda: site.status(answer)[0] == 0, "the next one goes on")
    assert main(["edge-agent", "uninstall", "--root", str(site.tree)]) == 0
    assert not site.config.exists()
    assert (site.tree / "var/lib/tidegate/agent.db").exists()


def test_without_its_broker_the_status_says_why(broker: SecureBroker, tmp_path: Path) -> None:
    site, answer = Site(tmp_path / "tree", broker), tmp_path / "answer.json"
    text = site.config.read_text()
    site.config.write_text(text.replace(f":{broker.port}", ":1"))
    with site.agent():
        wait_until(lambda: site.status(answer)[1]["link_up"] is False, "it says that it has none")
        code, said = site.status(answer)
        assert code == 1
        assert "no connection to the MQTT broker at mqtts://" in str(said["problems"])
