"""Quotas on random clusters: limits hold, guarantees come first, and nothing is left idle."""

from dataclasses import dataclass, replace
from math import nan

import numpy as np
from hypothesis import example, given, settings, strategies as st

from scheduler.policies.interface import Kind, Plan, Snapshot
from scheduler.policies.tide.commitments import PROMISED
from scheduler.policies.tide.market import open_market
from scheduler.policies.tide.tide import Tide
from tests.drawn import Draw, drawn
from tests.effort import examples
from tests.markets import Opened, opened, plan
from tests.property.test_policies import TENANTS, jobs_in, random_snapshot, snapshots
from tests.snapshots import NEVER, Job, Pool, apply, snapshot

FAR = 10**9


def random_quotas(rng: np.random.Generator, gpus: int) -> dict[str, str]:
    found = {}
    for tenant in TENANTS:
        least = int(rng.integers(0, gpus // 3 + 2))
        most = least + int(rng.integers(0, gpus // 2 + 2))
        if rng.random() < 0.6:
            found[tenant] = str(rng.choice([f"{least}..{most}", f"{least}..", f"..{most}"]))
    return found


@dataclass(frozen=True)
class Case:
    """A cluster, quotas, and what came of them."""

    seen: Snapshot
    quotas: dict[str, str]
    plan: Plan

    def most(self, tenant: str) -> int:
        """Return a tenant's limit."""
        return int(self.quotas.get(tenant, "..").partition("..")[2] or FAR)


def with_promises(rng: np.random.Generator, seen: Snapshot) -> Snapshot:
    """Note that some jobs were promised to be in time, and that some of those lend."""
    notes = seen.jobs.notes.copy()
    for job in (rng.random(len(notes)) < 0.4).nonzero()[0].tolist():
        lends = rng.random() < 0.3
        until_s = seen.now_s + rng.uniform(-500.0, 3000.0)
        back = (rng.choice([1, 2, 4, 8]), until_s) if lends else (nan, nan)
        notes[job, :3] = (PROMISED, *back)
    return replace(seen, jobs=replace(seen.jobs, notes=notes))


def case(seen: Snapshot, quotas: dict[str, str]) -> Case:
    return Case(seen, quotas, plan(seen, Tide(quotas=quotas)))


def found_by(seed: int, *, promises: bool = False) -> Case:
    """Make the case that a seed made when it failed."""
    seen = random_snapshot(np.random.default_rng(seed))
    if promises:
        seen = with_promises(np.random.default_rng([seed, 1]), seen)
    return case(seen, random_quotas(np.random.default_rng(seed), int(seen.nodes.gpus.sum())))


@st.composite
def cases(draw: Draw, *, promises: bool = False) -> Case:
    seen = draw(snapshots())
    if promises and draw(st.booleans()):
        seen = with_promises(drawn(draw), seen)
    return case(seen, random_quotas(drawn(draw), int(seen.nodes.gpus.sum())))


def market(one: Case) -> Opened | None:
    """Return the market before loans change; None if there is none."""
    found = open_market(one.seen, {})
    if not len(found.rows) or not len(found.sites):
        return None
    return opened(one.seen, Tide(quotas=one.quotas))


def held(one: Case, after: dict[str, int]) -> dict[str, int]:
    """Return the GPUs of each tenant."""
    found = dict.fromkeys(one.seen.jobs.tenants, 0)
    for name, tenant in zip(one.seen.jobs.ids, one.seen.jobs.tenants, strict=True):
        found[tenant] += after.get(name, 0)
    return found


def counted(one: Case, found: Opened) -> tuple[list[str], dict[str, int]]:
    """Return whose the jobs on the market are, and what tenants have until leavers have left."""
    jobs, rows = one.seen.jobs, found.market.rows.tolist()
    most = dict(zip(jobs.ids, jobs.size.tolist(), strict=True))
    for row, gpus in zip(rows, found.market.sizes[found.found.level].tolist(), strict=True):
        most[jobs.ids[row]] = max(most[jobs.ids[row]], gpus)
    return [jobs.tenants[row] for row in rows], held(one, most)


@given(one=cases(promises=True))
@example(found_by(185, promises=True))  # a promised job comes before others of its tenant have left
@settings(max_examples=examples(150))
def test_nobody_has_more_than_its_limit(one: Case) -> None:
    """But for those that a limit met where they were, until those that move have settled."""
    jobs = one.seen.jobs
    rows = set(open_market(one.seen, dict(one.plan.reclaim)).rows.tolist())
    sizes = dict(zip(jobs.ids, jobs.size.tolist(), strict=True))
    kept = jobs.notes[:, 0] == PROMISED
    fixed = {name for row, name in enumerate(jobs.ids) if row not in rows or kept[row]}
    apart = held(one, {name: sizes[name] for name in fixed})
    new = {name: target.size if target else 0 for name, target in one.plan.targets.items()}
    for tenant, gpus in held(one, {**sizes, **new}).items():
        assert gpus <= max(one.most(tenant), apart[tenant]), "more than what may not be touched"
    both = {name: max(gpus, sizes[name]) for name, gpus in new.items()}
    for tenant, gpus in held(one, {**sizes, **both}).items():
        before = held(one, sizes)[tenant]
        assert gpus <= max(one.most(tenant), before), "somebody comes before others have left"


@given(one=cases())
@example(found_by(500220))  # a right is worth more than that those who run stay
@example(found_by(315597))  # who has to wait for its own tenant's jobs to leave takes nobody's room
@example(found_by(31237))  # one that may not be touched, on a lent node beside one that went back
@settings(max_examples=examples(150))
def test_guarantees_are_served_before_what_others_have_beyond(one: Case) -> None:
    """Who is within a guarantee and waits fits in at no site beside promises and its like."""
    found = market(one)
    if found is None:
        return
    opens, got, bound = found.market, found.found, found.promises.bound
    waits = found.within & (got.level == 0)
    waits[found.promises.apart] = False
    tenants, has = counted(one, found)
    for site in (one.seen.pools.kind[opens.sites] != Kind.EDGE).nonzero()[0].tolist():
        kept = int(opens.sizes[found.promises.floor[bound == site]].sum())
        mine = found.within & (got.site == site) & (got.level > 0)
        kept += int(opens.sizes[np.minimum(opens.base, got.level)[mine]].sum())
        for job in waits.nonzero()[0].tolist():
            able = (found.value[site, job, 1:] > 0).nonzero()[0]
            gpus = int(opens.sizes[1 + able[0]]) if len(able) else FAR
            if has[tenants[job]] + gpus <= one.most(tenants[job]):
                assert opens.gpus[site] - kept < gpus


@given(one=cases())
@settings(max_examples=examples(150))
def test_nothing_is_idle_that_somebody_below_its_limit_could_use(one: Case) -> None:
    found = market(one)
    if found is None:
        return
    opens, got, bound = found.market, found.found, found.promises.bound
    tenants, has = counted(one, found)
    lends = {kept.site for kept in found.promises.kept if kept.schedule.lending}
    for site in (one.seen.pools.kind[opens.sites] != Kind.EDGE).nonzero()[0].tolist():
        idle = int(opens.gpus[site] - opens.sizes[got.level[got.site == site]].sum())
        could = (bound < 0) & ((got.level == 0) | (got.site == site))
        could[found.promises.apart] = False
        for job in could.nonzero()[0].tolist() if site not in lends else ():
            room = min(idle, one.most(tenants[job]) - has[tenants[job]])
            extra = opens.sizes - opens.sizes[got.level[job]]
            now = found.value[site, job, got.level[job]]
            able = (extra > 0) & (extra <= room) & (found.value[site, job] > now + 1e-9)
            assert not able.any(), (job, site)


POOLS = [Pool("train", nodes=3), Pool("other", nodes=2, speed=0.8)]


@st.composite
def jobs_under_quotas(draw: Draw) -> tuple[list[Job], dict[str, str], dict[str, str]]:
    """Draw jobs, their tenants, and quotas."""
    jobs = [
        Job(one.id, work_s=one.work_s + 100, sizes=one.sizes or (1,), submit_s=one.submit_s)
        for one in draw(jobs_in(POOLS))
    ]
    tenants = {one.id: draw(st.sampled_from(TENANTS)) for one in jobs}
    return jobs, tenants, random_quotas(drawn(draw), 40)


@given(drawn_jobs=jobs_under_quotas())
@settings(max_examples=examples(60))
def test_it_comes_to_rest_under_quotas(
    drawn_jobs: tuple[list[Job], dict[str, str], dict[str, str]],
) -> None:
    jobs, tenants, quotas = drawn_jobs
    policy, found = Tide(quotas=quotas), Plan()
    for cycle in range(12):
        if cycle >= 8:  # a change that came lately is an advantage to stay, which fades
            jobs = [replace(job, changed_s=NEVER) for job in jobs]
        seen = snapshot(POOLS, jobs, now_s=200_000.0 + 60 * cycle)
        names = tuple(tenants[name] for name in seen.jobs.ids)
        found = plan(replace(seen, jobs=replace(seen.jobs, tenants=names)), policy)
        jobs = apply(seen, found, jobs)
    assert dict(found.targets) == {}
