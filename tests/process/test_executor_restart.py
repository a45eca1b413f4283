"""Workers outlive their agent: it is killed, and the next one goes on with them."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from runtime.core import (
    AgentCore,
    Birth,
    CheckpointDone,
    GangCompleted,
    GangFailed,
    GangStarted,
    GangStopped,
    ScaleWorkers,
    WorkersLeft,
)
from runtime.durable import write_json
from runtime.executors.process import ProcessExecutor
from tests.distant import Distant
from tests.gangs import NOW_S, SPECS, agent, scale, start, tell
from tests.patience import wait_until
from tests.workers import IDLE, TRAINER, Bench, bench, kill_agent_after, python, shell


def _steps(jig: Bench, epoch: int = 1) -> int:
    path = jig.run(epoch) / "progress.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return json.loads(lines[-2])["step"] if len(lines) > 1 else 0


def test_workers_live_on_and_are_adopted(jig: Bench) -> None:
    kill_agent_after(jig, "jig.start(python(TRAINER), 0, 1)", lambda: _steps(jig) > 5)
    before = jig.pids()
    assert len(before) == 3
    assert jig.again() == ("j",)
    assert jig.executor.orphans_killed == 0
    assert jig.hears(GangStarted).step > 5
    reached = jig.step()
    jig.until(lambda: jig.step() > reached)
    assert jig.pids() == before
    assert jig.ends().step > reached
    assert jig.all(CheckpointDone)[-1].step == jig.all(GangStopped)[0].step


def test_a_job_that_ended_meanwhile_is_reported(jig: Bench) -> None:
    orders = "jig.start(python(TRAINER, env={'STEPS': '40'}), total_steps=40)"
    kill_agent_after(jig, orders, lambda: _steps(jig) > 2)
    wait_until(lambda: (jig.run() / "exit.json").exists() and not jig.pids())
    assert jig.again() == ("j",)
    assert jig.hears(GangCompleted).step == 40
    assert jig.store.find("j", 40) is not None
    jig.again()  # nobody has said that the report was written down
    assert jig.executor.running() == ("j",)
    assert jig.hears(GangCompleted, 2).step == 40
    jig.look()
    assert jig.again() == ()


def test_an_agent_that_dies_while_workers_leave_hears_how_it_ended(jig: Bench) -> None:
    slow = TRAINER.replace("def save():", "def save():\n    time.sleep(1.5)")
    orders = f"jig.start(python({slow!r})); jig.until(lambda: jig.step() > 2); jig.stop(1)"
    kill_agent_after(jig, orders, (jig.run() / "stop.json").exists)
    assert jig.again() == ("j",)
    jig.stop(1)  # as the core says again
    stopped = jig.hears(GangStopped)
    assert stopped.step == jig.all(CheckpointDone)[-1].step > 2


def test_an_agent_that_dies_in_a_change_of_size_goes_on_with_it(jig: Bench) -> None:
    slow = TRAINER.replace("def save():", "def save():\n    print('saves'); time.sleep(1.0)")
    orders = f"jig.start(python({slow!r}), 0, 1); jig.until(lambda: jig.step() > 2)"
    orders += "; jig.scale(1, epoch=2)"
    log = jig.run() / "logs" / "rank-0.log"
    kill_agent_after(jig, orders, lambda: log.exists() and "saves" in log.read_text())
    wait_until(lambda: not jig.pids(), "they never left")
    assert jig.again() == ("j",)
    jig.look()
    jig.scale(1, epoch=2)  # as the core says again
    assert jig.hears(WorkersLeft).epoch == 1
    started = jig.hears(GangStarted)
    assert started.epoch == 2
    assert started.step > 2
    jig.again()
    jig.hears(WorkersLeft, 2)  # said again: it may not have been written down
    assert jig.hears(GangStarted, 2).epoch == 2


def test_an_agent_that_dies_before_it_asks_workers_to_leave_is_made_up_for(jig: Bench) -> None:
    jig.trains(python(TRAINER), 0, 1)
    write_json(jig.run() / "stop.json", {"grace_s": 60.0, "kill": False, "why": "scale"})
    jig.again()
    jig.scale(1, epoch=2)  # as the core says again
    jig.hears(WorkersLeft)
    assert jig.hears(GangStarted, 2).step > 2


def test_the_core_says_its_wish_for_another_size_again() -> None:
    core = agent()
    tell(core, "c1", start(n1=[0, 1]))
    tell(core, "c2", scale(n1=[0]))
    again = AgentCore.from_dict("a", SPECS, core.to_dict())
    outputs = again.handle(Birth(("j",)), NOW_S)
    assert outputs.actions[1:] == (ScaleWorkers("j", 2, {"n1": (0,)}, save_s=7.5),)


def test_a_gang_whose_supervisor_could_not_be_started_is_not_started_by_the_next_agent(
    jig: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> int:
        assert (jig.run() / "order.json").exists(), "whoever finds no supervisor may start it"
        raise OSError("no room for another process")

    with monkeypatch.context() as full:
        full.setattr(os, "posix_spawn", fails)
        jig.start(IDLE)
        assert "no room for another process" in jig.hears(GangFailed).error
    jig.look()
    assert jig.again() == (), "its end was reported"
    jig.start(IDLE, epoch=2)
    jig.hears(GangStarted)


def test_workers_of_an_epoch_that_is_over_are_ended(jig: Bench) -> None:
    kill_agent_after(jig, "jig.start(python(TRAINER))", lambda: _steps(jig) > 2)
    jig.hurt(signal.SIGSTOP)  # it could not take them along
    (jig.run() / "closed").touch()
    assert jig.again() == ()
    assert jig.executor.orphans_killed == 2
    assert jig.pids() == set()


def test_workers_of_an_older_epoch_are_ended_and_the_newer_ones_kept(jig: Bench) -> None:
    kill_agent_after(
        jig,
        "jig.start(IDLE); jig.start(IDLE, 1, job='other')",
        lambda: (jig.run() / "shim.json").exists() and len(jig.pids()) == 4,
    )
    # As if the older one had got away: its epoch is not the newest on record any more.
    drafts = shutil.ignore_patterns("*.draft")  # the supervisor is writing yet
    shutil.copytree(jig.run(), jig.run(2), ignore=drafts)
    order = json.loads((jig.run(2) / "order.json").read_text())
    write_json(jig.run(2) / "order.json", {**order, "epoch": 2})
    (jig.run(2) / "shim.json").unlink()
    worker = {"rank": 0, "code": 0, "signal": None, "line": "", "gpu_memory": False}
    record: dict[str, object] = {
        "refused": None,
        "stopped": False,
        "lease_ended": False,
        "failed": None,
    }
    record |= {"oom_kills": 0, "workers": [worker]}
    write_json(jig.run(2) / "exit.json", record)
    jig.again()
    assert jig.executor.orphans_killed == 2
    assert len(jig.pids()) == 2
    assert jig.hears(GangCompleted).epoch == 2
    assert jig.all(GangFailed) == []


def test_a_machine_that_was_restarted_trusts_only_what_is_durable(jig: Bench) -> None:
    orders = "jig.start(python(TRAINER, saves='on_signal')); jig.until(lambda: jig.step() > 2)"
    kill_agent_after(jig, orders, lambda: _steps(jig) > 4)
    jig.reboot()
    with (jig.run() / "progress.jsonl").open("a") as file:
        file.write('{"step": 99, "checkpoint": "torn"}\n')
    (jig.run() / "checkpoints" / "torn").touch()
    assert jig.again() == ("j",)
    assert "machine was restarted" in jig.hears(GangFailed).error
    assert jig.all(CheckpointDone) == []


def test_a_change_of_size_that_a_crash_of_the_machine_cut_off_goes_on_from_what_is_durable(
    jig: Bench,
) -> None:
    jig.trains(python(TRAINER, saves="on_signal"), 0, 1)
    jig.save()
    done = jig.hears(CheckpointDone)
    jig.look()
    write_json(jig.run() / "stop.json", {"grace_s": 60.0, "kill": False, "why": "scale"})
    jig.reboot()
    jig.again()
    jig.scale(1, epoch=2)  # as the core says again
    assert jig.hears(GangStarted, 2).step >= done.step
    assert "goes on from 0" not in (jig.run(2) / "logs" / "rank-0.log").read_text()


def test_what_was_written_down_and_never_begun_is_begun(jig: Bench) -> None:
    jig.begins(shell("sleep 1000"))
    jig.ends(1, saves=False)
    jig.look()
    jig.run(2).mkdir()
    order = json.loads((jig.run() / "order.json").read_text())
    write_json(jig.run(2) / "order.json", {**order, "epoch": 2})
    jig.run(3).mkdir()  # not even written down
    assert jig.again() == ("j",)
    assert jig.hears(GangStarted, 2).epoch == 2
    assert not jig.run(3).exists()


def test_a_supervisor_that_died_before_it_said_a_word_is_followed_by_another(jig: Bench) -> None:
    jig.trains(python(TRAINER))
    jig.scale(1, epoch=2)
    jig.until(lambda: jig.run(2).exists())
    jig.scale(2, epoch=3)  # asks one to leave that may not even listen yet
    jig.look()
    jig.again()
    jig.scale(2, epoch=3)
    assert jig.hears(GangStarted, len(jig.all(GangStarted)) + 1).epoch == 3
    assert jig.all(GangFailed) == []


def test_a_checkpoint_whose_report_was_lost_is_reported_again(jig: Bench) -> None:
    jig.trains(python(TRAINER, saves="on_signal"))
    jig.save()
    done = jig.hears(CheckpointDone)
    jig.again()  # as if it had died before that was written down
    again = jig.hears(CheckpointDone, 2)
    assert (again.step, again.uri) == (done.step, done.uri)
    jig.look()
    jig.again()
    jig.hears(GangStarted, 2)
    jig.look()
    assert len(jig.all(CheckpointDone)) == 2


def test_what_an_earlier_stay_of_the_job_saved_is_not_taken_for_the_present_one(jig: Bench) -> None:
    jig.trains(python(TRAINER))
    reached = jig.ends().step
    with (jig.run() / "progress.jsonl").open("a") as file:  # as if its upload had been too slow
        file.write(f'{{"step": 999, "checkpoint": "step-{reached}"}}\n')
    jig.begins(python(TRAINER), epoch=2, step=reached)
    jig.again()
    jig.hears(GangStarted, 3)
    assert jig.ends(2).step < 999


def test_a_job_the_core_forgot_gives_way_to_its_next_epoch(jig: Bench) -> None:
    jig.begins(shell("trap '' TERM; sleep 1000"))
    jig.again()
    assert jig.begins(IDLE, epoch=4).epoch == 4
    assert len(jig.pids()) == 2


def test_an_agent_of_the_same_name_and_another_folder_is_left_alone(
    jig: Bench, tmp_path: Path
) -> None:
    jig.start(IDLE)
    wait_until(lambda: len(jig.pids()) == 2)
    ours = jig.pids()
    other = ProcessExecutor(
        jig.options.model_copy(
            update={"root": tmp_path / "elsewhere", "locks": tmp_path / "elsewhere"}
        )
    )
    try:
        assert other.orphans_killed == 0
        assert other.running() == ()
        assert jig.pids() == ours
    finally:
        other.close()


def test_a_second_agent_in_the_folder_of_one_that_lives_is_refused(jig: Bench) -> None:
    jig.begins(IDLE)
    with pytest.raises(OSError, match=r"agent\.workers\.folder: another agent uses .*agent"):
        jig.make()
    assert jig.pids(), "and it ends nothing there"
    assert jig.again() == ("j",), "who ends, or is killed, leaves it to the next"


def test_what_a_gang_saved_that_failed_as_its_size_was_changed_is_not_lost(tmp_path: Path) -> None:
    fails = "    if step == 5:\n        save()\n        os._exit(3)\n    if wishes:"
    fails = TRAINER.replace("    if wishes:", fails)
    store = Distant(f"file://{tmp_path}/far")
    with bench(tmp_path, store=store) as jig:
        jig.start(python(fails))
        wait_until(lambda: (jig.run() / "exit.json").exists() and not jig.pids())
        jig.scale(0, 1, epoch=2)
        assert jig.hears(GangStarted).epoch == 2
        jig.until(lambda: jig.step() > 5)
        (jig.run() / "kept.json").unlink(missing_ok=True)  # as if the disk had refused to sync it
        jig.again()
        store.away = False
        assert jig.hears(CheckpointDone).step == 5
