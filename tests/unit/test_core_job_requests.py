"""Holds, requeues, priorities, set sizes: held by the core, whatever the policy wants."""

from typing import Any

import pytest

from scheduler.core import facts
from scheduler.core.evolve import apply
from scheduler.policies.interface import Plan, Reason
from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import JobCancelled
from schemas.requests import (
    HoldJob,
    PauseCell,
    PrioritiseJob,
    ReleaseJob,
    RequeueJob,
    ResumeCell,
    ScaleJob,
    VerbData,
)
from tests.asked import ask, refusal, save_and_leave, told_why
from tests.builders import Cell, node_born, submitted, target, two_jobs

# --- hold, release -----------------------------------------------------------------------------


def test_a_held_job_that_waits_is_not_shown_and_not_started() -> None:
    cell = two_jobs()
    ask(cell, HoldJob(job="j0"), reason="data is wrong")
    assert cell.seen().jobs.ids == ("j1",)
    assert told_why(cell) == [("waits", "operator.hold")]
    hold = cell.state.standing.holds["j0"]
    assert (hold.by, hold.role, hold.reason) == ("ann", "operator", "data is wrong")
    cell.plan({"j1": target(n0=2)})
    assert cell.job("j1").state == "starting"
    ask(cell, ReleaseJob(job="j0"))
    assert cell.seen().jobs.ids == ("j0", "j1")
    assert cell.seen().jobs.tenants == ("t", "t")
    cell.plan({"j0": target(n1=2)})
    assert cell.job("j0").state == "starting"


def test_no_plan_may_name_a_held_job_that_waits() -> None:
    cell = two_jobs()
    ask(cell, HoldJob(job="j0"))
    cell.plan({"j0": target(n1=2)})
    (failed,) = [fact for fact in cell.last.facts if isinstance(fact, facts.PolicyFailed)]
    assert failed.error == "MalformedPlan: targets: there is no 'j0'"


def test_a_hold_takes_the_claim_of_a_job_that_is_about_to_start() -> None:
    cell = two_jobs()
    cell.run("j0", n0=4)
    cell.plan({"j0": None, "j1": target(n0=4)})
    assert cell.job("j1").target is not None
    ask(cell, HoldJob(job="j1"))
    assert cell.job("j1").target is None
    save_and_leave(cell)
    assert cell.job("j1").state == "queued"
    assert cell.sent(StartGang) == []


def test_a_held_job_that_runs_saves_leaves_and_waits_with_its_work() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    ask(cell, HoldJob(job="j0"))
    (order,) = cell.sent(StopGang)
    assert (order.checkpoint, order.reason) == (True, "preempted")
    assert cell.job("j0").state == "checkpointing"
    save_and_leave(cell)
    job = cell.job("j0")
    assert (job.state, job.checkpoint_step, job.preemptions, job.failures) == ("queued", 7, 0, 0)
    assert cell.seen().jobs.ids == ("j1",)
    cell.wait(1200.0)
    assert (job.why or {})["rule"] == "operator.hold"
    ask(cell, ReleaseJob(job="j0"))
    cell.plan({"j0": target(n1=1)})
    (start,) = cell.sent(StartGang)
    assert start.step == 7


def test_a_hold_ends_a_start_and_a_move_that_are_under_way() -> None:
    cell = two_jobs(node_born("f0", pool="fast"))
    cell.plan({"j0": target(n0=2)})
    ask(cell, HoldJob(job="j0"))
    assert cell.job("j0").state == "stopping"
    cell.acks()
    cell.stop_workers("j0")
    assert cell.job("j0").state == "queued"
    cell.run("j1", n0=2)
    cell.plan({"j1": target("fast", f0=2)})
    assert cell.job("j1").state == "checkpointing"
    ask(cell, HoldJob(job="j1"))
    save_and_leave(cell, "j1")
    assert (cell.job("j1").state, cell.job("j1").target) == ("queued", None)
    assert cell.seen().jobs.ids == ()


def test_a_held_job_is_promised_nothing_and_that_is_said() -> None:
    cell = Cell().told(node_born("n0"), submitted("j0", deadline_s=2e6))
    apply(cell.state, facts.JobsNoted({"j0": [1.0, 2.0]}, "tide"))
    ask(cell, HoldJob(job="j0"))
    (reason,) = cell.last.reasons
    assert [(figure.name, figure.value) for figure in reason.figures] == [("unpromised_s", 2e6)]
    assert cell.job("j0").note == []


def test_a_hold_ends_with_its_job() -> None:
    cell = two_jobs()
    ask(cell, HoldJob(job="j0"))
    ask(cell, ScaleJob(job="j0", gpus=2))
    cell.feed(JobCancelled(job="j0"))
    assert (cell.state.standing.holds, cell.state.standing.sizes) == ({}, {})


