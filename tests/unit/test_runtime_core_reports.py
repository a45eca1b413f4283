"""The agent core: reports, leases and births in, events and actions out."""

import json
import os
from dataclasses import replace
from typing import Any

import pytest

from runtime.core import (
    AgentCore,
    Birth,
    CheckpointDone,
    CheckpointLost,
    GangCompleted,
    GangFailed,
    GangProgress,
    GangStarted,
    GangStopped,
    KeepLease,
    Limits,
    Outputs,
    Pace,
    StopWorkers,
    Tick,
    WorkersLeft,
)
from schemas.commands import (
    Rebirth,
    RenewLease,
    StopGang,
)
from schemas.events import (
    CheckpointFailed,
    JobProgressed,
    NodeBorn,
    NodeDied,
    WorkerFailed,
)
from tests.gangs import (
    NOW_S,
    SPECS,
    ack,
    agent,
    events,
    refusal,
    running,
    scale,
    start,
    tell,
)

# --- reports -------------------------------------------------------------------------------------


def test_progress_carries_what_a_crash_would_keep() -> None:
    core = running()
    core.handle(CheckpointDone("j", 1, 50, "uri", 100, 6.0), NOW_S)
    pace = Pace(64.0, 5.0, 4.0, 800.0)
    (said,) = events(core.handle(GangProgress("j", 1, 70, 12.5, pace), NOW_S))
    assert isinstance(said, JobProgressed)
    assert (said.job, said.epoch, said.step, said.samples_per_s) == ("j", 1, 70, 12.5)
    assert (said.checkpoint_step, said.checkpoint_cost_s) == (50, 6.0)
    assert Pace(said.batch, said.step_s, said.pass_s, said.gradient_noise) == pace


def test_a_job_that_begins_anew_whatever_it_saved_is_not_behind_its_checkpoint() -> None:
    core = running()
    core.handle(CheckpointDone("j", 1, 50, "uri", 100, 6.0), NOW_S)
    (said,) = events(core.handle(GangProgress("j", 1, 3, 12.5), NOW_S))
    assert (said.step, said.checkpoint_step) == (50, 50)


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


def test_that_no_worker_was_started_is_said_of_each_node() -> None:
    for report in (GangFailed("j", 1, "", ran=False), GangStopped("j", 1, 0, ran=False)):
        said = events(running(n1=[0], n2=[0]).handle(report, NOW_S))
        assert [(one.node, one.ran) for one in said] == [("n1", False), ("n2", False)]


def test_an_error_that_names_a_file_by_bytes_that_are_no_text_is_reported() -> None:
    core, name = running(), os.fsdecode(b"step-\xff")
    (lost,) = events(core.handle(CheckpointLost("j", 1, f"{name}: is no file"), NOW_S))
    assert lost == CheckpointFailed(job="j", epoch=1, error=r"step-\udcff: is no file")
    (failed,) = events(core.handle(GangFailed("j", 1, name + "x" * 2000), NOW_S))
    assert failed.error == r"step-\udcff" + "x" * 989


# --- leases, births ------------------------------------------------------------------------------


def test_without_any_lease_work_goes_on() -> None:
    core = running()
    assert core.next_due_s() is None
    assert not core.handle(Tick(), NOW_S + 500).actions


def test_the_lease_only_grows_and_its_end_stops_gangs_with_a_checkpoint() -> None:
    core = running(agent(Limits(lease_grace_s=30.0)))
    kept = tell(core, "r1", RenewLease(until_s=NOW_S + 100)).actions
    assert kept == (KeepLease(NOW_S + 100, 30.0),), "supervisors keep it too"
    assert not tell(core, "r2", RenewLease(until_s=NOW_S + 50)).actions
    assert core.next_due_s() == NOW_S + 100
    assert not core.handle(Tick(), NOW_S + 99).actions
    assert core.handle(Tick(), NOW_S + 100).actions == (StopWorkers("j", 1, True, 30.0),)
    assert not core.handle(Tick(), NOW_S + 101).actions
    assert core.next_due_s() is None
    (stopped,) = events(core.handle(GangStopped("j", 1, 0), NOW_S + 105))
    assert stopped.reason == "lease_ended"


