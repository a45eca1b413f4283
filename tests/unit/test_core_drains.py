"""Cordons and drains: held by the core, whatever the policy wants."""

import pytest

from scheduler.core import facts
from scheduler.core.canonical import state_to_json
from scheduler.core.stimuli import Decision, NodeSilent
from scheduler.policies.interface import Figure, Phase, Plan, Reason
from scheduler.policies.registry import make_policy
from schemas.commands import StopGang
from schemas.events import JobCancelled, NodeDied
from schemas.requests import CordonNode, DrainNode, SetQuota, UncordonNode
from tests.asked import ask
from tests.builders import Cell, load, node_born, submitted, target, two_jobs


def drain(cell: Cell, node: str = "n0", in_s: float = 1800.0, *, force: bool = False) -> Decision:
    return ask(cell, DrainNode(node=node, by_s=cell.now_s + in_s, force=force))


def ended(cell: Cell) -> list[str]:
    return [fact.outcome for fact in cell.last.facts if isinstance(fact, facts.DrainEnded)]


def rules(cell: Cell) -> list[str]:
    return [reason.rule for reason in cell.last.reasons]


def test_a_cordoned_node_is_shown_with_the_gpus_of_its_gangs_alone() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    ask(cell, CordonNode(node="n0"))
    seen = cell.seen()
    assert (seen.nodes.ids, list(seen.nodes.gpus), seen.nodes.free[0]) == (("n0", "n1"), [2, 4], 0)
    assert seen.jobs.phase[0] == Phase.MOVING, "who waits is not to count on what it has"
    cell.plan({"j0": None})
    assert cell.job("j0").state == "running", "nobody else could have what it has"
    cell.plan({"j0": target(n0=1)})
    assert cell.job("j0").allocation == {"n0": [0, 1]}
    cell.plan({"j1": target(n0=2)})
    assert cell.job("j1").target is None
    assert "plan.refused" in rules(cell)
    why = Reason("j0", "preempts", "market.outbid", (), ("j1",))
    cell.adopt(Plan({"j0": None, "j1": target(n0=2)}, reasons=(why,)))
    assert rules(cell) == ["plan.refused"], "nobody says that j0 lost what it keeps"
    cell.plan({"j1": target(n1=2)})
    assert cell.job("j1").allocation == {"n1": [0, 1]}
    ask(cell, CordonNode(node="n1"))
    ask(cell, UncordonNode(node="n0"))
    assert list(cell.seen().nodes.gpus) == [4, 2]


@pytest.mark.parametrize("name", ["tide", "afs", "srtf"])
def test_no_policy_gives_others_what_stays_with_a_gang_on_a_cordoned_node(name: str) -> None:
    cell, policy = two_jobs(), make_policy(name)
    cell.run("j0", n0=4)
    ask(cell, CordonNode(node="n0"))
    for short in ("j2", "j3"):
        cell.feed(submitted(short, gpus_max=4, total_steps=500))
    for _ in range(3):
        plan = policy.plan(cell.seen())
        placed = [place for goes in plan.targets.values() if goes for place in goes.placement]
        assert {node for node, _ in placed} <= {"n1"}
        cell.adopt(plan)
        assert "plan.refused" not in rules(cell)
        cell.now_s += 60.0
    assert len(cell.job("j0").allocation["n0"]) == 4
    assert sum(job.size for job in cell.state.jobs.values()) > 4, "and n1 is in use"
    for name in ("j1", "j2", "j3"):
        cell.feed(JobCancelled(job=name))
    assert cell.seen().jobs.phase[0] == Phase.RUNNING, "while nobody waits, it may grow elsewhere"


def test_jobs_that_can_never_start_keep_no_gang_on_a_cordoned_node_at_its_size() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    cell.feed(JobCancelled(job="j1"))
    ask(cell, CordonNode(node="n0"))
    cell.feed(submitted("large", gpus_min=8))
    assert list(cell.seen().jobs.phase) == [Phase.RUNNING, Phase.WAITING], "two and four are six"
    cell.feed(submitted("memory").model_copy(update={"memory_mib": 80_001}))
    assert cell.seen().jobs.phase[0] == Phase.RUNNING
    cell.feed(submitted("barred").model_copy(update={"tenant": "u"}))
    assert cell.seen().jobs.phase[0] == Phase.MOVING
    ask(cell, SetQuota(tenant="u", gpus=0), role="admin")
    assert cell.seen().jobs.phase[0] == Phase.RUNNING
    ask(cell, SetQuota(tenant="u", gpus=4, jobs=0), role="admin")
    assert cell.seen().jobs.phase[0] == Phase.RUNNING
    ask(cell, SetQuota(tenant="u", gpus=1), role="admin")
    assert cell.seen().jobs.phase[0] == Phase.MOVING
    ask(cell, SetQuota(tenant="u", gpus=0), role="admin")
    cell.adopt(make_policy("tide").plan(cell.seen()))
    cell.acks()
    assert cell.job("j0").size > 2, "it grows"


