"""Quotas that an administrator set: held by the core, whatever the policy wants."""

from typing import Any

import pytest

from scheduler.core import facts
from scheduler.core.stimuli import Decision
from scheduler.policies.interface import Need, Plan
from scheduler.policies.registry import make_policy
from schemas.events import JobSubmitted
from schemas.requests import ClearQuota, SetQuota, VerbData
from tests.builders import Cell, node_born, request_of, submitted, target


def ask(cell: Cell, args: VerbData, **over: Any) -> Decision:
    """An administrator asks for this now."""
    how = {"role": "admin", **over}
    return cell.feed(request_of(cell.now_s, args, f"r{cell.state.number}", **how))


def of(tenant: str, job: str, gpus_min: int = 1) -> JobSubmitted:
    return submitted(job, gpus_min=gpus_min).model_copy(update={"tenant": tenant})


def quota(gpus: int, jobs: int | None = None, tenant: str = "t", guaranteed: int = 0) -> SetQuota:
    return SetQuota(tenant=tenant, gpus=gpus, jobs=jobs, guaranteed=guaranteed)


@pytest.fixture
def cell() -> Cell:
    """Two nodes of four GPUs; jobs j0 to j2 of t, and one of another."""
    mine = [submitted(name) for name in ("j0", "j1", "j2")]
    return Cell().told(node_born("n0"), node_born("n1"), *mine, of("u", "other"))


def need(cell: Cell, job: str) -> Need:
    why = cell.job(job).why
    assert why is not None
    assert why["rule"] == "quota.tenant", why
    ((name, have, want),) = why["needs"]
    return Need(name, have, want)


def rates(cell: Cell) -> dict[str, list[int]]:
    """The sizes that are shown of each job."""
    jobs = cell.seen().jobs
    return {
        name: jobs.sizes[rate > 0].tolist() for name, rate in zip(jobs.ids, jobs.rate, strict=True)
    }


def test_a_plan_beyond_a_quota_is_refused_with_have_and_want(cell: Cell) -> None:
    ask(cell, quota(4))
    cell.plan({"j0": target(n0=2), "j1": target(n0=2), "j2": target(n1=2), "other": target(n1=2)})
    assert [cell.job(name).size for name in ("j0", "j1", "j2", "other")] == [2, 2, 0, 2]
    assert need(cell, "j2") == Need("quota_gpus", 4.0, 6.0)
    assert cell.job("j2").why["lost_to"] == ["j0", "j1"]  # type: ignore[index]
    assert cell.job("j2").refused, "the policy is told"


def test_a_job_that_runs_may_not_grow_beyond_it_and_goes_on_when_it_is_lowered(cell: Cell) -> None:
    cell.run("j0", n0=4)
    ask(cell, quota(2))
    assert cell.job("j0").state == "running"
    assert rates(cell)["j0"] == [1, 2, 4], "not 8: what it has, and what is less"
    assert rates(cell)["j1"] == []
    cell.plan({"j0": target(n0=4, n1=4)})
    assert cell.job("j0").target is None
    assert need(cell, "j0") == Need("quota_gpus", 2.0, 8.0)


def test_a_job_waits_until_others_of_its_tenant_have_left(cell: Cell) -> None:
    ask(cell, quota(4))
    cell.run("j0", n0=4)
    cell.plan({"j0": None, "j1": target(n1=4)})
    assert (cell.job("j0").state, cell.job("j1").target) == ("checkpointing", None)
    assert need(cell, "j1") == Need("quota_gpus", 4.0, 8.0)
    cell.stop_workers("j0")
    cell.plan({"j1": target(n1=4)})
    assert cell.job("j1").size == 4


def test_a_job_that_moves_counts_once(cell: Cell) -> None:
    ask(cell, quota(4))
    cell.run("j0", n0=4)
    cell.plan({"j0": target(n1=4)})
    assert cell.job("j0").target == {"n1": [0, 1, 2, 3]} or "n1" in cell.job("j0").allocation


