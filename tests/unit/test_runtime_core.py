"""The agent core: commands in, acks and actions out."""

from dataclasses import replace

import pytest

from runtime.core import (
    AgentCore,
    CheckpointDone,
    CheckpointLost,
    CheckpointWorkers,
    GangCompleted,
    GangFailed,
    GangStarted,
    GangStopped,
    Limits,
    NodeDrained,
    Outputs,
    OutputsStored,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
    Tick,
    WorkersLeft,
)
from schemas.commands import (
    LendNode,
    StartGang,
    StopGang,
)
from schemas.events import (
    CheckpointCommitted,
    CheckpointFailed,
    OutputsKept,
    PoolKind,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from schemas.values import NodeGpus
from tests.gangs import (
    NOW_S,
    SPEC,
    SPECS,
    ack,
    agent,
    events,
    place,
    refusal,
    running,
    scale,
    start,
    stop,
    tell,
)

# --- start ---------------------------------------------------------------------------------------


def test_start_occupies_acknowledges_and_acts() -> None:
    core = agent()
    outputs = tell(core, "c1", start(n2=[3, 1], n1=[0]))
    assert ack(outputs) == ("c1", "done", "")
    (action,) = outputs.actions
    assert isinstance(action, StartWorkers)
    assert action.placement == {"n1": (0,), "n2": (1, 3)}
    assert core.holder("n2") == (None, "j", None, "j")


def test_workers_report_per_node_when_the_gang_takes_its_first_step() -> None:
    core = agent()
    tell(core, "c1", start(n1=[0], n2=[1, 3]))
    outputs = core.handle(GangStarted("j", 1, 7), NOW_S)
    assert events(outputs) == [
        WorkerStarted(job="j", epoch=1, node="n1", gpus=[0], step=7),
        WorkerStarted(job="j", epoch=1, node="n2", gpus=[1, 3], step=7),
    ]
    assert [said.causation for said in outputs.events] == ["c1", "c1"]


@pytest.mark.parametrize(
    ("placement", "reason"),
    [
        (place(n9=[0]), "no node n9"),
        (place(n1=[4]), "no GPU 4"),
        (place(n1=[1]), "GPU 1 of n1 is held by other"),
    ],
)
def test_start_is_refused_on_gpus_it_cannot_have(placement: list[NodeGpus], reason: str) -> None:
    core = agent()
    tell(core, "c0", start("other", n1=[0, 1]))
    data = StartGang(job="j", epoch=1, placement=placement, spec=SPEC, step=0)
    assert reason in refusal(tell(core, "c1", data))
    assert "j" not in core.gangs


def test_a_repeated_id_repeats_the_ack_and_nothing_else() -> None:
    core = agent()
    first = tell(core, "c1", start())
    again = tell(core, "c1", start("another", n2=[0]), NOW_S + 9)
    assert again == Outputs(acks=first.acks)
    assert list(core.gangs) == ["j"]


def test_the_same_epoch_and_placement_is_done_already() -> None:
    core = agent()
    tell(core, "c1", start())
    outputs = tell(core, "c2", start())
    assert ack(outputs) == ("c2", "done", "")
    assert not outputs.actions
    assert "another placement" in refusal(tell(core, "c3", start(n2=[0])))


def test_lower_and_used_epochs_are_refused() -> None:
    core = agent()
    tell(core, "c1", start(epoch=5))
    assert "stale, epoch 5" in refusal(tell(core, "c2", start(epoch=4)))
    core.handle(GangStarted("j", 5, 0), NOW_S)
    core.handle(GangCompleted("j", 5, 1000), NOW_S)
    assert "used up" in refusal(tell(core, "c3", start(epoch=5)))
    assert ack(tell(core, "c4", start(epoch=6)))[1] == "done"
    assert core.highest_epoch("j") == 6


def test_a_held_job_cannot_be_started_again() -> None:
    core = running()
    assert "held here at epoch 1" in refusal(tell(core, "c2", start(epoch=2, n2=[0])))
    assert ack(tell(core, "c3", stop(epoch=1)))[1] == "done", "it can still be stopped"


def test_expired_commands_are_refused_and_fence_nothing() -> None:
    core = agent()
    assert refusal(tell(core, "c1", start(epoch=9), expires_s=NOW_S)) == "expired"
    assert ack(tell(core, "c2", start(epoch=1), expires_s=NOW_S + 1))[1] == "done"


def test_commands_older_than_the_inbox_remembers_are_refused() -> None:
    core = agent(Limits(memory_s=100.0))
    assert refusal(tell(core, "c1", start(), said_s=NOW_S - 101)) == "expired"


def test_the_inbox_and_epochs_forget_what_is_old() -> None:
    core = agent(Limits(memory_s=100.0))
    tell(core, "c1", start(epoch=3))
    tell(core, "c2", StopGang(job="gone", epoch=4, reason="cancelled", checkpoint=False, grace_s=0))
    core.take_changes()
    core.handle(Tick(), NOW_S + 101)
    changes = core.take_changes()
    assert changes == {"inbox/c1": None, "inbox/c2": None, "epoch/gone": None}
    assert core.highest_epoch("gone") == -1
    assert core.highest_epoch("j") == 3, "a held job keeps its fence"


# --- scale ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "cost_s", "save_s"),
    [("training", 80.0, 120.0), ("training", 900.0, 360.0), ("inference", 80.0, 0.0)],
)
def test_a_save_at_a_change_of_size_is_given_what_it_takes_where_no_owner_waits(
    kind: PoolKind, cost_s: float, save_s: float
) -> None:
    specs = [replace(SPECS[0], pool_kind=kind), SPECS[1]]
    core = AgentCore("a", specs)
    if kind != "training":
        tell(core, "c0", LendNode(node="n1", loan="l"))
        core.handle(NodeDrained("n1"), NOW_S)
    running(core, n1=[0], n2=[0])
    core.handle(CheckpointDone("j", 1, 5, "file:///s", 1, cost_s), NOW_S)
    outputs = tell(core, "c2", scale(n2=[0]))
    assert outputs.actions == (ScaleWorkers("j", 2, {"n2": (0,)}, save_s),)


