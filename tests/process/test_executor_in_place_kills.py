"""Whoever dies in the middle of a change of size in place: the gang goes on, at the new size."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from runtime.core import CheckpointDone, GangFailed, GangStarted, WorkersLeft
from runtime.executors.locks import Locked, lock_path, take
from runtime.executors.processes import workers_of
from schemas.programs import Program
from tests.patience import wait_until
from tests.workers import ELASTIC, NODE, Bench, bench, kill_agent_after, python

#: One that comes does not meet the others before it is let.
LATE = "while not (folder / 'go').exists(): time.sleep(0.01)"
#: Has two workers take steps, and a third on its way.
GROWS = f"""
jig.start(python(ELASTIC, resize='in_place', env=dict(JOIN={LATE!r})), 0, 1)
jig.until(lambda: jig.step() > 2)
jig.scale(0, 2, 3, epoch=2)
"""


def _elastic(**env: str) -> Program:
    return python(ELASTIC, resize="in_place", env=env)


def _told(jig: Bench) -> bool:
    resize = (jig.shim() or {}).get("resize") or {}
    return resize.get("state") in ("told", "done")


def _saved(jig: Bench, step: int) -> None:
    """As if the job had saved by itself."""
    (jig.run() / "checkpoints" / "mine").write_text(str(step))
    with (jig.run() / "progress.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "checkpoint": "mine"}) + "\n")


def _held(jig: Bench) -> list[int]:
    """GPUs that somebody has."""
    found = []
    for gpu in range(4):
        try:
            os.close(take(lock_path(jig.options.lock_folder, NODE, gpu, None), {}))
        except Locked:
            found.append(gpu)
    return found


@pytest.mark.parametrize("code", ["sys.exit(3)", "os.kill(os.getpid(), 9)", "sys.exit(0)"])
def test_one_that_comes_and_dies_costs_a_restart_and_not_the_gang(
    tmp_path: Path, code: str
) -> None:
    # One that ends with 0 offends nobody; but they never meet.
    with bench(tmp_path, grace_s=4.0) as jig:
        _comes_and_dies(jig, code)


def _comes_and_dies(jig: Bench, code: str) -> None:
    jig.trains(_elastic(JOIN=f"{LATE}\n{code}"), 0)
    _saved(jig, jig.step())
    saved = jig.hears(CheckpointDone).step
    jig.scale(0, 1, epoch=2)
    jig.until(lambda: _told(jig))
    (jig.run() / "checkpoints" / "go").touch()
    assert jig.hears(GangStarted, 2).epoch == 2
    jig.until(lambda: jig.run(2).exists())
    assert jig.executor.fallbacks == 1
    assert jig.all(GangFailed) == []
    jig.until(lambda: jig.step() > saved)
    assert jig.first_step(2) >= saved + 1
    assert _held(jig) == [0, 1]


def test_one_that_leaves_in_disorder_costs_a_restart_too(jig: Bench) -> None:
    jig.trains(_elastic(LEAVE="sys.exit(7)"), 0, 1)
    jig.scale(0, epoch=2)
    jig.until(lambda: jig.run(2).exists())
    jig.until(lambda: jig.step() > 0)
    assert jig.all(GangFailed) == []
    assert jig.all(WorkersLeft)[-1].epoch == 1
    assert _held(jig) == [0]


def test_an_agent_that_dies_in_the_middle_is_followed_by_one_that_goes_on(jig: Bench) -> None:
    kill_agent_after(jig, GROWS, lambda: _told(jig))
    pids = jig.pids()
    assert jig.again() == ("j",)
    assert jig.executor.orphans_killed == 0
    for _ in range(5):
        jig.look()
    assert jig.all(GangStarted) == []
    jig.until(lambda: _held(jig) == [0, 2, 3])
    jig.scale(0, 2, 3, epoch=2)  # as the core says again
    (jig.run() / "checkpoints" / "go").touch()
    assert jig.hears(GangStarted).epoch == 2
    assert [left.epoch for left in jig.all(WorkersLeft)] == [1]
    assert jig.pids() <= pids  # nobody new
    jig.again()  # said again, for it may not have been written down
    assert jig.hears(GangStarted, 2).epoch == 2
    assert [left.epoch for left in jig.all(WorkersLeft)] == [1, 1]
    assert jig.executor.fallbacks == 0
    jig.scale(0, epoch=3)
    assert jig.hears(GangStarted, 3).epoch == 3
    assert _held(jig) == [0]
    assert jig.ends(3).step > 2


def test_an_agent_that_dies_before_it_asks_is_made_up_for(jig: Bench) -> None:
    jig.trains(_elastic(), 0)
    jig.hurt(signal.SIGSTOP)  # it hears nothing while the agent writes
    jig.scale(0, 1, epoch=2)
    jig.look()
    jig.executor.close()
    jig.hurt(signal.SIGCONT)
    jig.again()
    assert jig.hears(GangStarted, 2).epoch == 2
    assert jig.executor.fallbacks == 0


def test_a_killed_supervisor_costs_what_was_not_saved_and_not_the_gang(jig: Bench) -> None:
    jig.trains(_elastic(JOIN=LATE), 0, 1)
    _saved(jig, jig.step())
    saved = jig.hears(CheckpointDone).step
    jig.scale(0, 2, epoch=2)
    jig.until(lambda: _told(jig))
    jig.hurt(signal.SIGKILL)
    assert jig.hears(GangStarted, 2).epoch == 2
    assert jig.all(GangFailed) == []
    assert jig.executor.fallbacks == 1
    assert [left.epoch for left in jig.all(WorkersLeft)] == [1]
    assert jig.first_step(2) == saved + 1
    assert _held(jig) == [0, 2]
    assert {worker.epoch for worker in workers_of(jig.agent)} == {"2"}


def test_agent_and_supervisor_that_die_together_leave_a_gang_to_restart(jig: Bench) -> None:
    kill_agent_after(jig, GROWS, lambda: _told(jig))
    jig.hurt(signal.SIGKILL)
    wait_until(lambda: not jig.pids(), "the workers outlived their supervisor")
    assert _held(jig) == []
    jig.again()
    jig.scale(0, 2, 3, epoch=2)  # as the core says again
    assert jig.hears(GangStarted).epoch == 2
    assert [left.epoch for left in jig.all(WorkersLeft)] == [1]
    assert jig.all(GangFailed) == []
    assert _held(jig) == [0, 2, 3]
    jig.again()  # what happened is on record: the run of before was left for this one
    assert jig.hears(GangStarted, 2).epoch == 2


def test_a_machine_that_is_restarted_is_no_reason_to_begin_anew_unasked(jig: Bench) -> None:
    jig.trains(_elastic(), 0)
    jig.scale(0, 1, epoch=2)
    jig.hears(GangStarted, 2)
    jig.reboot()
    jig.again()
    failed = jig.hears(GangFailed)
    assert "machine was restarted" in failed.error
    assert failed.epoch == 2
    assert jig.pids() == set()


def test_an_agent_that_dies_while_it_falls_back_goes_on_with_that(jig: Bench) -> None:
    slow = ELASTIC.replace("def save():", "def save():\n    print('saves'); time.sleep(1.0)")
    orders = f"""
known = jig.options
jig.options = type(known)(root=known.root, store=known.store, agent=known.agent, grace_s=2.0)
jig.again()
jig.start(python({slow!r}, resize='in_place', env=dict(JOIN={LATE!r})), 0)
jig.until(lambda: jig.step() > 2)
jig.scale(0, 1, epoch=2)
"""
    log = jig.run() / "logs" / "rank-0.log"
    kill_agent_after(jig, orders, lambda: log.exists() and "saves" in log.read_text())
    before_s = time.monotonic()
    jig.again()
    jig.scale(0, 1, epoch=2)  # as the core says again
    assert jig.hears(GangStarted).epoch == 2
    assert time.monotonic() - before_s < 60
    assert jig.first_step(2) > 2