@pytest.mark.parametrize(("given_s", "expected_s"), [(30.0, 30.0), (540.0, 220.0)])
def test_a_gang_that_is_given_long_to_leave_is_gone_soon_after_the_lease(
    given_s: float, expected_s: float
) -> None:
    """The scheduler starts its job elsewhere then; what it was told may have come late."""
    core = running(agent())
    tell(core, "r1", RenewLease(until_s=NOW_S + 100))
    order = StopGang(job="j", epoch=1, reason="preempted", checkpoint=True, grace_s=given_s)
    assert tell(core, "s1", order).actions == (StopWorkers("j", 1, True, expected_s),)
    core.handle(Tick(), NOW_S + 100)
    assert not core.handle(Tick(), NOW_S + 101).actions


def test_a_gang_that_its_supervisor_ended_with_the_lease_was_ended_by_the_lease() -> None:
    core = running(agent())
    tell(core, "r1", RenewLease(until_s=NOW_S + 100))
    again = AgentCore.from_dict("a", list(core.specs.values()), core.to_dict())
    kept, *_ = again.handle(Birth(("j",)), NOW_S + 500).actions
    assert kept == KeepLease(NOW_S + 100, 120.0)
    (stopped,) = events(again.handle(GangStopped("j", 1, 0), NOW_S + 500))
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


def test_workers_that_the_state_does_not_know_are_ended() -> None:
    kept, stopped = agent().handle(Birth(running=("j",)), NOW_S).actions
    assert isinstance(kept, KeepLease)
    assert stopped == StopWorkers("j", 0, False, 0.0)
    known = AgentCore.from_dict("a", SPECS, running().to_dict())
    assert [type(one) for one in known.handle(Birth(("j",)), NOW_S).actions] == [KeepLease]


def test_saved_state_that_does_not_fit_the_nodes_is_refused() -> None:
    rows = running(n2=[3]).to_dict()
    smaller = [SPECS[0], replace(SPECS[1], gpu_count=3)]
    with pytest.raises(ValueError, match="nodes: the saved state runs j on n2"):
        AgentCore.from_dict("a", smaller, rows)


def _reborn(rows: dict[str, Any], *running: str) -> tuple[AgentCore, Outputs]:
    """Start an agent anew that has the first node alone, from rows as they were stored."""
    core = AgentCore.from_dict("a", SPECS[:1], json.loads(json.dumps(rows)))
    return core, core.handle(Birth(running), NOW_S + 60)


def test_a_node_that_was_taken_out_of_the_configuration_is_said_dead_once() -> None:
    core = agent()
    core.handle(Birth(), NOW_S)
    rows = core.take_changes()
    for _ in range(2):  # the first time it crashes before that is stored
        core, outputs = _reborn(rows)
        dead, born = events(outputs)
        assert dead == NodeDied(node="n2", reason="is no longer in its agent's configuration")
        assert isinstance(born, NodeBorn)
    rows |= core.take_changes()
    stored = {key: row for key, row in rows.items() if row is not None}
    assert [type(event) for event in events(_reborn(stored)[1])] == [NodeBorn]


def test_gangs_on_a_node_that_was_taken_out_end_with_it() -> None:
    rows = running(n1=[0], n2=[3]).to_dict()
    core, outputs = _reborn(rows, "j")
    assert [type(event) for event in events(outputs)] == [NodeDied, NodeBorn]
    assert not core.gangs
    assert core.holder("n1") == (None,) * 4
    assert StopWorkers("j", 0, False, 0.0) in outputs.actions, "those on the other node, too"
    changes = core.take_changes()
    assert (changes["gang/j"], changes["node/n2"]) == (None, None)
    assert core.highest_epoch("j") == 1, "a late order must not start it again"


def test_farewell_names_every_node() -> None:
    assert events(agent().farewell("shut down", NOW_S)) == [
        NodeDied(node="n1", reason="shut down"),
        NodeDied(node="n2", reason="shut down"),
    ]


def test_a_start_of_before_it_said_goodbye_begins_nothing_when_it_is_back() -> None:
    core = agent()
    core.farewell("decommissioned", NOW_S)
    core = AgentCore.from_dict("a", SPECS, json.loads(json.dumps(core.to_dict())))
    core.handle(Birth(), NOW_S + 9)
    late = tell(core, "late", start(), NOW_S + 10, said_s=NOW_S + 1)
    assert "before this agent, which had left for good, came back" in refusal(late)
    core = AgentCore.from_dict("a", SPECS, json.loads(json.dumps(core.to_dict())))
    core.handle(Birth(), NOW_S + 20)
    new = tell(core, "new", start(epoch=2), NOW_S + 21, said_s=NOW_S + 10)
    assert ack(new)[1] == "done", "another restart, without a goodbye, voids nothing"


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
    assert outputs.actions[1:] == (StopWorkers("j", 1, True, 30.0),), "after the lease"
