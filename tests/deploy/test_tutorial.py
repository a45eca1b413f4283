"""docs/tutorial.md: each command as it stands there, in the order in which a reader types them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.machine import state
from tests.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
#: What each block is recognised by; together all there are, in order.
(
    DEMO,
    LOOK,
    BEGIN,
    CONFIG,
    SCHEDULER,
    AGENT,
    NODES,
    JOB,
    FOLLOW,
    WIDE,
    KILL,
    AGAIN,
    RESULT,
    RECORD,
) = BLOCKS


class Reader:
    """Somebody with terminals."""

    def __init__(self, home: Path) -> None:
        # The checkout's `.venv` may be another one here, and the usual port another's.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {
            **os.environ, "HOME": str(home), "PATH": path, "COLUMNS": "160",
            "TIDEGATE_HTTP__PORT": "off",
        }  # fmt: skip
        self._home = home
        self.running: list[subprocess.Popen[bytes]] = []

    def types(self, block: str) -> str:
        """In the third terminal; a command that fails ends the test."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", BEGIN + block],
            cwd=ROOT, env=self._environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}"
        return done.stdout

    def starts(self, block: str) -> subprocess.Popen[bytes]:
        """In a terminal of its own."""
        with (self._home / "services.log").open("ab") as log:
            one = subprocess.Popen(
                ["bash", "-euc", f"{BEGIN}exec {block}"],
                cwd=ROOT, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip
        self.running.append(one)
        return one

    def ends(self, one: subprocess.Popen[bytes]) -> None:
        one.send_signal(signal.SIGINT)
        assert one.wait(PATIENCE_S) == 0

    def state(self, job: str) -> str:
        return state(self._home / "tidegate-tutorial" / "bus.db", job)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path)
    yield found
    for one in found.running:
        one.kill()
        one.wait()


@pytest.mark.slow
def test_a_reader_comes_to_the_end(reader: Reader, tmp_path: Path) -> None:
    reader.types(CONFIG)
    scheduler = reader.starts(SCHEDULER)
    agent = reader.starts(AGENT)
    log = tmp_path / "services.log"
    wait_until(lambda: log.read_text().count('"started"') == 2, log.read_text())
    wait_until(lambda: re.search(r"machine-1 .* alive", reader.types(NODES)))
    # It cannot end before the test has looked, however slow the machine is.
    gate = tmp_path / "go-on"
    closed = f"step > 1000 and not asked and not os.path.exists({str(gate)!r})"
    wait = f"while {closed}: time.sleep(0.01)"
    gated = JOB.replace("time.sleep(0.1)", wait)
    assert gated != JOB
    reader.types(gated)
    wait_until(lambda: reader.state("fit") == "running")
    assert "begins after step 0\n" in reader.types(FOLLOW)

    assert "QUEUED" in reader.types(WIDE)
    wait_until(lambda: reader.state("wide") == "cancelled")

    wait_until(lambda: list(tmp_path.glob("*/checkpoints/fit/*")), "a checkpoint is stored")
    reader.types(KILL)
    wait_until(lambda: "signal 9" in reader.types(KILL.splitlines()[-1]))
    wait_until(lambda: reader.state("fit") == "running")
    wait_until(lambda: reader.types(AGAIN).count("begins after step") == 2)
    assert re.search(r"begins after step [1-9]\d*\n$", reader.types(AGAIN))
    reader.ends(agent)
    agent = reader.starts(AGENT)
    wait_until(lambda: log.read_text().count('"started"') == 3, "the new agent started")
    gate.touch()

    wait_until(lambda: reader.state("fit") == "completed")
    step, slope = json.loads(reader.types(RESULT).splitlines()[-1])
    assert (step, round(slope, 1)) == (3000, 3.0)
    assert reader.types(AGAIN).count("begins after step") == 2, "the new agent took it over"
    reader.ends(agent)
    reader.ends(scheduler)
    assert "Identical" in reader.types(RECORD)


def test_a_demo_can_be_asked_as_it_says(reader: Reader) -> None:
    assert DEMO == "make demo\n"
    assert [line.split()[:2] for line in LOOK.splitlines()[1:]] == [
        ["tidegate", "jobs"],
        ["tidegate", "why"],
        ["tidegate", "replay"],
    ]