def test_scale_reports_only_what_is_given_up_and_then_the_new_allocation() -> None:
    core = running(n1=[0, 1], n2=[0])
    outputs = tell(core, "c2", scale(n1=[0, 2]))
    assert ack(outputs) == ("c2", "done", "")
    assert outputs.actions == (ScaleWorkers("j", 2, {"n1": (0, 2)}, save_s=7.5),)
    assert core.holder("n1") == ("j", "j", "j", None), "GPU 1 is still being left"

    left = core.handle(WorkersLeft("j", 1, 40), NOW_S + 3)
    assert events(left) == [
        WorkerStopped(job="j", epoch=1, node="n1", gpus=[1], reason="scaled_in", step=40),
        WorkerStopped(job="j", epoch=1, node="n2", gpus=[0], reason="scaled_in", step=40),
    ]
    assert core.holder("n1") == ("j", None, "j", None)
    assert events(core.handle(GangStarted("j", 2, 40), NOW_S + 20)) == [
        WorkerStarted(job="j", epoch=2, node="n1", gpus=[0, 2], step=40)
    ]


def test_scale_supersedes_scale_and_frees_each_epochs_gpus() -> None:
    core = running(n1=[0, 1])
    tell(core, "c2", scale(epoch=2, n1=[0], n2=[0]))
    tell(core, "c3", scale(epoch=3, n1=[0], n2=[1]))
    assert not core.handle(GangStarted("j", 2, 0), NOW_S).events, "a stale report changes nothing"
    stopped = events(core.handle(WorkersLeft("j", 2, 5), NOW_S))
    assert stopped == [
        WorkerStopped(job="j", epoch=2, node="n2", gpus=[0], reason="scaled_in", step=5)
    ]
    assert core.holder("n1") == ("j", "j", None, None)
    assert core.holder("n2") == (None, "j", None, None)


def test_scale_is_refused_onto_gpus_still_being_left() -> None:
    core = running(n1=[0, 1])
    tell(core, "c2", scale(epoch=2, n1=[0]))
    assert "held by j" in refusal(tell(core, "c3", scale(epoch=3, n1=[0, 1])))


def test_scale_is_refused_for_what_is_not_held_or_stops() -> None:
    core = agent()
    assert "no gang of j" in refusal(tell(core, "c1", scale(n1=[0])))
    core = running()
    tell(core, "c2", stop())
    assert "is stopping" in refusal(tell(core, "c3", scale(n1=[0])))


