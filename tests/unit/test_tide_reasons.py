"""Why a job has what it has: the figures that decided, and what would have to change."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase, Need, Reason, Snapshot, Target
from scheduler.policies.tide import market
from scheduler.policies.tide.commitments import PROMISED
from scheduler.policies.tide.limits import clear_within
from scheduler.policies.tide.quotas import quotas_of
from scheduler.policies.tide.tide import Tide
from scheduler.policies.tide.worth import classes
from tests.markets import columns, noted, opened, plan, reason, sizes
from tests.snapshots import Job, Pool, snapshot

NOW_S = 10_000.0
TRAIN = Pool("train")


def test_who_waits_is_told_the_price_and_who_paid_it() -> None:
    jobs = [Job(f"j{n}", work_s=1000.0 * (n + 1), sizes=(4,)) for n in range(4)]
    found = plan(snapshot([TRAIN], jobs))
    for name, want in (("j2", 12), ("j3", 16)):
        told = reason(found, name)
        assert (told.verb, told.rule) == ("waits", "market.outbid")
        assert told.lost_to == ("j0", "j1")
        assert told.needs == (Need("gpus", 8, want),)
        worth, price = told.figures
        assert (worth.name, price.name) == ("worth_per_gpu", "price_per_gpu")
        assert 0 < worth.value <= price.value


def test_who_starts_shrinks_or_moves_is_told_what_its_gpus_are_worth() -> None:
    old = Job("old", work_s=360_000, held={"train-000": 8}, power=0.6)
    found = plan(snapshot([TRAIN], [old, Job("new", work_s=600, sizes=(4,))]))
    assert sizes(found) == {"old": 4, "new": 4}
    assert {(one.subject, one.verb, one.rule) for one in found.reasons} == {
        ("old", "scales_in", "market.price"),
        ("new", "starts", "market.price"),
    }
    told = {figure.name: figure.value for figure in reason(found, "old").figures}
    assert (told["gpus_before"], told["gpus_after"]) == (8, 4)
    assert told["worth_per_gpu"] >= told["price_per_gpu"] >= 0

    away = Job("away", work_s=72_000, sizes=(8,), held={"slow-000": 8})
    moved = reason(plan(snapshot([Pool("slow", speed=0.4), TRAIN], [away])), "away")
    assert (moved.verb, moved.rule) == ("migrates", "market.price")


def test_who_is_stopped_is_told_by_whom() -> None:
    old = Job("old", work_s=360_000, sizes=(8,), held={"train-000": 8})
    told = reason(plan(snapshot([TRAIN], [old, Job("new", work_s=600, sizes=(8,))])), "old")
    assert (told.verb, told.rule, told.lost_to) == ("preempts", "market.outbid", ("new",))
    assert told.needs == (Need("gpus", 8, 16),)


@pytest.mark.parametrize(
    ("job", "rule", "need"),
    [
        (Job("a", sizes=()), "gang.size", Need("allowed_sizes", 0, 1)),
        (Job("a", backoff_until_s=NOW_S + 5), "gang.backoff", Need("backoff_s", 5.0, 0.0)),
        (Job("a", memory_mib=9e4), "gang.no_pool", Need("gpu_memory_mib", 80_000, 90_000)),
    ],
)
def test_what_keeps_a_job_from_every_site(job: Job, rule: str, need: Need) -> None:
    told = reason(plan(snapshot([TRAIN], [job])), "a")
    assert (told.verb, told.rule, told.needs) == ("waits", rule, (need,))


def test_who_lends_is_told_until_when() -> None:
    usual = {"start_cost_s": 10.0, "checkpoint_cost_s": 0.0, "power": 1.0}
    jobs = [
        Job("a", 2000, held={"train-000": 4}, deadline_s=NOW_S + 600, **usual),  # type: ignore[arg-type]
        Job("b", 2000, held={"train-000": 4}, deadline_s=NOW_S + 600, **usual),  # type: ignore[arg-type]
        Job("c", 100, submit_s=1.0, deadline_s=NOW_S + 75, **usual),  # type: ignore[arg-type]
    ]
    found = plan(noted(snapshot([TRAIN], jobs), a=(PROMISED,), b=(PROMISED,)))
    lender = next(one for one in found.reasons if one.rule == "market.lends")
    told = {figure.name: figure.value for figure in lender.figures}
    assert told["deadline_s"] == NOW_S + 600
    assert NOW_S < told["back_s"] < NOW_S + 600
    told = {figure.name: figure.value for figure in reason(found, "c").figures}
    assert NOW_S < told["planned_end_s"] <= told["deadline_s"] == NOW_S + 75


def test_whose_node_goes_back_is_told_whose_it_is() -> None:
    infer = Pool("infer", Kind.INFERENCE, loan=LoanPhase.RECLAIMING, history=[8.0] * 60)
    job = Job("a", sizes=(8,), held={"infer-000": 8})
    full = Job("full", sizes=(8,), work_s=10.0, held={"train-000": 8})
    for jobs, verb in (([job], "migrates"), ([job, full], "preempts")):
        told = reason(plan(snapshot([infer, TRAIN], jobs)), "a")
        assert (told.verb, told.rule, told.lost_to) == (verb, "loans.reclaim", ("infer",))


def test_the_reason_to_wait_stays_the_same_while_nothing_changes() -> None:
    jobs = [
        Job("x", work_s=5_000, sizes=(8,), held={"train-000": 8}),
        Job("y", work_s=5_000, sizes=(8,), held={"train-001": 8}),
        *(Job(f"w{n}", work_s=50_000, sizes=(8,), submit_s=n + 1.0) for n in range(4)),
    ]
    pools = [Pool("train", nodes=2)]
    plans = [plan(snapshot(pools, jobs, now_s=NOW_S + at)) for at in (0, 60, 120)]
    told = [{one.subject: (one.rule, one.lost_to, one.needs) for one in p.reasons} for p in plans]
    assert len(told[0]) == 4
    assert told[0] == told[1] == told[2]


def test_who_waits_for_one_of_several_alike_sites_is_told_of_all_of_them() -> None:
    """Which of them lacks least changes all the time, and each change would be told anew."""
    pools = [Pool("a"), Pool("b"), Pool("slow", speed=0.4)]
    runs = [Job(f"r{p.id}", work_s=600.0, sizes=(8,), held={f"{p.id}-000": 8}) for p in pools]
    waits = [Job(f"w{n}", work_s=90_000, sizes=(8,), submit_s=n + 1.0) for n in range(3)]
    found = plan(snapshot(pools, [*runs, *waits]))
    assert {reason(found, job.id).lost_to for job in waits} == {("ra", "rb")}


def crowd(seed: int, pools: list[Pool]) -> Snapshot:
    """More jobs than there is room for, of three tenants; none could be larger than a site."""
    rng = np.random.default_rng(seed)
    free = {f"{pool.id}-000": pool.gpus for pool in pools}
    jobs = []
    for n in range(int(rng.integers(5, 20))):
        choice = (1, 2, 4, 8)[: int(rng.integers(1, 5))][int(rng.integers(2)) :] or (1,)
        node, gpus = str(rng.choice(list(free))), int(rng.choice(choice))
        held = {node: gpus} if rng.random() < 0.4 and free[node] >= gpus else {}
        free[node] -= held.get(node, 0)
        work_s, power = float(rng.uniform(60, 90_000)), float(rng.uniform(0.3, 1.0))
        jobs.append(Job(f"j{n:02}", work_s=work_s, sizes=choice, power=power, held=held))
    seen = snapshot(pools, jobs)
    tenants = tuple(rng.choice(["a", "b", "c"], len(jobs)).tolist())
    return replace(seen, jobs=replace(seen.jobs, tenants=tenants))


def with_more(seen: Snapshot, pool: int, gpus: int) -> Snapshot:
    """Return the snapshot with so many GPUs more on the first node of a pool."""
    at = seen.nodes.pool.tolist().index(pool)
    extra = np.where(np.arange(len(seen.nodes.ids)) == at, gpus, 0)
    nodes = replace(seen.nodes, gpus=seen.nodes.gpus + extra, free=seen.nodes.free + extra)
    return replace(seen, nodes=nodes)


def granted(seen: Snapshot, policy: Tide, told: Reason) -> tuple[Snapshot, Tide]:
    """Give a job what its reason says that it needs: GPUs of a site, a higher limit."""
    found = opened(seen, policy)
    row, job = found.row(told.subject), seen.jobs.ids.index(told.subject)
    stays = told.verb in ("scales_in", "migrates")
    site = found.market.home[row] if stays else found.found.site[row]
    for need in told.needs:
        if need.name == "gpus":
            more = int(need.want - need.have)
            seen = with_more(seen, int(found.market.sites[site]), more)
        else:
            tenant = seen.jobs.tenants[job]
            least, dots, most = policy.quotas[tenant].partition("..")
            assert (need.name, need.have) == ("quota_gpus", int(most))
            quotas = {**policy.quotas, tenant: f"{least}{dots}{int(need.want)}"}
            policy = replace(policy, quotas=quotas)
    return seen, policy


def heard(seen: Snapshot, policy: Tide, told: Reason) -> bool:
    """Whether a job has what it was refused: a size, the size it had, or its site."""
    target = plan(seen, policy).targets.get(told.subject, "as it is")
    if told.verb == "waits" or isinstance(target, str):
        return isinstance(target, Target) or (told.verb != "waits" and target is not None)
    job = seen.jobs.ids.index(told.subject)
    if target is None or told.verb == "preempts":
        return target is not None
    if told.verb == "scales_in":
        return target.size >= int(seen.jobs.size[job])
    return bool(target.pool == seen.pools.ids[seen.jobs.pool[job]])


ONE, TWO = [Pool("a")], [Pool("a"), Pool("b", speed=0.7)]
THREE = [Pool("a"), Pool("b", speed=0.45), Pool("c", speed=0.8)]
QUOTAS: tuple[dict[str, str], ...] = (
    {},
    {"a": "..4", "b": "2..9"},
    {"a": "4..8", "b": "..3", "c": "..5"},
)


@pytest.mark.slow
@pytest.mark.parametrize("quotas", QUOTAS)
@pytest.mark.parametrize("pools", [ONE, TWO, THREE])
def test_who_is_given_what_it_needs_has_it(pools: list[Pool], quotas: dict[str, str]) -> None:
    """Who waits starts, who was stopped runs, who shrank keeps its size, who moved its site."""
    policy, tried = Tide(quotas=quotas), Counter[str]()
    for seed in range(60):
        seen = crowd(seed, pools)
        for told in plan(seen, policy).reasons:
            if told.needs:
                assert heard(*granted(seen, policy, told), told), (seed, told)
                tried.update([told.verb, told.rule, *(need.name for need in told.needs)])
            else:
                assert told.verb in ("starts", "scales_out", "migrates")
    wanted = {"waits", "preempts", "scales_in", "gpus"}
    wanted |= {"quota_gpus"} if quotas else {"market.outbid", "market.price"}
    wanted |= {"migrates"} if len(pools) > 1 and not quotas else set()
    assert wanted <= {name for name, times in tried.items() if times >= 5}


@pytest.mark.parametrize("quotas", QUOTAS)
def test_a_market_worked_on_in_parts_is_the_same(
    quotas: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large markets are worked on some jobs of one site at a time: no number, no word differs."""
    policy, seens = Tide(quotas=quotas), [crowd(seed, THREE) for seed in range(12)]
    whole = [plan(seen, policy) for seen in seens]
    monkeypatch.setattr(market, "_AT_ONCE", 10)
    assert len(market.by_part(np.zeros((3, 4, 5)))) == 6
    assert [plan(seen, policy) for seen in seens] == whole


