"""Supervisors keep the lease's end themselves: gangs end with it, whatever became of the agent."""

import sys
import time
from pathlib import Path

import pytest

from runtime.core import GangStarted, GangStopped, KeepLease
from runtime.executors.folder import read_json
from runtime.executors.lease import LEASE, read_lease, write_lease
from schemas.programs import Program
from tests.patience import wait_until
from tests.workers import TRAINER, Bench

#: Says a step, and does not hear SIGTERM.
DEAF = """
import json, os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.environ["TIDEGATE_PROGRESS"], "a") as file:
    file.write(json.dumps({"step": 1}) + chr(10))
time.sleep(1000)
"""


def python(text: str) -> Program:
    return Program(argv=[sys.executable, "-c", text])


def grant(jig: Bench, lease_s: float, grace_s: float = 20.0) -> None:
    now_s = time.time()
    jig.executor.keep_lease(KeepLease(now_s + lease_s, grace_s), now_s)


def die(jig: Bench) -> None:
    """From now on the agent does nothing any more; what it began lives on."""
    jig.executor.close()


def test_a_gang_whose_agent_is_dead_saves_and_leaves_when_the_lease_ends(jig: Bench) -> None:
    grant(jig, 3.0)
    jig.start(python(TRAINER))
    jig.hears(GangStarted)
    die(jig)
    assert jig.pids(), "it trains while the lease lasts"
    wait_until(lambda: not jig.pids(), "the gang outlives its lease")
    record = read_json(jig.run() / "exit.json")
    assert record is not None
    assert record["lease_ended"]

    assert jig.again() == ("j",)
    stopped = jig.hears(GangStopped)
    assert stopped.step > 0, "what it saved on leaving is kept"
    assert stopped.step == max(int(p.name[5:]) for p in (jig.run() / "checkpoints").iterdir())


def test_who_does_not_hear_is_killed_after_the_grace(jig: Bench) -> None:
    grant(jig, 1.0, grace_s=0.5)
    jig.start(python(DEAF))
    jig.hears(GangStarted)
    die(jig)
    wait_until(lambda: not jig.pids(), "the gang outlives its lease and its grace")


def test_a_renewed_lease_goes_on(jig: Bench) -> None:
    grant(jig, 1.0)
    jig.start(python(TRAINER))
    jig.hears(GangStarted)
    grant(jig, 1000.0)
    deadline_s = time.monotonic() + 4.0
    jig.until(lambda: time.monotonic() > deadline_s)
    assert jig.pids()
    assert not jig.all(GangStopped)


def test_without_a_lease_none_ends(jig: Bench) -> None:
    grant(jig, 1000.0)
    now_s = time.time()
    jig.executor.keep_lease(KeepLease(None, 20.0), now_s)
    assert read_lease(jig.options.root / LEASE) is None


def test_the_lease_does_not_follow_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / LEASE
    write_lease(path, 100.0, 5.0)
    monkeypatch.setattr(time, "time", lambda: 1e10)
    lease = read_lease(path)
    assert lease is not None
    assert 90.0 < lease.left_s() < 110.0
    write_lease(path, -50.0, 5.0)
    assert (late := read_lease(path)) is not None
    assert late.left_s() == 0.0


def test_the_lease_of_an_earlier_boot_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / LEASE
    write_lease(path, 100.0, 5.0)
    monkeypatch.setattr("runtime.executors.lease.boot_id", lambda: "another")
    assert read_lease(path) is None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"boot": 1}', '{"boot": "B", "until_s": "x", "grace_s": 1}']
)
def test_a_file_that_makes_no_sense_is_no_lease(tmp_path: Path, text: str) -> None:
    path = tmp_path / LEASE
    write_lease(path, 100.0, 5.0)
    boot = str((read_json(path) or {})["boot"])
    path.write_text(text.replace("B", boot))
    assert read_lease(path) is None
