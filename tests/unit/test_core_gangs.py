"""Gangs through the engine: start, scale, preempt, migrate, fail, cancel, complete."""

import pytest

from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import (
    CheckpointFailed,
    CommandAcknowledged,
    GangHeld,
    JobCancelled,
    NodeDied,
    StopReason,
    WorkerFailed,
    WorkerStarted,
)
from tests.builders import Cell, node_born, submitted, target, two_jobs


@pytest.fixture
def cell() -> Cell:
    return two_jobs(node_born("e0", pool="far"))


def test_a_gang_starts_when_every_gpu_is_free(cell: Cell) -> None:
    cell.run("j0", n0=4)
    cell.plan({"j0": None, "j1": target(n0=2, n1=4)})
    assert cell.job("j0").state == "checkpointing"
    (stop,) = cell.sent(StopGang)
    assert (stop.job, stop.checkpoint, stop.reason) == ("j0", True, "preempted")
    assert cell.job("j1").state == "queued"
    assert cell.state.nodes["n1"].claim == ["j1"] * 4, "what is free is held meanwhile"
    cell.save("j0", 50)
    assert cell.job("j1").state == "queued", "saved is not gone"
    cell.stop_workers("j0", step=50)
    assert cell.job("j0").state == "queued"
    assert (cell.job("j0").checkpoint_step, cell.job("j0").preemptions) == (50, 1)
    (start,) = cell.sent(StartGang)
    assert (start.job, [part.node for part in start.placement]) == ("j1", ["n0", "n1"])
    cell.start_workers("j1")
    assert cell.job("j1").state == "running"


def test_a_worker_alone_makes_no_gang(cell: Cell) -> None:
    cell.plan({"j0": target(n0=1, n1=1)})
    epoch = cell.job().epoch
    cell.feed(WorkerStarted(job="j0", epoch=epoch, node="n0", gpus=[0], step=0))
    cell.feed(WorkerStarted(job="j0", epoch=epoch, node="n0", gpus=[0], step=0))
    assert cell.job().state == "starting"
    assert cell.last.facts == (), "a worker is up once"
    cell.feed(WorkerStarted(job="j0", epoch=epoch, node="n1", gpus=[0], step=0))
    assert cell.job().state == "running"


