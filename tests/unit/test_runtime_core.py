"""The agent core: commands and reports in, acks, events and actions out."""

import json
from typing import Any

import pytest

from runtime.core import (
    AgentCore,
    Birth,
    CheckpointDone,
    CheckpointLost,
    CheckpointWorkers,
    Command,
    GangCompleted,
    GangFailed,
    GangProgress,
    GangStarted,
    GangStopped,
    Limits,
    NodeSpec,
    Outputs,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
    Tick,
    WorkersLeft,
)
from schemas.commands import (
    CheckpointGang,
    CommandData,
    GangSpec,
    Rebirth,
    RenewLease,
    ScaleGang,
    StartGang,
    StopGang,
)
from schemas.events import (
    CheckpointCommitted,
    CheckpointFailed,
    JobProgressed,
    NodeBorn,
    NodeDied,
    RatePoint,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from schemas.values import NodeGpus

NOW_S = 1_000_000.0
SPECS = [NodeSpec(name, "train", "training", 4, "A100", 80_000) for name in ("n1", "n2")]
SPEC = GangSpec(
    model="m",
    total_steps=1000,
    samples_per_step=10.0,
    rates=[RatePoint(gpus=1, samples_per_s=10.0)],
    checkpoint_mib=100,
    checkpoint_cost_s=5.0,
    start_cost_s=30.0,
)


def agent(limits: Limits | None = None) -> AgentCore:
    return AgentCore("a", SPECS, limits)


def place(**gpus: list[int]) -> list[NodeGpus]:
    return [NodeGpus(node=node, gpus=indices) for node, indices in gpus.items()]


def start(job: str = "j", epoch: int = 1, step: int = 0, **gpus: list[int]) -> StartGang:
    placement = place(**(gpus or {"n1": [0, 1]}))
    return StartGang(job=job, epoch=epoch, placement=placement, spec=SPEC, step=step)


def scale(job: str = "j", epoch: int = 2, **gpus: list[int]) -> ScaleGang:
    return ScaleGang(job=job, epoch=epoch, placement=place(**gpus))


def stop(epoch: int = 1, checkpoint: bool = True, grace_s: float = 60.0) -> StopGang:
    return StopGang(
        job="j", epoch=epoch, reason="preempted", checkpoint=checkpoint, grace_s=grace_s
    )


def tell(core: AgentCore, id: str, data: CommandData, now_s: float = NOW_S, **more: Any) -> Outputs:
    return core.handle(Command(id, data, more.pop("said_s", now_s), **more), now_s)


def ack(outputs: Outputs) -> tuple[str, str, str]:
    """The one ack: command, outcome, reason."""
    (delivery,) = outputs.acks
    assert delivery.causation == delivery.data.command
    return delivery.data.command, delivery.data.outcome, delivery.data.reason


def refusal(outputs: Outputs) -> str:
    assert not outputs.events
    assert not outputs.actions
    _, outcome, reason = ack(outputs)
    assert outcome == "refused"
    return reason


def events(outputs: Outputs) -> list[Any]:
    return [said.data for said in outputs.events]


def running(core: AgentCore | None = None, **gpus: list[int]) -> AgentCore:
    core = core or agent()
    tell(core, "start", start("j", 1, 0, **gpus))
    core.handle(GangStarted("j", 1, 0), NOW_S)
    return core


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


def test_scale_reports_only_what_is_given_up_and_then_the_new_allocation() -> None:
    core = running(n1=[0, 1], n2=[0])
    outputs = tell(core, "c2", scale(n1=[0, 2]))
    assert ack(outputs) == ("c2", "done", "")
    assert outputs.actions == (ScaleWorkers("j", 2, {"n1": (0, 2)}),)
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


def test_checkpoint_is_written_once_at_a_time() -> None:
    core = running()
    data = CheckpointGang(job="j", epoch=1)
    assert tell(core, "c2", data).actions == (CheckpointWorkers("j", 1),)
    again = tell(core, "c3", data)
    assert ack(again)[1] == "done"
    assert not again.actions


def test_checkpoint_is_refused_before_the_first_step_and_for_other_epochs() -> None:
    core = agent()
    tell(core, "c1", start())
    assert "is starting" in refusal(tell(core, "c2", CheckpointGang(job="j", epoch=1)))
    reason = refusal(tell(core, "c3", CheckpointGang(job="other", epoch=1)))
    assert "no gang of other" in reason


def test_periodic_checkpoints_come_between_the_limits() -> None:
    core = running(agent(Limits(checkpoint_min_s=600.0, checkpoint_max_s=900.0)))
    assert not core.handle(Tick(), NOW_S + 599).actions
    assert core.handle(Tick(), NOW_S + 900).actions == (CheckpointWorkers("j", 1),)
    assert not core.handle(Tick(), NOW_S + 901).actions, "one is being written"
    lost = core.handle(CheckpointLost("j", 1, "disk full"), NOW_S + 905)
    assert events(lost) == [CheckpointFailed(job="j", epoch=1, error="disk full")]
    assert not core.handle(Tick(), NOW_S + 906).actions, "not again at once"
    assert core.handle(Tick(), NOW_S + 905 + 900).actions


# --- reports -------------------------------------------------------------------------------------


def test_progress_carries_what_a_crash_would_keep() -> None:
    core = running()
    core.handle(CheckpointDone("j", 1, 50, "uri", 100, 6.0), NOW_S)
    outputs = core.handle(GangProgress("j", 1, 70, 12.5), NOW_S)
    assert events(outputs) == [
        JobProgressed(
            job="j",
            epoch=1,
            step=70,
            samples_per_s=12.5,
            checkpoint_step=50,
            checkpoint_cost_s=6.0,
        )
    ]


def test_completion_stops_every_worker_at_the_last_step() -> None:
    core = running(n1=[0], n2=[0])
    done = events(core.handle(GangCompleted("j", 1, 1000), NOW_S))
    assert [(event.reason, event.step) for event in done] == [("completed", 1000)] * 2


def test_failure_rolls_back_to_the_checkpoint() -> None:
    core = running()
    core.handle(CheckpointDone("j", 1, 50, "uri", 100, 5.0), NOW_S)
    core.handle(GangProgress("j", 1, 70, 12.5), NOW_S)
    assert events(core.handle(GangFailed("j", 1, "ECC"), NOW_S)) == [
        WorkerFailed(job="j", epoch=1, node="n1", gpus=[0, 1], error="ECC", step=50)
    ]


# --- leases, births ------------------------------------------------------------------------------


def test_without_any_lease_work_goes_on() -> None:
    core = running()
    assert core.next_due_s() is None
    assert not core.handle(Tick(), NOW_S + 500).actions


def test_the_lease_only_grows_and_its_end_stops_gangs_with_a_checkpoint() -> None:
    core = running(agent(Limits(lease_grace_s=30.0)))
    tell(core, "r1", RenewLease(until_s=NOW_S + 100))
    tell(core, "r2", RenewLease(until_s=NOW_S + 50))
    assert core.next_due_s() == NOW_S + 100
    assert not core.handle(Tick(), NOW_S + 99).actions
    assert core.handle(Tick(), NOW_S + 100).actions == (StopWorkers("j", 1, True, 30.0),)
    assert not core.handle(Tick(), NOW_S + 101).actions
    assert core.next_due_s() is None
    (stopped,) = events(core.handle(GangStopped("j", 1, 0), NOW_S + 105))
    assert stopped.reason == "lease_ended"


def test_a_start_after_the_lease_ended_is_refused_until_it_is_renewed() -> None:
    core = agent()
    tell(core, "r1", RenewLease(until_s=NOW_S - 1))
    refused = tell(core, "c1", start())
    assert ack(refused)[:2] == ("c1", "refused")
    assert not refused.actions
    tell(core, "r2", RenewLease(until_s=NOW_S + 100))
    assert tell(core, "c2", start(epoch=2)).actions


def test_a_start_does_not_lengthen_the_lease() -> None:
    core = agent()
    tell(core, "r1", RenewLease(until_s=NOW_S + 10))
    tell(core, "c1", start())
    assert core.lease_until_s == NOW_S + 10


def test_rebirth_says_every_node_and_what_it_holds() -> None:
    core = running(n1=[0, 1], n2=[3])
    tell(core, "c2", scale(epoch=2, n1=[0], n2=[3]))
    outputs = tell(core, "c3", Rebirth())
    assert ack(outputs) == ("c3", "done", "")
    n1, n2 = events(outputs)
    assert isinstance(n1, NodeBorn)
    assert (n1.node, n1.agent, n1.gpu_count, n1.loan) == ("n1", "a", 4, None)
    assert [(held.epoch, held.gpus) for held in n1.held] == [(1, [1]), (2, [0])]
    assert [(held.epoch, held.gpus) for held in n2.held] == [(2, [3])]


def test_birth_reports_lost_gangs_after_the_nodes() -> None:
    core = running()
    core.handle(CheckpointDone("j", 1, 50, "uri", 100, 5.0), NOW_S)
    reborn = AgentCore.from_dict("a", SPECS, json.loads(json.dumps(core.to_dict())))
    born = events(reborn.handle(Birth(), NOW_S + 60))
    assert [type(event) for event in born] == [NodeBorn, NodeBorn, WorkerFailed]
    assert born[0].held == []
    assert (born[2].error, born[2].step, born[2].retriable) == ("agent restarted", 50, True)
    assert not reborn.gangs
    assert reborn.highest_epoch("j") == 1


def test_birth_keeps_gangs_whose_workers_live() -> None:
    core = running()
    reborn = AgentCore.from_dict("a", SPECS, core.to_dict())
    born = events(reborn.handle(Birth(running=("j",)), NOW_S + 60))
    assert [type(event) for event in born] == [NodeBorn, NodeBorn]
    assert [held.job for held in born[0].held] == ["j"]
    assert reborn.holder("n1")[:2] == ("j", "j")


def test_saved_state_that_does_not_fit_the_nodes_is_refused() -> None:
    rows = running(n2=[3]).to_dict()
    with pytest.raises(ValueError, match="nodes: the saved state runs j on n2"):
        AgentCore.from_dict("a", SPECS[:1], rows)


def test_farewell_names_every_node() -> None:
    assert events(agent().farewell("shut down", NOW_S)) == [
        NodeDied(node="n1", reason="shut down"),
        NodeDied(node="n2", reason="shut down"),
    ]


def test_all_changes_together_are_the_state() -> None:
    core = agent()
    rows: dict[str, Any] = core.to_dict()
    tell(core, "c1", start())
    core.handle(GangStarted("j", 1, 0), NOW_S)
    rows |= core.take_changes()
    tell(core, "c2", scale(epoch=2, n2=[0]))
    rows |= core.take_changes()
    tell(core, "r1", RenewLease(until_s=NOW_S + 1))
    core.handle(WorkersLeft("j", 1, 3), NOW_S)
    rows |= core.take_changes()
    assert rows == core.to_dict()
    assert not core.take_changes()


def test_a_stop_that_was_written_down_but_not_done_is_done_after_a_crash() -> None:
    core = running(agent())
    tell(core, "s1", StopGang(job="j", epoch=1, reason="preempted", checkpoint=True, grace_s=50.0))
    again = AgentCore.from_dict("a", list(core.specs.values()), core.to_dict())
    outputs = again.handle(Birth(("j",)), NOW_S + 20.0)
    assert outputs.actions == (StopWorkers("j", 1, True, 30.0),)