def test_a_gang_that_ends_while_scaling_frees_everything() -> None:
    core = running(n1=[0, 1])
    tell(core, "c2", scale(n1=[0], n2=[2]))
    ended = events(core.handle(GangFailed("j", 2, "ECC"), NOW_S))
    assert [type(event) for event in ended] == [WorkerStopped, WorkerFailed, WorkerFailed]
    assert [event.epoch for event in ended] == [1, 2, 2]
    assert core.holder("n1") == core.holder("n2") == (None,) * 4


# --- stop, checkpoint ----------------------------------------------------------------------------


def test_stop_saves_and_then_every_worker_stops() -> None:
    core = running(n1=[0], n2=[0])
    outputs = tell(core, "c2", stop(grace_s=60.0))
    assert outputs.actions == (StopWorkers("j", 1, True, 60.0),)
    saved = core.handle(CheckpointDone("j", 1, 50, "uri", 100, 5.0), NOW_S + 5)
    assert events(saved) == [
        CheckpointCommitted(job="j", epoch=1, step=50, uri="uri", size_mib=100, cost_s=5.0)
    ]
    stopped = core.handle(GangStopped("j", 1, 50), NOW_S + 5)
    assert [(event.node, event.reason, event.step) for event in events(stopped)] == [
        ("n1", "preempted", 50),
        ("n2", "preempted", 50),
    ]
    assert [said.causation for said in stopped.events] == ["c2", "c2"]
    assert not core.gangs


def test_a_stopping_gang_is_only_ever_hurried() -> None:
    core = running()
    tell(core, "c2", stop(grace_s=60.0))
    assert not tell(core, "c3", stop(grace_s=90.0)).actions
    assert tell(core, "c4", stop(grace_s=10.0)).actions == (StopWorkers("j", 1, True, 10.0),)
    harder = tell(core, "c5", stop(checkpoint=False, grace_s=60.0))
    assert harder.actions == (StopWorkers("j", 1, False, 10.0),)


def test_stop_of_what_is_not_here_is_done_and_fences_a_late_start() -> None:
    core = agent()
    assert ack(tell(core, "c1", stop(epoch=3)))[1] == "done"
    assert "used up" in refusal(tell(core, "c2", start(epoch=3)))


def test_stop_of_a_lower_epoch_is_refused() -> None:
    core = running()
    tell(core, "c2", scale(epoch=2, n1=[0]))
    assert "stale" in refusal(tell(core, "c3", stop(epoch=1)))
    assert core.gangs["j"].phase == "scaling"


def test_periodic_checkpoints_come_between_the_limits() -> None:
    core = running(agent(Limits(checkpoint_min_s=600.0, checkpoint_max_s=900.0)))
    assert not core.handle(Tick(), NOW_S + 599).actions
    assert core.handle(Tick(), NOW_S + 900).actions == (CheckpointWorkers("j", 1),)
    assert not core.handle(Tick(), NOW_S + 901).actions, "one is being written"
    lost = core.handle(CheckpointLost("j", 1, "disk full"), NOW_S + 905)
    assert events(lost) == [CheckpointFailed(job="j", epoch=1, error="disk full")]
    stored = core.handle(OutputsStored("j", 1, "file:///o", 2, 3, "x"), NOW_S + 905)
    (kept,) = events(stored)
    assert kept == OutputsKept(job="j", epoch=1, uri="file:///o", files=2, size_mib=3, left_out="x")
    assert events(core.handle(OutputsStored("j", 2, "file:///o", 2, 3, "x"), NOW_S + 905)) == []
    assert not core.handle(Tick(), NOW_S + 906).actions, "not again at once"
    assert core.handle(Tick(), NOW_S + 905 + 900).actions


def test_checkpoints_go_on_when_the_clock_is_set_back() -> None:
    core = running(agent(Limits(checkpoint_min_s=600.0, checkpoint_max_s=900.0)))
    back_s = NOW_S - 7200.0
    assert core.handle(Tick(), back_s).actions == (CheckpointWorkers("j", 1),)
    core.handle(CheckpointDone("j", 1, 5, "file:///c", 1, 1.0), back_s + 5)
    assert not core.handle(Tick(), back_s + 4.5).actions, "a clock is put right by little"
    assert not core.handle(Tick(), back_s + 599).actions
    assert core.handle(Tick(), back_s + 910).actions
