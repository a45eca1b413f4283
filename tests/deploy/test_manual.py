"""docs/deploy.md: what it names is there, and what runs without Docker runs."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.core.settings import Settings
from services.process import PORTS
from tests.brokers import fresh_namespace
from tests.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
MANUAL = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```$", MANUAL, re.DOTALL | re.MULTILINE)
BIN = Path(sys.executable).parent


def test_what_the_text_says_of_secrets_and_commands_is_so() -> None:
    made = re.findall(r"`compose/secrets/([\w-]+)", MANUAL)
    assert set(made) <= {"authority", "grafana", "edge-7"}
    assert "`scheduler.settings.command_ttl_s` (10 minutes)" in MANUAL
    assert Settings().command_ttl_s == 600.0


def test_the_ports_of_the_table_are_the_defaults() -> None:
    rows = re.findall(r"^\| `tidegate ([\w-]+)` \|.*\| (.*) \|$", MANUAL, re.MULTILINE)
    said = {role: re.findall(r"\d+", cell) for role, cell in rows}
    assert said == {
        "scheduler": [str(PORTS["scheduler"])],
        "bridge": [str(PORTS["bridge"])],
        "cloud-agent": [],
        "edge-agent": [],
    }


def block(start: str) -> str:
    (found,) = [one for one in BLOCKS if one.startswith(start)]
    return found


@pytest.mark.broker
@pytest.mark.slow
def test_four_terminals_without_docker(kafka_bootstrap: str, mqtt_url: str, tmp_path: Path) -> None:
    namespace = fresh_namespace()
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "TIDEGATE_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "TIDEGATE_KAFKA__REPLICATION": "1",
        "TIDEGATE_MQTT_URL": mqtt_url,
        "TIDEGATE_KAFKA__NAMESPACE": namespace,
        "TIDEGATE_MQTT__NAMESPACE": namespace,
        "TIDEGATE_HTTP__PORT": "0",  # the manual's may be taken here
        "COLUMNS": "160",
    }

    def shell(text: str) -> str:
        here = text.replace("--log kafka:", f"--log kafka:/{namespace}")
        done = subprocess.run(
            ["bash", "-euc", here], cwd=tmp_path, env=environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.stdout

    terminals = []
    verbs = ("tidegate scheduler", "tidegate bridge", "tidegate cloud-agent", "tidegate edge-agent")
    look, submit, jobs, why = re.split(r"\n(?! )", block("tidegate nodes").strip())
    try:
        for verb in verbs:
            log = (tmp_path / f"{verb.split()[1]}.log").open("wb")
            with log:
                terminals.append(
                    subprocess.Popen(
                        ["bash", "-euc", f"exec {block(verb)}"],
                        cwd=tmp_path,
                        env=environment,
                        stderr=log,
                    )
                )

        def shown(what: str, command: str) -> bool:
            assert all(one.poll() is None for one in terminals)
            return re.search(what, shell(command), re.DOTALL) is not None

        # Each look is a process of its own, which four that begin should not have to share with.
        logs = [tmp_path / f"{verb.split()[1]}.log" for verb in verbs]
        wait_until(lambda: all("started" in log.read_text() for log in logs), "they do not start")
        wait_until(lambda: shown("edge-1 .*train-0 .*train-1 ", look))
        assert "first" in shell(submit).split()
        wait_until(lambda: shown(r"first [^\n]*\b(starting|running)\b", jobs))
        assert "first" in shell(why)
        for one in terminals:
            one.send_signal(signal.SIGINT)
        assert [one.wait(timeout=PATIENCE_S) for one in terminals] == [0, 0, 0, 0]
        assert {path.name for path in tmp_path.glob("*.db")} == {"training.db", "edge-1.db"}
    finally:
        for one in terminals:
            one.kill()
            one.wait()
