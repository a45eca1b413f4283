"""Gangs that went with their machine: resumed by the agent itself, under their lease and epoch."""

import json
from typing import Any

import pytest

from runtime.core import (
    AgentCore,
    Birth,
    CheckpointDone,
    DrainNode,
    GangFailed,
    GangStarted,
    KeepLease,
    Limits,
    NodeDrained,
    NodeSpec,
    Outputs,
    ScaleWorkers,
    StartWorkers,
    Tick,
)
from schemas.commands import LendNode, RenewLease
from schemas.events import NodeBorn, WorkerFailed, WorkerStarted, WorkerStopped
from tests.gangs import (
    NOW_S,
    SPEC,
    SPECS,
    ack,
    agent,
    events,
    refusal,
    running,
    scale,
    start,
    stop,
    tell,
)

RESUME = Limits(after_reboot="resume", resumes_max=2)
LEASE_S = NOW_S + 3600.0
LOST = GangFailed("j", 1, "the machine was restarted", lost=True)


def trained(limits: Limits = RESUME) -> AgentCore:
    """One whose gang is at step 120, and saved at step 100."""
    core = running(agent(limits))
    tell(core, "lease", RenewLease(until_s=LEASE_S))
    core.handle(CheckpointDone("j", 1, 100, "u", 1, 1.0), NOW_S)
    return core


def again(core: AgentCore, limits: Limits = RESUME, specs: list[NodeSpec] = SPECS) -> AgentCore:
    """The same agent after its process ended, from what it wrote down."""
    return AgentCore.from_dict("a", specs, json.loads(json.dumps(core.to_dict())), limits)


def lost(core: AgentCore, now_s: float = NOW_S) -> Outputs:
    """What it does when it begins anew, and finds that its gang went with the machine."""
    core.handle(Birth(("j",)), now_s)
    return core.handle(LOST, now_s)


def kinds(outputs: Outputs) -> list[str]:
    return [type(event).__name__ for event in events(outputs)]


def test_a_lost_gang_goes_on_from_its_checkpoint_under_the_same_epoch() -> None:
    core = again(trained())
    assert kinds(core.handle(Birth(("j",)), NOW_S + 60)) == ["NodeBorn", "NodeBorn"]
    outputs = core.handle(LOST, NOW_S + 60)
    assert outputs.events == ()
    assert outputs.actions == (StartWorkers("j", 1, {"n1": (0, 1)}, SPEC, 100, 0.0, resumed=True),)
    (started,) = events(core.handle(GangStarted("j", 1, 105), NOW_S + 90))
    assert started == WorkerStarted(job="j", epoch=1, node="n1", gpus=[0, 1], step=105)


def test_one_of_which_nothing_at_all_is_left_is_born_as_held_and_resumed() -> None:
    core = again(trained())
    outputs = core.handle(Birth(), NOW_S + 60)
    born = [event for event in events(outputs) if isinstance(event, NodeBorn)]
    assert [(held.job, held.epoch) for node in born for held in node.held] == [("j", 1)]
    assert [type(action) for action in outputs.actions] == [KeepLease, StartWorkers]


@pytest.mark.parametrize("limits", [Limits(), Limits(after_reboot="report")])
def test_without_the_policy_it_is_reported(limits: Limits) -> None:
    core = again(trained(limits), limits)
    (failed,) = events(lost(core))
    assert isinstance(failed, WorkerFailed)
    assert (failed.step, failed.retriable) == (100, True)
    assert core.gangs == {}


def test_one_that_failed_by_itself_is_reported() -> None:
    outputs = trained().handle(GangFailed("j", 1, "rank 0 ended with exit code 3"), NOW_S)
    assert kinds(outputs) == ["WorkerFailed"]


