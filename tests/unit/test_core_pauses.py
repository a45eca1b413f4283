"""Pauses of starts and of loans: held by the core, whatever the policy wants."""

from scheduler.core import facts
from scheduler.policies.interface import Plan, Reason
from schemas.commands import LendNode
from schemas.requests import PauseCell, ResumeCell
from tests.asked import ask, save_and_leave, told_why
from tests.builders import Cell, load, node_born, submitted, target, two_jobs


def test_in_a_pause_nothing_starts_or_grows_and_the_rest_goes_on() -> None:
    cell = two_jobs()
    cell.run("j0", n0=2)
    ask(cell, PauseCell(what="starts"), reason="the chillers")
    seen = cell.seen()
    assert seen.jobs.ids == ("j0",), "who waits is not shown: nobody is stopped for it"
    assert list(seen.jobs.rate[0] > 0) == [True, True, False, False]
    cell.plan({"j0": target(n0=4)})
    assert (cell.job("j0").size, told_why(cell)) == (
        2,
        [("waits", "operator.pause"), ("keeps", "operator.pause")],
    )
    assert (cell.job("j1").why or {})["rule"] == "operator.pause"
    cell.plan({"j0": target(n1=2)})
    assert cell.job("j0").allocation == {"n1": [0, 1]}, "it may move"
    cell.start_workers("j0")
    cell.leave("j0", "n0", [0, 1], cell.job("j0").epoch)
    cell.plan({"j0": target(n1=1)})
    assert cell.job("j0").size == 1, "and shrink"
    ask(cell, ResumeCell(what="all"))
    assert cell.seen().jobs.ids == ("j0", "j1")
    cell.plan({"j1": target(n0=4)})
    assert cell.job("j1").state == "starting"


def test_a_pause_takes_the_claims_of_starts_and_of_growth() -> None:
    cell = two_jobs(node_born("n2"))
    cell.run("j0", n0=4)
    cell.plan({"j0": None, "j1": target(n0=4)})
    ask(cell, PauseCell(what="all"))
    assert cell.state.claimants == []
    save_and_leave(cell)
    cell.wait(300.0)
    assert {job.state for job in cell.state.jobs.values()} == {"queued"}


def test_in_a_pause_of_loans_no_node_is_lent_and_what_is_lent_goes_back() -> None:
    cell = Cell().told(node_born("s0", pool="serve", kind="inference"), load())
    cell.told(node_born("s1", pool="serve", kind="inference"), submitted("j0"))
    cell.plan(lend=["s0"])
    cell.acks()
    ask(cell, PauseCell(what="loans"))
    said = Reason("s1", "lends", "loans.idle")
    cell.adopt(Plan(lend=("s1",), reasons=(said,)))
    assert (cell.sent(LendNode), cell.last.reasons) == ([], ())
    cell.plan({"j0": target("serve", s0=2)})
    assert cell.job("j0").state == "starting", "starts go on"
    cell.plan(reclaim={"s0": cell.now_s})
    assert cell.state.nodes["s0"].loan_state == "reclaiming"
    ask(cell, ResumeCell(what="loans"))
    cell.plan(lend=["s1"])
    assert len(cell.sent(LendNode)) == 1


def test_what_is_said_of_a_node_is_not_said_of_a_job_of_its_name() -> None:
    cell = Cell().told(node_born("n0"), node_born("s0", pool="serve", kind="inference"), load())
    cell.told(submitted("s0"))
    cell.adopt(Plan(reasons=(Reason("s0", "waits", "market.price"),)))
    lends = Reason("s0", "lends", "loans.idle")
    cell.adopt(Plan(lend=("s0",), reasons=(lends,)))
    assert cell.last.reasons == (lends,), "it is told of"
    assert (cell.job("s0").why or {})["rule"] == "market.price"


def test_a_pause_ends_at_its_time() -> None:
    cell = two_jobs()
    end_s = cell.now_s + 1234.0
    ask(cell, PauseCell(what="all", until_s=end_s))
    assert (cell.engine.wake_s or 0.0) <= end_s
    cell.wait(1225.0)
    assert sorted(cell.state.standing.pauses) == ["loans", "starts"]
    assert cell.engine.wake_s == end_s
    cell.now_s = end_s
    cell.plan()
    resumed = [fact for fact in cell.last.facts if isinstance(fact, facts.CellResumed)]
    assert [(fact.what, fact.by) for fact in resumed] == [("loans", ""), ("starts", "")]
    assert cell.seen().jobs.ids == ("j0", "j1")


def test_a_pause_that_is_asked_for_again_has_the_new_end() -> None:
    cell = two_jobs()
    ask(cell, PauseCell(what="starts", until_s=cell.now_s + 100.0))
    ask(cell, PauseCell(what="starts"))
    cell.wait(3600.0)
    assert list(cell.state.standing.pauses) == ["starts"]
