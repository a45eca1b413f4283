"""Claims end: circles are broken, the hopeless are refused, and only the unanswered time out."""

import pytest

from scheduler.core.facts import RefusalsNoted
from scheduler.core.view import View
from scheduler.policies.interface import Target
from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import NodeDied
from tests.builders import Cell, node_born, submitted, target


@pytest.fixture
def cell() -> Cell:
    cell = Cell().told(*map(node_born, ("n0", "n1", "n2")), node_born("f0", pool="far"))
    return cell.told(*(submitted(name, total_steps=10**8) for name in "ABCD"))


def in_place(cell: Cell, name: str, **costs: float) -> None:
    """Submit a job whose number of workers changes without a restart."""
    job = submitted(name, total_steps=10**8).model_dump()
    job |= {"program": {"argv": ["x"], "resize": "in_place"}, **costs}
    cell.feed(type(submitted()).model_validate(job))


def gone(cell: Cell, name: str) -> None:
    """A gang that was told to go says that it went."""
    cell.acks()
    cell.stop_workers(name, "migrated", step=7)


def settled(cell: Cell, name: str, **placement: int) -> bool:
    """Bring up what a job was told to run on; whether that is all it shall have."""
    cell.acks()
    cell.start_workers(name)
    job = cell.job(name)
    held = {node: len(gpus) for node, gpus in job.cells.items()}
    return (job.state, held, job.target, job.leaving) == ("running", placement, None, {})


def test_two_gangs_that_swap_gpus(cell: Cell) -> None:
    cell.run("A", n0=2, n1=2)
    b = cell.run("B", n0=2, n1=2)
    cell.plan({"A": target(n0=4), "B": target(n1=4)})
    (stop,) = cell.sent()
    assert (type(stop), stop.job, stop.reason, stop.checkpoint) == (StopGang, "A", "migrated", True)
    (reason,) = cell.last.reasons
    assert (reason.subject, reason.verb, reason.rule) == ("A", "migrates", "claims.circle")
    assert reason.lost_to == ("B",)
    old = b.epoch
    gone(cell, "A")
    (scale,) = cell.sent()
    assert (type(scale), scale.job, cell.job("A").state) == (ScaleGang, "B", "migrating")
    assert cell.state.nodes["n0"].claim == ["A"] * 4, "what A left and will have is kept for it"
    cell.leave("B", "n0", [2, 3], old)
    (start,) = cell.sent()
    assert (type(start), start.job, start.step) == (StartGang, "A", 7)
    assert settled(cell, "A", n0=4)
    assert settled(cell, "B", n1=4)
    totals = cell.state.totals
    assert (totals.claims, totals.claims_timed_out, totals.preemptions) == (4, 0, 0)


def test_a_gang_that_changes_its_size_in_place_shrinks_to_what_stays(cell: Cell) -> None:
    cell.run("A", n0=2, n1=2)
    in_place(cell, "E")
    job = cell.run("E", n0=2, n1=2)
    old = job.epoch
    cell.plan({"A": target(n0=4), "E": target(n1=4)})
    (scale,) = cell.sent()
    assert (type(scale), scale.job, job.cells) == (ScaleGang, "E", {"n1": [2, 3]})
    assert job.target == {"n1": [0, 1, 2, 3]}
    assert cell.last.reasons[0].verb == "scales_in"
    cell.acks()
    before = cell.job("A").epoch
    cell.leave("E", "n0", [2, 3], old)
    (scale,) = cell.sent()
    assert scale.job == "A"
    cell.start_workers("E")
    cell.leave("A", "n1", [0, 1], before)
    assert settled(cell, "A", n0=4)
    assert settled(cell, "E", n1=4)
    assert cell.job("E").state == "running"


def test_gangs_that_save_for_long_are_waited_for_at_work(cell: Cell) -> None:
    cell.feed(submitted("X", total_steps=10**8).model_copy(update={"checkpoint_cost_s": 500.0}))
    cell.run("A", n0=2, n1=2)
    cell.run("X", n0=2, n1=2)
    cell.plan({"A": target(n0=4), "X": target(n1=4)})
    (scale,) = cell.sent()
    assert (type(scale), scale.job, cell.job("A").size) == (ScaleGang, "A", 2)


@pytest.mark.parametrize(("stays", "gpus_min"), [(3, 1), (2, 3)], ids=["no speed", "too small"])
def test_nothing_shrinks_to_what_it_may_not_have(cell: Cell, stays: int, gpus_min: int) -> None:
    for name in "EF":
        in_place(cell, name, gpus_min=gpus_min)
    cell.run("E", n0=stays, n1=4 - stays)
    cell.run("F", n0=4 - stays, n1=stays)
    cell.plan({"E": target(n0=4), "F": target(n1=4)})
    (stop,) = cell.sent()
    assert (type(stop), stop.job) == (StopGang, "E")


