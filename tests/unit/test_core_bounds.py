"""One decision holds no more than an entry of the journal may; the next ones do the rest."""

from typing import Any

import orjson
import pytest

from scheduler.core import reconcile, set_sizes
from scheduler.core.canonical import state_to_json
from scheduler.core.facts import RequestRefused, SubmissionRefused
from scheduler.core.restore import state_from_dict
from scheduler.core.settings import Settings, settings_from
from scheduler.core.stimuli import LeaderStarted
from scheduler.core.tenant_bytes import JOB_BYTES
from scheduler.policies.interface import Figure, Plan, Reason
from schemas.events import JobCancelled, JobSubmitted
from schemas.programs import Program
from schemas.requests import ScaleJob, SubmitJob
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


def test_a_tenants_jobs_take_no_more_of_the_state_than_it_may() -> None:
    settings = Settings(tenant_jobs_mib=3.5 * JOB_BYTES / 2**20, forget_s=600.0)
    cell = Cell().told(LeaderStarted("next", 2, "scripted", settings.to_dict()))
    long = Program(argv=["x" * JOB_BYTES], env={"A": "1"})
    others = submitted("other").model_copy(update={"tenant": "u"})
    big = submitted("big").model_copy(update={"program": long})
    cell.told(submitted("j0"), submitted("j1"), others)
    assert refused(cell, big)[0] == (
        "t's jobs take the 0.0136719 MiB that a tenant's may (scheduler.settings.tenant_jobs_mib): "
        "4 KiB each, and what their commands take; those that ended count for 0.166667 h"
    )
    cell.told(submitted("j2"), submitted("j3"))
    assert [*cell.state.jobs] == ["j0", "j1", "other", "j2"]
    assert not refused(cell, submitted("j2")), "it is there already"
    asked = request_of(cell.now_s, SubmitJob(spec=submitted("j3")), "r")
    (no,) = [fact for fact in cell.feed(asked).facts if isinstance(fact, RequestRefused)]
    assert no.field == "args.spec.tenant"
    for name in ("j0", "j1"):
        cell.feed(JobCancelled(job=name))
    assert refused(cell, submitted("j3")), "those that ended are remembered"
    cell.wait(700.0)
    assert not refused(cell, big)
    again = state_from_dict(orjson.loads(state_to_json(cell.state)))
    assert cell.state.bytes_taken("t") == again.bytes_taken("t") == 3 * JOB_BYTES + 2


def test_leaders_of_before_took_all_jobs_of_a_tenant() -> None:
    recorded = Settings().to_dict()
    del recorded["tenant_jobs_mib"]
    assert settings_from(recorded).tenant_jobs_mib is None
    assert settings_from(Settings().to_dict()) == Settings()


def refused(cell: Cell, job: JobSubmitted) -> list[str]:
    """Submit a job; say why it was refused, if it was."""
    facts = cell.feed(job).facts
    return [fact.reason for fact in facts if isinstance(fact, SubmissionRefused)]


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
