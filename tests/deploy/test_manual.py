"""docs/deploy.md: what it names is there, and what runs without Docker runs."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from console.verbs import make_app
from scheduler.core.settings import Settings
from services.config import load
from services.process import PORTS
from tests.brokers import fresh_namespace
from tests.deploy.test_compose_files import SERVICES
from tests.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
MANUAL = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```$", MANUAL, re.DOTALL | re.MULTILINE)
BIN = Path(sys.executable).parent


def commands() -> list[list[str]]:
    """Every command of every block, in words, without the variables before it."""
    found = []
    for line in "".join(BLOCKS).replace("\\\n", " ").splitlines():
        for part in re.split(r";|&&", line):
            words = shlex.split(part)
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words.pop(0)
            if words:
                found.append(words)
    return found


def group() -> TyperGroup:
    found = typer.main.get_command(make_app())
    assert isinstance(found, TyperGroup)
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_names_what_there_is(words: list[str]) -> None:
    if "tidegate" in words:
        verb, *arguments = words[words.index("tidegate") + 1 :]
        flags = {flag for option in group().commands[verb].params for flag in option.opts}
        assert {word for word in arguments if word.startswith("-")} <= flags
        load(None, [word for word in arguments if re.match(r"\w+\.\w+=", word)])
    if words[:2] == ["docker", "compose"]:
        named = {word for word in words if word in SERVICES}
        assert named or words[4] in ("up", "ps")
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        if (path := word.removeprefix("/")).startswith("compose/"):
            assert (ROOT / path).exists(), path


def test_files_and_settings_in_the_text_exist() -> None:
    quoted = re.findall(r"`([^`\n]+)`", MANUAL)
    paths = {word for text in quoted for word in text.split() if word.startswith("compose/")}
    made = {path for path in paths if path.startswith("compose/secrets/")}
    assert [path for path in sorted(paths - made) if not (ROOT / path).exists()] == []
    assert {Path(path).parts[2] for path in made} <= {"authority", "grafana", "edge-7"}
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