def test_pools_that_swap_their_gangs(cell: Cell) -> None:
    cell.run("A", n0=4)
    cell.run("B", "far", f0=4)
    cell.plan({"A": target("far", f0=4), "B": target(n0=4)})
    (stop,) = cell.sent(StopGang)
    assert stop.job == "A"
    gone(cell, "A")
    (stop,) = cell.sent(StopGang)
    assert stop.job == "B"
    gone(cell, "B")
    assert {order.job for order in cell.sent(StartGang)} == {"A", "B"}
    assert settled(cell, "A", f0=4)
    assert settled(cell, "B", n0=4)


def test_of_a_ring_the_smallest_leaves_and_nobody_behind_it(cell: Cell) -> None:
    cell.run("A", n0=3)
    cell.run("B", n1=2)
    cell.run("C", n2=3)
    cell.run("D", n1=1)  # waits for the ring, and is not in it
    plan = {"A": target(n1=3), "B": target(n2=3), "C": target(n0=4), "D": target(n2=1)}
    cell.plan(plan)
    (stop,) = cell.sent()
    assert (stop.job, stop.reason) == ("B", "migrated")
    assert all(cell.job(name).target for name in "AB")


def test_what_waits_for_a_gang_that_stays_is_refused_with_it(cell: Cell) -> None:
    """A chain: C waits for B, B for A, whose own place is lost on the way."""
    cell.run("A", n0=4)
    cell.run("B", n1=4)
    cell.run("D", "far", f0=4)
    plan = {"A": target("far", f0=3), "B": target(n0=4), "C": target(n1=4)}
    cell.plan({**plan, "D": target("far", f0=1)})
    assert [bool(cell.job(name).target) for name in "ABC"] == [True] * 3
    cell.acks()
    cell.feed(NodeDied(node="f0"))
    assert [cell.job(name).target for name in "ABC"] == [None] * 3
    said = [(reason.subject, reason.verb, reason.lost_to) for reason in cell.last.reasons]
    assert said[-2:] == [("B", "keeps", ("A",)), ("C", "waits", ("B",))]
    seen = View().snapshot(cell.state)
    assert [seen.jobs.ids[at] for at in seen.jobs.refused.nonzero()[0]] == ["B", "C"]
    cell.plan({"B": target(n1=2)})
    assert not cell.job("B").refused


def test_a_refused_target_is_shown_until_one_is_taken(cell: Cell) -> None:
    cell.run("A", n0=4)

    def refused(wanted: Target | None) -> bool:
        cell.plan({"B": wanted} if wanted else {})
        return cell.job("B").refused

    assert refused(target(n0=1))
    assert [reason.rule for reason in cell.last.reasons] == ["plan.refused"]
    assert refused(None)
    assert refused(target(n0=1))
    assert not [fact for fact in cell.last.facts if isinstance(fact, RefusalsNoted)], "no news"
    assert not refused(target(n1=1))


def test_a_reclaim_ends_claims_on_its_node(cell: Cell) -> None:
    cell.feed(node_born("i0", pool="infer", kind="inference"))
    cell.plan(lend=["i0"])
    cell.acks()
    cell.run("A", "infer", i0=4)
    cell.plan({"A": target("infer", i0=2), "B": target("infer", i0=2)})
    cell.acks()
    assert cell.job("B").target is not None
    cell.plan(reclaim={"i0": cell.now_s + 900.0})
    assert (cell.job("B").target, cell.job("B").refused) == (None, True)


def test_agents_that_do_not_answer_time_out_one_claim_and_the_rest_is_refused(cell: Cell) -> None:
    cell.run("A", n0=4)
    cell.run("B", n1=4)
    cell.plan({"A": target(n0=2), "B": target(n0=2, n1=1), "C": target(n1=3)})
    cell.acks()
    cell.start_workers("A")
    cell.wait(540.0)
    assert cell.job("B").target is not None
    assert cell.job("C").target is not None
    cell.wait(60.0)
    assert [cell.job(name).target for name in "BC"] == [None, None]
    totals = cell.state.totals
    assert (totals.claims, totals.claims_timed_out) == (5, 1)
    rules = {reason.subject: reason.rule for reason in cell.last.reasons}
    assert (rules["B"], rules["C"]) == ("claims.unanswered", "plan.refused")
    assert any(command.kind == "Rebirth" for command in cell.state.commands.values())


def test_a_chain_of_slow_gangs_is_no_silence(cell: Cell) -> None:
    """Each takes 400 s to leave, so that the last claim waits for longer than the time-out."""
    cell.run("A", n0=4)
    cell.run("B", n1=4)
    cell.run("C", n2=4)
    epochs = {name: cell.job(name).epoch for name in "ABC"}
    plan = {"A": target(n0=1), "B": target(n0=3), "C": target(n1=4), "D": target(n2=4)}
    cell.plan(plan)
    for name, node, gpus in (("A", "n0", [1, 2, 3]), ("B", "n1", [0, 1, 2, 3])):
        cell.acks()
        cell.start_workers(name)
        cell.wait(400.0)
        cell.leave(name, node, gpus, epochs[name])
    cell.acks()
    cell.start_workers("C")
    cell.wait(400.0)
    assert cell.state.totals.claims_timed_out == 0
    cell.leave("C", "n2", [0, 1, 2, 3], epochs["C"])
    assert cell.job("D").state == "starting"
