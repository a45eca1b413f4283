"""Gangs and agents are found by whoever looks from outside, and ended if that is wished."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.core import GangStarted
from runtime.store import AgentStore
from services.install.gangs import end, named, running_gangs
from services.install.status import held, waiting
from tests.workers import TRAINER, Bench, bench, python


@pytest.fixture
def jig(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def test_a_gang_is_found_without_its_agent_and_can_be_told_to_leave(jig: Bench) -> None:
    root = jig.options.root
    assert running_gangs(root) == []
    jig.start(python(TRAINER), 0, 1)
    jig.hears(GangStarted)
    jig.executor.close()
    found = running_gangs(root)
    assert found is not None
    (gang,) = found
    assert (gang.job, gang.epoch, gang.gpus, gang.workers) == ("j", 1, 2, 2)
    assert named(found) == "j (2 GPUs, epoch 1)"
    assert end(found) == []
    assert running_gangs(root) == []
    assert jig.pids() == set()


def test_no_folder_no_gangs(tmp_path: Path) -> None:
    assert running_gangs(tmp_path / "none") == []
    assert end([]) == []


def test_an_agent_that_runs_is_known_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    assert held(path) == (False, None)
    assert waiting(path) is None
    assert not path.exists(), "root looks, and the file must become the agent's"
    AgentStore.open(path).close()
    assert held(path) == (False, None)
    assert waiting(path) == 0
    code = (
        "import sys; from runtime.store import AgentStore\n"
        f"store = AgentStore.open({str(path)!r})\nprint('open', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        assert held(path) == (True, other.pid)
        other.kill()
    assert held(path) == (False, None)