def test_scale_out_and_in(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    first = job.epoch
    cell.plan({"j0": target(n0=2, n1=2)})
    (scale,) = cell.sent(ScaleGang)
    assert (scale.epoch, job.state, job.size) == (first + 1, "scaling", 4)
    cell.acks()
    cell.start_workers()
    assert job.state == "running"
    cell.plan({"j0": target(n0=1), "j1": target(n1=2)})
    assert (job.state, job.leaving) == ("scaling", {"n0": [1], "n1": [0, 1]})
    assert cell.job("j1").state == "starting", "two were free on n1"
    cell.plan({})
    cell.leave("j0", "n0", [1], first + 1)
    cell.leave("j0", "n1", [0, 1], first + 1)
    assert job.leaving == {}
    cell.start_workers()
    assert (job.state, job.size, job.epoch) == ("running", 1, first + 2)
    totals = cell.state.totals
    assert (totals.scale_outs, totals.scale_ins) == (1, 1)


def test_a_gang_of_another_size_goes_on_from_the_step_that_its_workers_say(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    cell.progress("j0", 100)
    cell.plan({"j0": target(n0=4)})
    cell.acks()
    cell.feed(WorkerStarted(job="j0", epoch=job.epoch, node="n0", gpus=[0, 1, 2, 3], step=180))
    assert (job.state, job.step, job.checkpoint_step) == ("running", 180, 0)


def test_who_reports_more_steps_than_were_declared_has_done_all(cell: Cell) -> None:
    """As a device of one's own may; while it reports, nobody asks whether it still runs."""
    job = cell.run("j0", n0=2)
    cell.progress("j0", 900)
    for step in range(1001, 1061):
        cell.wait(60.0)
        cell.progress("j0", step, 9.0, saved=step)
        assert not cell.state.is_open("Rebirth", "agent-train")
    assert (job.state, job.step, job.checkpoint_step) == ("running", 1000, 1000)
    assert (job.samples_per_s, job.step_at_s) == (9.0, cell.now_s)


def test_stale_reports_change_nothing(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    old = job.epoch
    cell.plan({"j0": target(n0=1)})
    cell.acks()
    cell.leave("j0", "n0", [1], old)
    cell.start_workers()
    cell.plan({"j0": target(n0=2)})
    cell.acks()
    cell.start_workers()
    for gone in (old, old + 1):
        cell.leave("j0", "n0", [1], gone)  # a repetition: GPU 1 is the job's again
        assert cell.last.facts == ()
    cell.feed(WorkerStarted(job="j0", epoch=old, node="n0", gpus=[0], step=0))
    cell.progress("j0", 900, epoch=old)
    assert cell.last.facts == ()
    assert cell.feed(CommandAcknowledged(command="default-0-0", outcome="done")).facts == ()
    cell.leave("j0", "n0", [0, 1], old - 1, "preempted")
    assert cell.last.facts == ()
    assert (job.state, job.size) == ("running", 2)


@pytest.mark.parametrize("reason", ["completed", "lease_ended", None])
def test_a_gang_that_ends_before_it_hears_of_its_new_size(
    cell: Cell, reason: StopReason | None
) -> None:
    """The agent reports the old epoch and refuses the new one: nothing may be held for ever."""
    job = cell.run("j0", n0=2)
    old = job.epoch
    cell.plan({"j0": target(n0=2, n1=2)})
    if reason is None:
        cell.feed(WorkerFailed(job="j0", epoch=old, node="n0", gpus=[0, 1], error="ecc", step=7))
    else:
        cell.leave("j0", "n0", [0, 1], old, reason, 7)
    assert job.state == "stopping"
    cell.acks("refused", kind="ScaleGang")
    assert any(command.kind == "Rebirth" for command in cell.state.commands.values())
    cell.acks()
    cell.told(node_born("n0"), node_born("n1"))
    assert job.state == ("completed" if reason == "completed" else "queued")
    assert cell.state.gpus_held == 0


def test_a_refused_change_of_size_while_the_gang_runs_on(cell: Cell) -> None:
    """As by an agent that began anew, and whose owner has not left again: no work is lost."""
    job = cell.run("j0", n0=2)
    old = job.epoch
    cell.plan({"j0": target(n0=1)})
    cell.acks("refused", kind="ScaleGang")
    assert (job.state, (job.why or {})["rule"]) == ("checkpointing", "gang.size_refused")
    (stop,) = [c for c in cell.state.commands.values() if c.kind == "StopGang"]
    assert (stop.data["epoch"], stop.data["checkpoint"]) == (old + 1, True)
    held = [GangHeld(job="j0", epoch=old, gpus=[0, 1], step=8)]
    cell.told(node_born("n0", held=held))
    cell.acks()
    assert not cell.sent(StopGang), "it is saving"
    cell.leave("j0", "n0", [0, 1], old, "superseded", 9)
    assert (job.state, job.checkpoint_step, cell.state.gpus_held) == ("queued", 9, 0)
    assert job.backoff_until_s == cell.now_s + 60.0


def test_a_change_of_size_that_is_refused_since_there_is_no_gang(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    cell.plan({"j0": target(n0=4)})
    cell.acks("refused", kind="ScaleGang")
    cell.acks()
    cell.told(node_born("n0"), node_born("n1"))
    assert (job.state, job.failures, cell.state.gpus_held) == ("queued", 1, 0)


def test_migration_holds_the_target_first_and_only_then_stops(cell: Cell) -> None:
    job = cell.run("j0", n0=2)
    other = cell.run("j1", "far", e0=4)
    cell.plan({"j0": target("far", e0=2)})
    assert (job.state, job.target) == ("running", None), "nobody gives up e0"
    cell.plan({"j0": target("far", e0=2), "j1": target("far", e0=2)})
    assert (job.state, job.target_pool) == ("running", "far")
    assert not cell.sent(StopGang), "never evicted before the target is free"
    cell.leave("j1", "e0", [2, 3], other.epoch - 1)
    (stop,) = cell.sent(StopGang)
    assert (stop.reason, job.state) == ("migrated", "checkpointing")
    cell.feed(CheckpointFailed(job="j0", epoch=job.epoch, error="disk"))
    cell.stop_workers("j0", "migrated", step=30)
    assert (job.state, job.migrations, job.pool) == ("starting", 1, "far")
    (start,) = cell.sent(StartGang)
    assert (start.step, start.transfer_s > 0) == (30, True)
    cell.start_workers()
    assert job.state == "running"


@pytest.mark.parametrize("when", ["checkpointing", "migrating"])
def test_a_lost_target_sends_the_migrating_job_back_to_the_queue(cell: Cell, when: str) -> None:
    job = cell.run("j0", n0=2)
    cell.plan({"j0": target("far", e0=2)})
    assert job.state == "checkpointing"
    if when == "migrating":
        haunt(cell)
        cell.stop_workers("j0", "migrated", step=3)
        assert job.state == "migrating"
    cell.feed(NodeDied(node="e0"))
    if when == "checkpointing":
        cell.stop_workers("j0", "migrated", step=3)
    assert (job.state, job.target, job.checkpoint_step) == ("queued", None, 3)


def test_cancel_in_every_state(cell: Cell) -> None:
    assert cell.feed(JobCancelled(job="nobody")).facts == ()
    cell.feed(JobCancelled(job="j1"))
    assert cell.job("j1").state == "cancelled"
    assert cell.feed(JobCancelled(job="j1")).facts == ()


@pytest.mark.parametrize("state", ["starting", "running", "scaling", "checkpointing", "migrating"])
def test_cancel_with_a_gang(cell: Cell, state: str) -> None:
    bring_to(cell, state)
    cell.feed(JobCancelled(job="j0"))
    job = cell.job()
    if state == "migrating":
        assert job.state == "cancelled"
        return
    assert job.cancel_requested
    assert job.state in ("stopping", "checkpointing")
    cell.stop_workers("j0", "cancelled")
    for name, gpus in list(job.leaving.items()):
        cell.leave("j0", name, gpus, job.epoch)
    assert job.state == "cancelled"
    assert (cell.state.gpus_held, job.target) == (0, None)


def haunt(cell: Cell) -> None:
    """Let a stray be on GPUs of e0, so that nothing starts there yet."""
    ghost = GangHeld(job="ghost", epoch=1, gpus=[0, 1], step=0)
    cell.reborn(node_born("e0", pool="far", held=[ghost]))


def bring_to(cell: Cell, state: str) -> None:
    if state == "starting":
        cell.plan({"j0": target(n0=2)})
        return
    cell.run("j0", n0=2)
    if state == "scaling":
        cell.plan({"j0": target(n0=1)})
    elif state == "checkpointing":
        cell.plan({"j0": None})
    elif state == "stopping":
        cell.plan({"j0": None})
        epoch = cell.job().epoch
        cell.feed(CheckpointFailed(job="j0", epoch=epoch, error="e"))
    elif state == "migrating":
        cell.plan({"j0": target("far", e0=2)})
        haunt(cell)
        cell.stop_workers("j0", "migrated")
    assert cell.job().state == state


@pytest.mark.parametrize("state", ["starting", "running", "scaling", "checkpointing", "stopping"])
def test_completion_in_every_state(cell: Cell, state: str) -> None:
    bring_to(cell, state)
    cell.stop_workers("j0", "completed", step=1000)
    job = cell.job()
    for name, gpus in list(job.leaving.items()):
        cell.leave("j0", name, gpus, job.epoch)
    assert (job.state, job.step, cell.state.gpus_held) == ("completed", 1000, 0)
    assert cell.state.totals.jobs_completed == 1


def test_completion_of_two_workers_counts_once(cell: Cell) -> None:
    job = cell.run("j0", n0=2, n1=2)
    cell.stop_workers("j0", "completed", nodes=["n0"], step=1000)
    assert job.state == "stopping"
    cell.feed(JobCancelled(job="j0"))
    cell.stop_workers("j0", "completed", nodes=["n1"], step=1000)
    assert (job.state, cell.state.totals.jobs_completed) == ("completed", 1)


@pytest.mark.parametrize("state", ["running", "checkpointing"])
def test_a_failure_that_no_retry_mends(cell: Cell, state: str) -> None:
    bring_to(cell, state)
    cell.fail_worker("j0", "n0", retriable=False)
    assert (cell.job().state, cell.state.totals.jobs_failed) == ("failed", 1)


def test_a_checkpoint_of_before_cuts_off_no_last_save() -> None:
    cell = Cell().told(node_born("n0"))
    large = submitted("j0").model_copy(update={"checkpoint_mib": 600_000})  # 600 s on their way
    cell.feed(large)
    cell.run(n0=4)
    cell.plan({"j0": None})
    assert [stop.checkpoint for stop in cell.sent(StopGang)] == [True]
    cell.acks()
    cell.now_s += 10.0
    cell.save("j0", 100)  # written before it was told to leave
    held = GangHeld(job="j0", epoch=cell.job().epoch, gpus=[0, 1, 2, 3], step=900)
    # Its agent begins anew, and is told again: to save until that should be over.
    for after_s, saves in ((10.0, True), (400.0, True), (400.0, False)):
        cell.now_s += after_s
        cell.reborn(node_born("n0", held=[held]))
        assert [stop.checkpoint for stop in cell.sent(StopGang)] == [saves]
        cell.acks()