@pytest.mark.parametrize(
    "now_s",
    [
        pytest.param(LEASE_S, id="once its lease has ended"),
        pytest.param(NOW_S - 1000, id="a clock that went back cannot tell that the lease holds"),
    ],
)
def test_without_a_lease_nothing_is_resumed(now_s: float) -> None:
    outputs = lost(again(trained()), now_s)
    assert (kinds(outputs), outputs.actions) == (["WorkerFailed"], ())


def test_one_that_was_leaving_is_not_brought_back() -> None:
    core = trained()
    tell(core, "stop", stop())
    assert kinds(lost(again(core))) == ["WorkerFailed"]


def test_one_whose_agent_said_goodbye_for_good_is_not_brought_back() -> None:
    core = trained()
    core.farewell("decommissioned", NOW_S)
    assert kinds(again(core).handle(Birth(), NOW_S))[-1] == "WorkerFailed"


def test_it_is_resumed_so_often_and_no_more_whoever_counts() -> None:
    core = trained()
    for _ in range(RESUME.resumes_max):
        core = again(core)
        assert lost(core).actions != ()
        core.handle(GangStarted("j", 1, 100), NOW_S)
    (failed,) = events(lost(again(core)))
    assert failed.error == "the machine was restarted; it had been resumed 2 times"


def test_a_row_of_an_earlier_release_is_reported_as_before() -> None:
    rows: dict[str, Any] = json.loads(json.dumps(trained().to_dict()))
    for key in ("spec", "resumes"):
        del rows["gang/j"][key]
    assert kinds(lost(AgentCore.from_dict("a", SPECS, rows, RESUME))) == ["WorkerFailed"]


def test_one_lost_in_a_change_of_size_begins_with_the_new_one() -> None:
    core = trained()
    tell(core, "c", scale(n1=[0]))
    core = again(core)
    core.handle(Birth(("j",)), NOW_S)
    outputs = core.handle(GangFailed("j", 2, "gone", lost=True), NOW_S)
    (left,) = events(outputs)
    assert (left.epoch, left.gpus, left.reason, left.step) == (1, [1], "scaled_in", 100)
    (begun,) = outputs.actions
    assert isinstance(begun, StartWorkers)
    assert (begun.epoch, begun.placement) == (2, {"n1": (0,)})
    assert core.holder("n1") == ("j", None, None, None)


# --- owners ------------------------------------------------------------------------------------

EDGE = [NodeSpec("e1", "edge", "edge", 2, "L4", 24_000)]


def lost_at_the_edge() -> AgentCore:
    core = AgentCore("a", EDGE, RESUME)
    tell(core, "lend", LendNode(node="e1", loan="L1"))
    core.handle(NodeDrained("e1"), NOW_S)
    tell(core, "start", start(e1=[0]))
    core.handle(GangStarted("j", 1, 0), NOW_S)
    core = again(core, specs=EDGE)
    assert core.handle(Birth(("j",)), NOW_S).actions[1:] == (DrainNode("e1"),)
    return core


def test_workers_wait_until_an_owner_that_was_booted_too_has_left_again() -> None:
    core = lost_at_the_edge()
    assert core.handle(LOST, NOW_S).actions == ()
    (begun,) = core.handle(NodeDrained("e1"), NOW_S).actions
    assert isinstance(begun, StartWorkers)
    assert core.handle(NodeDrained("e1"), NOW_S).actions == (), "once"


def test_an_owner_that_left_before_the_loss_was_seen_is_not_waited_for() -> None:
    core = lost_at_the_edge()
    core.handle(NodeDrained("e1"), NOW_S)
    assert [type(action) for action in core.handle(LOST, NOW_S).actions] == [StartWorkers]


def test_one_that_waits_is_stopped_at_once() -> None:
    core = lost_at_the_edge()
    core.handle(LOST, NOW_S)
    outputs = tell(core, "stop", stop())
    (stopped,) = events(outputs)
    assert isinstance(stopped, WorkerStopped)
    assert (stopped.reason, stopped.step, outputs.actions) == ("preempted", 0, ())
    assert core.handle(NodeDrained("e1"), NOW_S).actions == ()
    assert core.gangs == {}