def test_a_tenant_releases_its_own_hold_and_no_operators() -> None:
    cell = two_jobs()
    tenant: dict[str, Any] = {"role": "tenant", "subject": "bo"}
    ask(cell, HoldJob(job="j0"), **tenant)
    ask(cell, ReleaseJob(job="j0"), **tenant)
    assert not cell.state.standing.holds
    ask(cell, HoldJob(job="j0"))
    field, why = refusal(ask(cell, ReleaseJob(job="j0"), **tenant))
    assert (field, why) == (
        "args.job",
        "j0 is held by ann, an operator; only operators release it",
    )
    ask(cell, HoldJob(job="j1"), **tenant)
    ask(cell, ScaleJob(job="j1", gpus=2))
    ask(cell, ReleaseJob(job="j1"), **tenant)
    assert (list(cell.state.standing.holds), list(cell.state.standing.sizes)) == (["j0"], ["j1"])
    field, why = refusal(ask(cell, ReleaseJob(job="j1"), **tenant))
    assert "ann, an operator, set its size" in why


# --- requeue, priority -------------------------------------------------------------------------


def test_a_requeued_job_saves_leaves_and_may_start_at_once() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    ask(cell, RequeueJob(job="j0"))
    assert told_why(cell) == [("preempts", "operator.requeue")]
    save_and_leave(cell)
    assert (cell.job("j0").state, cell.job("j0").backoff_until_s) == ("queued", None)
    cell.plan({"j0": target(n1=2)})
    assert cell.job("j0").state == "starting"


def test_a_priority_is_shown_to_the_policy() -> None:
    cell = two_jobs()
    ask(cell, PrioritiseJob(job="j1", priority=7))
    assert list(cell.seen().jobs.priority) == [0, 7]
    assert cell.job("j1").priority == 7


# --- scale -------------------------------------------------------------------------------------


def test_a_waiting_job_is_shown_the_set_size_alone_and_starts_at_it() -> None:
    cell = two_jobs()
    ask(cell, ScaleJob(job="j0", gpus=4))
    jobs = cell.seen().jobs
    assert (list(jobs.sizes), list(jobs.rate[0] > 0)) == ([1, 2, 4, 8], [False, False, True, False])
    assert (jobs.requested[0], list(jobs.rate[1] > 0)) == (4, [True] * 4)
    cell.plan({"j0": target(n0=2)})
    assert cell.job("j0").state == "queued"
    assert told_why(cell) == [("waits", "operator.scale")]
    cell.plan({"j0": target(n0=4)})
    assert cell.job("j0").state == "starting"
    ask(cell, ScaleJob(job="j0", gpus=None))
    assert list(cell.seen().jobs.rate[0] > 0) == [True] * 4


def test_a_running_job_grows_to_its_size_on_free_gpus_of_its_site() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    ask(cell, ScaleJob(job="j0", gpus=8), reason="a demo")
    assert list(cell.seen().jobs.rate[0] > 0) == [False, True, False, True]
    cell.plan()
    (order,) = cell.sent(ScaleGang)
    assert {part.node: part.gpus for part in order.placement} == {
        "n0": [0, 1, 2, 3],
        "n1": [0, 1, 2, 3],
    }
    assert ("scales_out", "operator.scale") in told_why(cell)
    cell.acks()
    cell.start_workers("j0")
    assert cell.job("j0").size == 8
    assert list(cell.seen().jobs.rate[0] > 0) == [False, False, False, True]
    cell.plan({"j0": target(n0=2)})
    assert cell.job("j0").size == 8, "a plan with another size is refused"
    assert told_why(cell) == [("keeps", "operator.scale")]
    cell.plan({"j0": None})
    assert cell.job("j0").state == "checkpointing", "it may still be preempted"


def test_a_running_job_shrinks_to_its_size_on_few_nodes() -> None:
    cell = two_jobs()
    cell.run("j0", n0=1, n1=3)
    ask(cell, ScaleJob(job="j0", gpus=2))
    cell.plan()
    assert cell.job("j0").allocation == {"n1": [0, 1]}
    assert cell.job("j0").leaving == {"n0": [0], "n1": [2]}


