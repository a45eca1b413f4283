"""One decision holds no more than an entry of the journal may; the next ones do the rest."""

from typing import Any

import pytest

from scheduler.core import reconcile, set_sizes
from scheduler.policies.interface import Figure, Plan, Reason
from schemas.requests import ScaleJob
from tests.builders import Cell, node_born, request_of, submitted, target


def test_a_plan_is_adopted_as_far_as_one_decision_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "CHANGES_MAX", 2)
    names = [f"j{number}" for number in range(3)]
    cell = Cell().told(node_born("n0"), *map(submitted, names))
    reasons = tuple(Reason(name, "starts", "test") for name in names)
    plan: dict[str, Any] = {name: target(n0=1) for name in names}
    cell.adopt(Plan(plan, reasons=reasons))
    assert [bool(cell.job(name).allocation) for name in names] == [True, True, False]
    assert cell.job("j2").why is None, "it did not start, so nobody says that it does"
    assert not cell.job("j2").refused
    cell.acks()
    cell.adopt(Plan({"j2": target(n0=1)}))
    assert cell.job("j2").allocation


def test_who_waits_is_told_why_as_far_as_one_decision_may_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile, "REASONS_MAX", 4)
    names = [f"j{number}" for number in range(3)]
    cell = Cell().told(node_born("n0"), *map(submitted, names))
    figure = Figure("x", 1.0)
    reasons = tuple(Reason(name, "waits", "test", (figure,)) for name in names)
    cell.adopt(Plan(reasons=reasons))
    assert [cell.job(name).why is not None for name in names] == [True, True, False]
    cell.adopt(Plan(reasons=reasons))
    assert cell.job("j2").why is not None, "the rest is told with the next plan"


def test_no_gang_spans_more_nodes_than_an_order_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (reconcile, set_sizes):
        monkeypatch.setattr(part, "MAX_NODES_PER_GANG", 2)
    nodes = [node_born(f"n{number}", gpus=1) for number in range(4)]
    cell = Cell().told(*nodes, submitted("j0"))
    cell.plan({"j0": target(n0=1, n1=1, n2=1)})
    assert (cell.job().state, cell.job().refused) == ("queued", True)
    cell.run("j0", n0=1, n1=1)
    cell.feed(request_of(cell.now_s, ScaleJob(job="j0", gpus=4), "r"))
    cell.plan()
    assert (cell.job().state, cell.job().target) == ("running", None)