def test_one_that_waits_when_its_lease_ends_is_over() -> None:
    core = lost_at_the_edge()
    tell(core, "lease", RenewLease(until_s=NOW_S + 10))
    core.handle(LOST, NOW_S)
    (stopped,) = events(core.handle(Tick(), NOW_S + 10))
    assert (stopped.reason, core.gangs) == ("lease_ended", {})


def test_one_whose_owner_leaves_as_its_lease_ends_begins_when_that_is_renewed() -> None:
    """In one turn the owner has left, the lease is renewed, and only then it is looked at."""
    core = lost_at_the_edge()
    tell(core, "lease", RenewLease(until_s=LEASE_S))
    core.handle(LOST, NOW_S)
    assert core.handle(NodeDrained("e1"), LEASE_S).actions == ()
    outputs = tell(core, "more", RenewLease(until_s=LEASE_S + 900.0), LEASE_S)
    assert [type(action) for action in outputs.actions] == [KeepLease, StartWorkers]
    assert core.handle(Tick(), LEASE_S) == Outputs()


def test_one_that_waits_takes_another_size_without_a_restart() -> None:
    core = lost_at_the_edge()
    core.handle(LOST, NOW_S)
    assert tell(core, "c", scale(e1=[0, 1])).actions == ()
    (begun,) = core.handle(NodeDrained("e1"), NOW_S).actions
    assert isinstance(begun, StartWorkers)
    assert (begun.epoch, begun.placement) == (2, {"e1": (0, 1)})


def booted() -> AgentCore:
    """One that begins with a node on loan, where nothing runs; it has its owner leave again."""
    core = AgentCore("a", EDGE, RESUME)
    tell(core, "lend", LendNode(node="e1", loan="L1"))
    core.handle(NodeDrained("e1"), NOW_S)
    core = again(core, specs=EDGE)
    assert core.handle(Birth(), NOW_S).actions[1:] == (DrainNode("e1"),)
    return core


def test_a_new_gang_waits_until_an_owner_that_was_booted_too_has_left_again() -> None:
    """It began beside the owner's server, on one GPU with it."""
    core = booted()
    outputs = tell(core, "start", start(step=7, e1=[0]).model_copy(update={"transfer_s": 3.0}))
    assert (ack(outputs), outputs.actions) == (("start", "done", ""), ())
    begun = StartWorkers("j", 1, {"e1": (0,)}, SPEC, 7, 3.0)
    assert core.handle(NodeDrained("e1"), NOW_S).actions == (begun,)
    (started,) = core.handle(GangStarted("j", 1, 7), NOW_S).events
    assert started.causation == "start"
    assert tell(core, "again", start("k", 1, e1=[1])).actions != (), "once"


def test_a_new_gang_that_waits_may_be_stopped_or_given_another_size() -> None:
    core = booted()
    tell(core, "start", start(e1=[0]))
    assert tell(core, "scale", scale(e1=[1])).actions == ()
    begun = StartWorkers("j", 2, {"e1": (1,)}, SPEC, 0, 0.0)
    assert core.handle(NodeDrained("e1"), NOW_S).actions == (begun,)
    core = booted()
    tell(core, "start", start(e1=[0]))
    assert kinds(tell(core, "stop", stop())) == ["WorkerStopped"]
    assert core.handle(NodeDrained("e1"), NOW_S).actions == ()


def test_a_gang_that_runs_takes_no_more_of_a_node_before_its_owner_has_left_again() -> None:
    core = lost_at_the_edge()
    assert "has not left again" in refusal(tell(core, "c2", scale(e1=[0, 1])))
    core.handle(NodeDrained("e1"), NOW_S)
    (grown,) = tell(core, "c3", scale(epoch=3, e1=[0, 1])).actions
    assert isinstance(grown, ScaleWorkers)