def test_a_size_that_cannot_be_had_now_is_said_with_what_is_missing() -> None:
    cell = two_jobs()
    cell.run("j0", n0=4)
    cell.run("j1", n1=2)
    ask(cell, ScaleJob(job="j0", gpus=8))
    plain = Reason("j0", "keeps", "market.price")
    cell.adopt(Plan(reasons=(plain,)))
    (reason,) = cell.last.reasons
    assert (reason.verb, reason.rule) == ("keeps", "operator.scale")
    assert [(need.name, need.have, need.want) for need in reason.needs] == [("free_gpus", 2.0, 4.0)]
    assert (cell.job("j0").size, cell.job("j0").target) == (4, None)
    cell.plan()
    assert cell.last.reasons == (), "it is said once"
    cell.plan({"j1": None})
    cell.acks()
    cell.stop_workers("j1")
    cell.plan()
    assert cell.job("j0").size == 8


def test_a_set_size_keeps_to_its_tenants_limit() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    cell.run("j1", n1=1)
    ask(cell, ScaleJob(job="j0", gpus=4))
    cell.adopt(Plan(limits={"t": 4}))
    (reason,) = cell.last.reasons
    assert [(figure.name, figure.value) for figure in reason.figures] == [
        ("gpus", 4.0),
        ("limit_gpus", 4.0),
    ]
    assert cell.job("j0").size == 2
    cell.adopt(Plan(limits={"t": 5}))
    assert cell.job("j0").size == 4


def test_a_claim_on_another_size_is_given_up() -> None:
    cell = two_jobs()
    cell.run("j0", n0=4)
    cell.plan({"j0": None, "j1": target(n0=4)})
    ask(cell, ScaleJob(job="j1", gpus=2))
    assert cell.job("j1").target is None
    assert told_why(cell) == [("waits", "operator.scale")]


# --- refusals ----------------------------------------------------------------------------------

TENANT: dict[str, Any] = {"role": "tenant", "tenant": "u"}
OWN: dict[str, Any] = {"role": "tenant", "tenant": "t"}
VIEWER: dict[str, Any] = {"role": "viewer"}
REFUSED: list[tuple[VerbData, dict[str, Any], str, str]] = [
    *[
        (made, how, field, part)
        for made in (
            HoldJob(job="nope"),
            ReleaseJob(job="nope"),
            RequeueJob(job="nope"),
            PrioritiseJob(job="nope", priority=1),
            ScaleJob(job="nope", gpus=1),
        )
        for how, field, part in (
            ({}, "args.job", "there is no job nope"),
            (VIEWER, "role", "is viewer"),
        )
    ],
    *[
        (made, {}, "args.job", "gone is cancelled already")
        for made in (
            HoldJob(job="gone"),
            ReleaseJob(job="gone"),
            RequeueJob(job="gone"),
            PrioritiseJob(job="gone", priority=1),
            ScaleJob(job="gone", gpus=1),
        )
    ],
    *[
        (made, TENANT, "args.job", "j0 is another tenant's, not u's")
        for made in (HoldJob(job="j0"), ReleaseJob(job="j0"), RequeueJob(job="j0"))
    ],
    (PrioritiseJob(job="j0", priority=1), OWN, "role", "for operator or admin"),
    (ScaleJob(job="j0", gpus=1), OWN, "role", "for operator or admin"),
    (PauseCell(), OWN, "role", "for operator or admin"),
    (ResumeCell(), OWN, "role", "for operator or admin"),
    (ReleaseJob(job="j0"), {}, "args.job", "j0 is not held, and nobody set its size"),
    (RequeueJob(job="j0"), {}, "args.job", "j0 waits already"),
    (ScaleJob(job="j0", gpus=3), {}, "args.gpus", "3 is no size of j0; it declares 1, 2, 4, 8"),
    (ScaleJob(job="j0", gpus=16), {}, "args.gpus", "16 is no size of j0"),
    (ScaleJob(job="j0", gpus=None), {}, "args.gpus", "chooses the size of j0 already"),
    (HoldJob(job="leaves"), {}, "args.job", "leaves was cancelled, and is leaving"),
    (PauseCell(until_s=5.0), {}, "args.until_s", "past; name a later time"),
    (ResumeCell(), {}, "args.what", "nothing of this is paused"),
    (ResumeCell(what="loans"), {}, "args.what", "is not paused"),
]


@pytest.mark.parametrize(("args", "how", "field", "part"), REFUSED)
def test_what_may_not_be_is_refused_and_does_nothing(
    args: VerbData, how: dict[str, Any], field: str, part: str
) -> None:
    cell = two_jobs().told(submitted("gone"), JobCancelled(job="gone"), submitted("leaves"))
    cell.run("leaves", n0=1)
    cell.feed(JobCancelled(job="leaves"))
    decision = ask(cell, args, **how)
    said, why = refusal(decision)
    assert said == field
    assert part in why
    assert [type(fact).__name__ for fact in decision.facts] == ["RequestRefused"]