def without(seen: Snapshot, policy: Tide, rivals: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return who gets what if some are worth nothing, and all else is as it was."""
    found = opened(seen, policy)
    value = found.value.copy()
    value[:, [found.row(name) for name in rivals], 1:] = -np.inf
    quotas = quotas_of(seen, found.market, policy.quotas)
    quotas.held[[found.row(name) for name in rivals]] = 0
    rank = classes(found.seen, found.market, found.within)
    limited = clear_within(found.market, value, found.promises, quotas, found.within, rank)
    return replace(found, found=limited.found).got()


@pytest.mark.parametrize(
    ("quotas", "rule"), [(QUOTAS[0], "market.outbid"), (QUOTAS[2], "market.quota")]
)
def test_who_is_named_has_what_the_others_lack(quotas: dict[str, str], rule: str) -> None:
    """Where those named have as much as a job lacks, it starts without them."""
    policy, tried = Tide(quotas=quotas), 0
    for seed in range(80):
        seen = crowd(seed, ONE)
        got = opened(seen, policy).got()
        for told in plan(seen, policy).reasons:
            if told.verb != "waits" or told.rule != rule:
                continue
            assert set(told.lost_to) <= set(got)
            lacks = max(need.want - need.have for need in told.needs)
            if sum(got[name][1] for name in told.lost_to) >= lacks:
                assert told.subject in without(seen, policy, told.lost_to)
                tried += 1
    assert tried > 20


def test_the_figures_are_those_that_decided() -> None:
    """No GPU that a job is refused, or gives up, is worth more to it than the price."""
    for seed in range(80):
        for told in plan(crowd(seed, ONE)).reasons:
            says = {figure.name: figure.value for figure in told.figures}
            if told.verb in ("waits", "preempts", "scales_in"):
                lost = says.get("lost_per_gpu", says["worth_per_gpu"])
                assert lost <= says["price_per_gpu"] + 1e-9, (seed, told)


def test_a_job_that_no_site_can_run_waits() -> None:
    """Affinity 0 is nowhere, whatever memory there is."""
    seen = columns(snapshot([TRAIN], [Job("a"), Job("b")]), affinity=[[0.0], [1.0]])
    told = reason(plan(seen), "a")
    assert (told.verb, told.rule) == ("waits", "gang.no_pool")