def test_a_job_that_a_policy_could_plan_on_a_closed_node_keeps_its_gang_as_it_is() -> None:
    cell = two_jobs()
    cell.run("j0", n0=4)
    cell.feed(JobCancelled(job="j1"))
    ask(cell, CordonNode(node="n0"))
    cell.feed(submitted("large", gpus_min=8))
    assert cell.seen().jobs.phase[0] == Phase.MOVING, "it is shown eight"


def test_a_gang_moves_off_a_cordoned_node_on_loan_that_goes_back() -> None:
    serve = [node_born(name, pool="serve", kind="inference") for name in ("s0", "s1")]
    cell = Cell().told(*serve, node_born("n0"), load(), submitted("j0", gpus_max=4))
    cell.plan(lend=["s1"])
    cell.acks()
    cell.run("j0", pool="serve", s1=4)
    cell.feed(submitted("waits", gpus_min=8))
    ask(cell, CordonNode(node="s1"))
    cell.feed(load(8))
    cell.adopt(make_policy("tide").plan(cell.seen()))
    assert cell.job("j0").target == {"n0": [0, 1, 2, 3]}


def test_a_gang_with_a_part_on_a_cordoned_node_may_be_changed() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2, n1=2)
    ask(cell, CordonNode(node="n0"))
    assert cell.seen().jobs.phase[0] == Phase.RUNNING


def test_a_gang_moves_off_a_cordoned_node() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    ask(cell, CordonNode(node="n0"))
    cell.plan({"j0": target(n1=2)})
    assert cell.job("j0").allocation == {"n1": [0, 1]}
    cell.start_workers("j0")
    cell.leave("j0", "n0", [0, 1], cell.job("j0").epoch)
    assert cell.seen().nodes.ids == ("n1",), "an empty one is not shown"


def test_a_gang_with_a_part_on_a_cordoned_node_grows_elsewhere_and_shrinks_off_it() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2, n1=1)
    ask(cell, CordonNode(node="n0"))
    cell.plan({"j0": target(n0=2, n1=2)})
    assert cell.job("j0").allocation == {"n0": [0, 1], "n1": [0, 1]}
    cell.start_workers("j0")
    cell.plan({"j0": target(n1=2)})
    assert cell.job("j0").allocation == {"n1": [0, 1]}
    assert cell.job("j0").leaving == {"n0": [0, 1]}


def test_a_claim_that_keeps_a_part_of_a_node_is_refused_once_that_is_drained() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2, n1=1)
    cell.run("j1", n1=3)
    ask(cell, CordonNode(node="n0"))
    cell.plan({"j1": None, "j0": target(n0=2, n1=2)})
    assert cell.job("j0").target == {"n0": [0, 1], "n1": [0, 1]}
    drain(cell)
    assert cell.job("j0").target is None


def test_a_claim_onto_a_node_that_is_cordoned_meanwhile_is_refused_with_its_reason() -> None:
    cell = two_jobs()
    cell.run("j0", n0=4)
    cell.plan({"j0": None, "j1": target(n0=4)})
    assert cell.job("j1").target == {"n0": [0, 1, 2, 3]}
    ask(cell, CordonNode(node="n0"))
    (dropped,) = [fact for fact in cell.last.facts if isinstance(fact, facts.TargetDropped)]
    assert dropped.reason == "n0 is cordoned by ann"
    assert "plan.refused" in rules(cell)
    assert cell.job("j1").target is None


def test_a_cordoned_node_is_not_lent_and_one_on_loan_still_goes_back() -> None:
    cell = Cell().told(node_born("s0", pool="serve", kind="inference"), load())
    cell.told(node_born("s1", pool="serve", kind="inference"), submitted("j0"))
    ask(cell, CordonNode(node="s0"))
    assert cell.seen().nodes.ids == ("s1",)
    cell.plan(lend=["s1"])
    cell.acks()
    ask(cell, CordonNode(node="s1"))
    seen = cell.seen()
    assert (seen.nodes.ids, list(seen.nodes.usable), list(seen.nodes.free)) == (("s1",), [0], [0])
    cell.plan(reclaim={"s1": cell.now_s + 60.0})
    cell.acks()
    assert cell.state.nodes["s1"].loan is None, "it is its owner's again"
    assert cell.seen().nodes.ids == ()


