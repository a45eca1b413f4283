"""Claims end: none waits for another, the hopeless are refused, only the unanswered time out."""

import pytest

from scheduler.core.evolve import apply
from scheduler.core.facts import RefusalsNoted, TargetSet
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
    held = {node: len(gpus) for node, gpus in job.allocation.items()}
    return (job.state, held, job.target, job.leaving) == ("running", placement, None, {})


def test_two_gangs_that_swap_gpus_leave_at_once(cell: Cell) -> None:
    cell.run("A", n0=2, n1=2)
    cell.run("B", n0=2, n1=2)
    cell.plan({"A": target(n0=4), "B": target(n1=4)})
    stops = cell.sent(StopGang)
    assert [(stop.job, stop.reason, stop.checkpoint) for stop in stops] == [
        ("A", "migrated", True),
        ("B", "migrated", True),
    ]
    said = [(reason.subject, reason.verb, reason.rule) for reason in cell.last.reasons]
    assert said == [("A", "migrates", "claims.in_way"), ("B", "migrates", "claims.in_way")]
    assert [reason.lost_to for reason in cell.last.reasons] == [("B",), ("A",)]
    gone(cell, "B")
    assert not cell.sent(StartGang)
    assert cell.state.nodes["n1"].claim == ["B"] * 4, "what B left and will have is kept for it"
    gone(cell, "A")
    starts = cell.sent(StartGang)
    assert [(start.job, start.step) for start in starts] == [("A", 7), ("B", 7)]
    assert settled(cell, "A", n0=4)
    assert settled(cell, "B", n1=4)
    totals = cell.state.totals
    assert (totals.claims, totals.claims_timed_out, totals.preemptions) == (4, 0, 0)


def test_a_gang_in_nobodys_way_runs_on_until_its_gpus_are_free(cell: Cell) -> None:
    cell.run("A", n0=4)
    cell.run("B", n1=4)
    old = cell.job("A").epoch
    cell.plan({"A": target(n0=2), "B": target(n0=2)})
    assert [order.job for order in cell.sent()] == ["A"]
    assert cell.job("B").state == "running"
    cell.acks()
    cell.leave("A", "n0", [2, 3], old)
    assert [order.job for order in cell.sent()] == ["B"]


def test_in_a_chain_nobody_waits_for_more_than_one_gang(cell: Cell) -> None:
    """C waits for B, B for A: B leaves when A does, not after it."""
    cell.run("A", n0=4)
    cell.run("B", n1=4)
    cell.plan({"A": None, "B": target(n0=4), "C": target(n1=4)})
    assert [stop.job for stop in cell.sent(StopGang)] == ["A", "B"]
    gone(cell, "B")
    assert [start.job for start in cell.sent(StartGang)] == ["C"]
    gone(cell, "A")
    assert [start.job for start in cell.sent(StartGang)] == ["B"]


def test_a_gang_that_changes_its_size_in_place_shrinks_to_what_stays(cell: Cell) -> None:
    cell.run("A", n0=2, n1=2)
    in_place(cell, "E")
    job = cell.run("E", n0=2, n1=2)
    old = job.epoch
    cell.plan({"A": target(n0=4), "E": target(n1=4)})
    stop, scale = cell.sent()
    assert (type(stop), stop.job) == (StopGang, "A")
    assert (type(scale), scale.job, job.allocation) == (ScaleGang, "E", {"n1": [2, 3]})
    assert job.target == {"n1": [0, 1, 2, 3]}
    assert [reason.verb for reason in cell.last.reasons] == ["migrates", "scales_in"]
    cell.acks()
    cell.leave("E", "n0", [2, 3], old)
    cell.start_workers("E")
    gone(cell, "A")
    assert settled(cell, "A", n0=4)
    assert settled(cell, "E", n1=4)
    assert cell.job("E").state == "running"


def test_gangs_that_save_for_long_are_waited_for_at_work(cell: Cell) -> None:
    cell.feed(submitted("X", total_steps=10**8).model_copy(update={"checkpoint_cost_s": 500.0}))
    cell.run("A", n0=2, n1=2)
    cell.run("X", n0=2, n1=2)
    cell.plan({"A": target(n0=4), "X": target(n1=4)})
    scale, stop = cell.sent()
    assert (type(scale), scale.job, cell.job("A").size) == (ScaleGang, "A", 2)
    assert (type(stop), stop.job) == (StopGang, "X")


@pytest.mark.parametrize(("stays", "gpus_min"), [(3, 1), (2, 3)], ids=["no speed", "too small"])
def test_nothing_shrinks_to_what_it_may_not_have(cell: Cell, stays: int, gpus_min: int) -> None:
    for name in "EF":
        in_place(cell, name, gpus_min=gpus_min)
    cell.run("E", n0=stays, n1=4 - stays)
    cell.run("F", n0=4 - stays, n1=stays)
    cell.plan({"E": target(n0=4), "F": target(n1=4)})
    assert [(type(stop), stop.job) for stop in cell.sent()] == [(StopGang, "E"), (StopGang, "F")]