def test_tide_counts_what_a_smaller_gang_is_still_to_leave(cell: Cell) -> None:
    """Its workers hold those GPUs until they have left, for as long as their agent is silent."""
    cell.run("j0", n0=4)
    cell.plan({"j0": target(n1=1)})
    assert (cell.job("j0").size, cell.job("j0").leaving) == (1, {"n0": [0, 1, 2, 3]})
    for most, gpus in ((5, 1), (4, 0)):
        plan = make_policy(f"tide:quotas.t=..{most}").plan(cell.seen())
        mine = [of.size for name, of in plan.targets.items() if of is not None and name != "other"]
        assert sum(mine) == gpus


def test_so_many_jobs_hold_gpus_at_once(cell: Cell) -> None:
    ask(cell, quota(8, jobs=1))
    cell.plan({"j0": target(n0=1), "j1": target(n0=1)})
    assert [cell.job(name).size for name in ("j0", "j1")] == [1, 0]
    assert need(cell, "j1") == Need("quota_jobs", 1.0, 2.0)
    assert rates(cell) == {"j0": [1, 2, 4, 8], "j1": [], "j2": [], "other": [1, 2, 4, 8]}


def test_a_policy_that_knows_no_quotas_is_shown_what_they_leave(cell: Cell) -> None:
    ask(cell, quota(3))
    cell.run("j0", n0=2)
    assert rates(cell) == {"j0": [1, 2], "j1": [1], "j2": [1], "other": [1, 2, 4, 8]}
    assert cell.seen().quotas == {"t": (0, 3)}
    cell.adopt(Plan())
    assert cell.job("j1").why is None, "it has a size that it could have"
    ask(cell, quota(2))
    cell.adopt(Plan())
    assert need(cell, "j1") == Need("quota_gpus", 2.0, 3.0)
    assert cell.job("other").why is None


def test_a_quota_is_replaced_and_cleared(cell: Cell) -> None:
    ask(cell, quota(3), reason="a test")
    ask(cell, quota(5, jobs=2, guaranteed=1), subject="bob")
    found = cell.state.standing.quotas["t"]
    assert (found.gpus, found.jobs, found.guaranteed, found.by) == (5, 2, 1, "bob")
    ask(cell, ClearQuota(tenant="t"))
    assert cell.state.standing.quotas == {}
    cell.plan({"j0": target(n0=4), "j1": target(n1=4)})
    assert [cell.job(name).size for name in ("j0", "j1")] == [4, 4]


REFUSED: list[tuple[VerbData, dict[str, Any], str, str]] = [
    (quota(3), {"role": "operator"}, "role", "is operator, but quota.set is for admin"),
    (quota(3), {"role": "tenant"}, "role", "is tenant"),
    (quota(3, guaranteed=4), {}, "args.guaranteed", "is 4, more than gpus, which is 3"),
    (ClearQuota(tenant="nobody"), {}, "args.tenant", "no quota was set for nobody"),
    (ClearQuota(tenant="t"), {"role": "operator"}, "role", "for admin"),
]


@pytest.mark.parametrize(("args", "how", "field", "part"), REFUSED)
def test_what_may_not_be_is_refused(
    cell: Cell, args: VerbData, how: dict[str, Any], field: str, part: str
) -> None:
    ask(cell, args, **how)
    (fact,) = cell.last.facts
    assert isinstance(fact, facts.RequestRefused)
    assert fact.field == field
    assert part in fact.reason
    assert cell.state.standing.quotas == {}


def test_tide_takes_it_in_place_of_its_own_option(cell: Cell) -> None:
    """Its own keeps j0 at one GPU; the administrator's word leaves both what they can use."""
    policy = make_policy("tide:quotas.t=..1")
    before = policy.plan(cell.seen())
    mine = (before.targets.get(name) for name in ("j0", "j1", "j2"))
    assert sum(one.size for one in mine if one is not None) == 1
    assert {r.rule for r in before.reasons if r.subject.startswith("j")} >= {"market.quota"}
    ask(cell, quota(4, tenant="t"))
    seen = cell.seen()
    after = policy.plan(seen)
    got = {name: target.size for name, target in after.targets.items() if target is not None}
    assert sum(size for name, size in got.items() if name.startswith("j")) in (3, 4)
    rules = {reason.rule for reason in after.reasons if reason.subject.startswith("j")}
    assert "market.quota" not in rules