def test_a_drain_lets_the_policy_move_a_gang_and_ends_empty() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    drain(cell)
    seen = cell.seen()
    assert (seen.nodes.ids, list(seen.nodes.usable)) == (("n0", "n1"), [False, True])
    assert seen.jobs.phase[0] == Phase.RUNNING
    cell.plan({"j0": target(n1=2)})
    assert cell.job("j0").state == "scaling", "it moves within its site, and need not stop"
    assert cell.job("j0").leaving == {"n0": [0, 1]}
    cell.start_workers("j0")
    cell.leave("j0", "n0", [0, 1], cell.job("j0").epoch)
    assert ended(cell) == ["empty"]
    assert not cell.state.standing.drains
    assert "n0" in cell.state.standing.cordons


def test_a_gang_that_the_policy_does_not_move_saves_and_waits() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    drain(cell)
    assert cell.job("j0").state == "running", "the policy is asked first"
    cell.plan({})
    assert cell.job("j0").state == "checkpointing"
    assert "operator.drain" in rules(cell)
    (order,) = cell.sent(StopGang)
    assert (order.reason, order.checkpoint) == ("preempted", True)
    cell.save("j0", 70)
    cell.stop_workers("j0", step=70)
    assert ended(cell) == ["empty"]
    job = cell.job("j0")
    assert (job.state, job.checkpoint_step) == ("queued", 70)
    why = job.why
    assert why is not None
    assert why["rule"] == "operator.drain"
    assert cell.seen().nodes.ids == ("n1",), "it stays cordoned"


def test_that_a_policy_moves_a_gang_for_a_drain_is_not_taken_for_its_owners_wish() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    cell.run("j1", n1=2)
    drain(cell)
    owner = [Reason(job, "preempts", "loans.reclaim", lost_to=("train",)) for job in ("j0", "j1")]
    cell.adopt(Plan({"j0": None}, reasons=tuple(owner)))
    first, second = (one for one in cell.last.reasons if one.verb == "preempts")
    end_s = cell.state.standing.drains["n0"].by_s
    assert first == Reason("j0", "preempts", "operator.drain", (Figure("drain_by_s", end_s),))
    assert second == owner[1], "no drain is about it"


def test_at_its_deadline_a_drain_ends_and_what_is_left_stays_cordoned() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    drain(cell, in_s=300.0)
    cell.plan({})
    end_s = cell.state.standing.drains["n0"].by_s
    assert cell.engine.wake_s is not None
    assert cell.engine.wake_s <= end_s
    while "n0" in cell.state.standing.drains:
        cell.wait(60.0)
    assert ended(cell) == ["deadline"]
    assert cell.now_s < end_s + 60.0
    assert "n0" in cell.state.standing.cordons


def test_by_force_what_is_left_at_the_deadline_is_stopped_without_a_save() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    drain(cell, in_s=300.0, force=True)
    cell.plan({})
    assert cell.job("j0").state == "checkpointing"
    cell.wait(360.0)
    assert cell.job("j0").state == "stopping"
    assert "n0" in cell.state.standing.drains, "until it is empty"
    cell.stop_workers("j0")
    assert ended(cell) == ["empty"]
    assert cell.job("j0").state == "queued"


def test_a_drain_of_an_empty_or_a_dead_node_ends_at_once() -> None:
    cell = two_jobs()
    drain(cell)
    assert ended(cell) == ["empty"]
    cell.feed(NodeDied(node="n1"))
    drain(cell, "n1")
    assert ended(cell) == ["empty"]


def test_a_drain_is_called_off_by_uncordoning() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    drain(cell)
    ask(cell, UncordonNode(node="n0"))
    assert ended(cell) == ["called_off"]
    cell.plan({})
    assert cell.job("j0").state == "running"
    assert cell.seen().nodes.ids == ("n0", "n1")


def test_a_cordon_outlives_the_death_and_rebirth_of_the_node() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    drain(cell)
    cell.feed(NodeSilent("n0", cell.now_s - 200.0))
    cell.wait(3600.0)
    assert cell.state.nodes["n0"].state == "dead"
    assert not cell.state.standing.drains
    cell.reborn(node_born("n0"))
    assert cell.state.nodes["n0"].state == "alive"
    assert "n0" not in cell.seen().nodes.ids
    cell.plan({"j1": target(n1=1)})
    assert cell.job("j1").allocation == {"n1": [0]}


def test_a_repeated_request_changes_nothing() -> None:
    cell = two_jobs()
    ask(cell, CordonNode(node="n0"), id="same")
    ask(cell, UncordonNode(node="n0"), id="other")
    assert ask(cell, CordonNode(node="n0"), id="same").facts == ()
    assert not cell.state.standing.cordons


def test_a_state_without_requests_has_the_form_that_it_had_before_there_were_any() -> None:
    cell = two_jobs()
    assert b'"standing"' not in state_to_json(cell.state)
    ask(cell, CordonNode(node="n0"))
    assert b'"drains"' not in state_to_json(cell.state)