def test_pools_that_swap_their_gangs(cell: Cell) -> None:
    cell.run("A", n0=4)
    cell.run("B", "far", f0=4)
    cell.plan({"A": target("far", f0=4), "B": target(n0=4)})
    assert [stop.job for stop in cell.sent(StopGang)] == ["A", "B"]
    gone(cell, "A")
    assert not cell.sent(StartGang), "one that moves leaves the whole of its old place first"
    gone(cell, "B")
    assert {start.job for start in cell.sent(StartGang)} == {"A", "B"}
    assert settled(cell, "A", f0=4)
    assert settled(cell, "B", n0=4)


def test_of_a_ring_all_leave_and_who_only_waits_for_it_stays_until_its_turn(cell: Cell) -> None:
    cell.run("A", n0=3)
    cell.run("B", n1=3)
    cell.run("C", n2=3)
    cell.run("D", "far", f0=1)
    plan = {"A": target(n1=3), "B": target(n2=3), "C": target(n0=3), "D": target(n2=1)}
    cell.plan(plan)
    leaving = [(stop.job, stop.reason) for stop in cell.sent(StopGang)]
    assert leaving == [(name, "migrated") for name in "ABCD"][: len(leaving)]
    assert {"A", "B", "C"} <= {name for name, _ in leaving}
    assert all(cell.job(name).target for name in "ABC")


def test_who_left_for_others_and_lost_its_new_place_waits_for_another(cell: Cell) -> None:
    cell.run("A", n0=4)
    cell.run("D", "far", f0=4)
    cell.plan({"A": target("far", f0=3), "B": target(n0=4), "D": target("far", f0=1)})
    cell.acks()
    cell.feed(NodeDied(node="f0"))
    assert [bool(cell.job(name).target) for name in "AB"] == [False, True]
    gone(cell, "A")
    assert cell.job("A").state == "queued"
    assert [start.job for start in cell.sent(StartGang)] == ["B"]


def test_a_claim_on_gpus_that_stay_with_another_is_refused(cell: Cell) -> None:
    """No plan leads there; a journal might."""
    cell.run("A", n0=4)
    apply(cell.state, TargetSet("B", "train", {"n0": [0]}, "starts"))
    cell.plan({"C": target(n1=4)})
    assert (cell.job("B").target, cell.job("B").refused) == (None, True)
    said = {reason.subject: (reason.verb, reason.lost_to) for reason in cell.last.reasons}
    assert said["B"] == ("waits", ("A",))
    seen = View().snapshot(cell.state)
    assert [seen.jobs.ids[at] for at in seen.jobs.refused.nonzero()[0]] == ["B"]
    cell.plan({"B": target(n2=2)})
    assert not cell.job("B").refused


def test_a_claim_on_gpus_that_a_gang_goes_on_with_is_refused_and_the_gang_stays(cell: Cell) -> None:
    """As above: the gang has a claim of its own, and keeps these GPUs by it."""
    cell.run("A", n0=4)
    cell.run("D", n1=4)
    cell.plan({"D": None, "A": target(n0=4, n1=4)})
    cell.acks()
    apply(cell.state, TargetSet("B", "train", {"n0": [0]}, "starts"))
    cell.plan({"C": target(n2=1)})
    assert (cell.job("B").target, cell.job("B").refused) == (None, True)
    said = {reason.subject: (reason.rule, reason.lost_to) for reason in cell.last.reasons}
    assert said["B"] == ("plan.refused", ("A",))
    assert [order.job for order in cell.sent()] == ["C"], "A does not leave for it"
    cell.acks()
    cell.stop_workers("D", "preempted", step=7)
    assert cell.job("A").allocation == {"n0": [0, 1, 2, 3], "n1": [0, 1, 2, 3]}


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


def test_agents_that_do_not_answer_time_out_what_waits_for_them_alone(cell: Cell) -> None:
    cell.run("A", n0=4)
    cell.run("B", n1=4)
    cell.plan({"A": target(n0=2), "B": target(n0=2, n1=1), "C": target(n1=3)})
    cell.acks()
    cell.start_workers("A")
    gone(cell, "B")
    assert [start.job for start in cell.sent(StartGang)] == ["C"]
    cell.start_workers("C")
    cell.wait(540.0)
    assert cell.job("B").target is not None
    cell.wait(60.0)
    assert (cell.job("B").target, cell.job("B").state) == (None, "queued")
    totals = cell.state.totals
    assert (totals.claims, totals.claims_timed_out) == (5, 1)
    (reason,) = (reason for reason in cell.last.reasons if reason.subject == "B")
    assert (reason.rule, reason.lost_to) == ("claims.unanswered", ("A",))
    assert any(command.kind == "Rebirth" for command in cell.state.commands.values())
