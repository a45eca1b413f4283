"""Optimus, AFS and Pollux: their rules by direct evaluation, and what every plan promises."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler.policies.interface import Floats, Ints, Kind, LoanPhase, Plan, Snapshot
from scheduler.policies.literature.afs import Afs, share
from scheduler.policies.literature.edf import Edf
from scheduler.policies.literature.elasticflow import ElasticFlow
from scheduler.policies.literature.optimus import Optimus, climb
from scheduler.policies.literature.pollux import Pollux, rate_at, utility
from scheduler.policies.parts.problem import Problem, problems
from tests.effort import examples
from tests.markets import columns, noted, pools as places
from tests.snapshots import Job, Pool, decide, snapshot

SIZES = tuple(range(1, 17))


def sizes_of(seen: Snapshot, plan: Plan) -> dict[str, int]:
    held = dict(zip(seen.jobs.ids, seen.jobs.size.tolist(), strict=True))
    for name, target in plan.targets.items():
        held[name] = target.size if target else 0
    return held


def problem(work: list[float], rates: list[list[float]], gpus: int) -> Problem:
    """One pool; rates from one GPU on."""
    rate = np.hstack([np.zeros((len(work), 1)), np.array(rates)])
    n, k = rate.shape
    none = np.zeros(n, dtype=np.int64)
    return Problem(
        pool=0,
        gpus=gpus,
        rows=np.arange(n),
        sizes=np.arange(k),
        allowed=np.ones((n, k), dtype=np.bool_),
        rate=rate,
        base=none + 1,
        present=none,
        work=np.array(work),
    )


# --- who takes part ---------------------------------------------------------------------------


def test_jobs_are_spread_over_pools_and_none_gets_more_than_its_pool_has() -> None:
    pools = [Pool("a", nodes=1, gpus=8), Pool("b", nodes=1, gpus=4)]
    jobs = [Job(f"job-{n}", power=1.0) for n in range(3)]
    seen = snapshot(pools, jobs)
    found = {c.pool: (c.gpus, c.rows.tolist()) for c in problems(seen)}
    assert found == {0: (8, [0, 1]), 1: (4, [2])}
    plan = decide(Optimus(), seen)
    assert sizes_of(seen, plan) == {"job-0": 4, "job-1": 4, "job-2": 4}


def test_who_does_not_fit_where_most_gpus_per_job_are_goes_where_it_fits() -> None:
    """Else it waits, or is refused for good, beside GPUs that nobody uses."""
    pools = [Pool("small", nodes=1, gpus=4), Pool("large", nodes=2, gpus=4)]
    runs = [
        Job(f"runs-{n}", sizes=(1,), held={f"large-00{n // 2}": 1}, submit_s=n) for n in range(3)
    ]
    large = Job("large", work_s=1.0, sizes=(5,), submit_s=10, deadline_s=1e6)
    for policy in (Optimus(), Afs(), Pollux(), Edf(), ElasticFlow()):
        plan = decide(policy, snapshot(pools, [*runs, large], sizes=SIZES))
        assert places(plan)["large"] == "large", policy.name
        assert not plan.decline


def test_who_fits_beside_nobody_in_a_full_pool_goes_to_one_that_is_free() -> None:
    """A pool with more GPUs per job may be full of gangs that give up none."""
    pools = [Pool("full", nodes=3, gpus=8), Pool("free", nodes=1, gpus=4)]
    runs = [
        Job(f"runs-{n}", sizes=(8,), held={f"full-00{n}": 8}, submit_s=n, work_s=60.0)
        for n in range(2)
    ]
    runs.append(Job("runs-2", sizes=(6,), held={"full-002": 6}, submit_s=2, work_s=60.0))
    waits = Job("waits", sizes=(3,), submit_s=10)
    plan = decide(Pollux(), snapshot(pools, [*runs, waits], sizes=SIZES))
    assert places(plan)["waits"] == "free"
    # One that fits nowhere takes nobody's place.
    vast = Job("vast", sizes=(16,), submit_s=5)
    plan = decide(Pollux(), snapshot(pools, [*runs, vast, waits], sizes=SIZES))
    assert places(plan)["waits"] == "free"


def test_who_is_in_no_contest_is_told_why() -> None:
    jobs = [Job("big", memory_mib=1e6), Job("none", sizes=()), Job("rests", backoff_until_s=1e9)]
    seen = snapshot([Pool("train")], jobs)
    rules = {reason.subject: reason.rule for reason in Afs().plan(seen).reasons}
    assert rules == {"big": "gang.no_pool", "none": "gang.size", "rests": "gang.backoff"}


def test_a_job_on_a_node_that_goes_back_competes_for_the_pools_that_take_part() -> None:
    lent = Pool("infer", Kind.INFERENCE, loan=LoanPhase.RECLAIMING)
    seen = snapshot([Pool("train"), lent], [Job("a", held={"infer-000": 4})])
    (only,) = problems(seen)
    assert (only.pool, only.gpus, only.present.tolist()) == (0, 8, [0])
    plan = decide(Optimus(), seen)
    assert sizes_of(seen, plan) == {"a": 8}


# --- Optimus ----------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=examples(60), deadline=None)
def test_optimus_greedy_equals_the_program_on_concave_gains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [
        Job(f"job-{n:02}", work_s=float(rng.uniform(10, 1e5)), sizes=SIZES, power=0.8)
        for n in range(int(rng.integers(1, 20)))
    ]
    seen = snapshot([Pool("train", nodes=int(rng.integers(1, 6)))], jobs, sizes=SIZES)

    def left_s(plan: Plan) -> float:
        held = sizes_of(seen, plan)
        return sum(float(job.work_s / held[job.id] ** 0.8) for job in jobs if held[job.id])

    greedy, best = Optimus().plan(seen), Optimus(solver="exact").plan(seen)
    running = [name for name, size in sizes_of(seen, greedy).items() if size]
    assert running == [name for name, size in sizes_of(seen, best).items() if size]
    assert left_s(greedy) == pytest.approx(left_s(best))


def test_optimus_gives_each_gpu_where_time_falls_most() -> None:
    jobs = [Job("long", work_s=9000, sizes=SIZES, power=1), Job("short", work_s=1000, power=1)]
    seen = snapshot([Pool("train", nodes=1)], jobs, sizes=SIZES)
    # 9000/k falls by more than 1000/2 up to 4 GPUs (450 at the next): 5 + 3 is not allowed.
    assert sizes_of(seen, Optimus().plan(seen)) == {"long": 6, "short": 2}


def test_optimus_stops_at_a_step_without_gain_and_the_program_does_not() -> None:
    rates = [1.0, 1.9, 1.9, 6.0]
    jobs = [Job("a", sizes=(1, 2, 3, 4), rates=rates)]
    seen = snapshot([Pool("train")], jobs, sizes=SIZES)
    assert sizes_of(seen, Optimus().plan(seen)) == {"a": 2}
    assert sizes_of(seen, Optimus(solver="exact").plan(seen)) == {"a": 4}


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=examples(80), deadline=None)
def test_climbing_in_order_equals_a_heap_of_next_gains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 6)), int(rng.integers(2, 8))
    value = np.cumsum(rng.uniform(-0.5, 2.0, (n, k)), axis=1)
    sizes, start = np.arange(k), np.zeros(n, dtype=np.int64)
    gpus = int(rng.integers(0, n * k))
    assert climb(sizes, value, start, gpus).tolist() == heap(value, start, gpus).tolist()


def heap(value: Floats, start: Ints, gpus: int) -> Ints:
    """One GPU at a time to the largest next gain."""
    level = start.copy()
    for _ in range(gpus):
        gains = [
            float(value[i, at + 1] - value[i, at]) if at + 1 < value.shape[1] else -1.0
            for i, at in enumerate(level.tolist())
        ]
        if max(gains) <= 0:
            break
        level[int(np.argmax(gains))] += 1
    return level


def test_small_gangs_come_first_when_not_all_fit() -> None:
    jobs = [Job("big", sizes=(4, 8)), Job("mid", sizes=(2,)), Job("small", sizes=(1,))]
    seen = snapshot([Pool("train", nodes=1, gpus=4)], jobs)
    plan = decide(Optimus(), seen)
    assert sizes_of(seen, plan) == {"big": 0, "mid": 2, "small": 1}
    assert [r.rule for r in plan.reasons if r.verb == "waits"] == ["optimus.marginal_gain"]


# --- AFS --------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=examples(300), deadline=None)
def test_the_rule_for_two_jobs_is_the_better_of_both_ways(seed: int) -> None:
    """One spare GPU: whoever ends first leaves it, and only it, to the other."""
    rng = np.random.default_rng(seed)
    rates = [np.cumsum(-np.sort(-rng.uniform(0.05, 1, 2))) for _ in range(2)]
    works = sorted(rng.uniform(10, 1000, 2))
    if works[0] / rates[0][0] >= works[1] / rates[1][1]:
        return  # the first would not end first, whoever gets the GPU
    given_a = two_ends(works[0] / rates[0][1], works[1], rates[1][0], rates[1][1])
    given_b = two_ends(works[0] / rates[0][0], works[1], rates[1][1], rates[1][1])
    field = problem(works, [r.tolist() for r in rates], 3)
    level = share(field)
    if abs(given_a - given_b) > 1e-6 * given_a:
        assert level.tolist() == ([2, 1] if given_a < given_b else [1, 2])


def two_ends(first_s: float, work: float, rate: float, after: float) -> float:
    """Sum of the ends of a job that ends at `first_s` and one that then goes on faster."""
    return 2 * first_s + (work - rate * first_s) / after


def test_afs_starts_everybody_before_it_grows_what_scales_less_than_linearly() -> None:
    rates = [[1.0, 1.8, 2.5, 3.0]] * 4
    assert share(problem([4.0, 3.0, 2.0, 1.0], rates, 4)).tolist() == [1, 1, 1, 1]
    assert share(problem([4.0, 3.0, 2.0, 1.0], rates, 3)).tolist() == [0, 1, 1, 1]


def test_an_efficient_long_job_wins_from_a_short_one_that_scales_badly() -> None:
    bad, good = [1.0, 1.05, 1.06, 1.06], [1.0, 1.95, 2.85, 3.7]
    assert share(problem([10.0, 100.0], [bad, good], 5)).tolist() == [1, 4]


def test_afs_stops_where_nobody_gains() -> None:
    flat = [1.0, 1.0, 1.0, 1.0]
    assert share(problem([1.0, 1.0], [flat, flat], 8)).tolist() == [1, 1]


def test_unknown_lengths_go_by_attained_service() -> None:
    jobs = [Job("old"), Job("new", submit_s=1.0)]
    seen = snapshot([Pool("train", nodes=1, gpus=1)], jobs)
    seen = columns(seen, attained_gpu_s=np.array([7200.0, 0.0]))
    assert sizes_of(seen, Afs(lengths="unknown").plan(seen)) == {"old": 0, "new": 1}
    assert sizes_of(seen, Afs().plan(seen)) == {"old": 1, "new": 0}


# --- Pollux -----------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from([-2.0, -1.0, 0.0, 1.0]))
@settings(max_examples=examples(40), deadline=None)
def test_pollux_finds_the_best_power_mean(seed: int, power: float) -> None:
    rng = np.random.default_rng(seed)
    n, gpus, choices = 3, 6, (0, 1, 2, 3, 4)
    rates = np.cumsum(rng.uniform(0.01, 1, (n, 4)), axis=1)
    jobs = [Job(f"job-{i}", sizes=(1, 2, 3, 4), rates=row) for i, row in enumerate(rates.tolist())]
    seen = snapshot([Pool("train", nodes=1, gpus=gpus)], jobs, sizes=SIZES)
    policy = Pollux(power=power, doubling=False)
    speed = np.hstack([np.zeros((n, 1)), rates])
    speedup = np.maximum(speed / rates[:, 1:2], 0.01)  # fair: 6 GPUs for 3

    def mean(sizes: tuple[int, ...]) -> float:
        mine = speedup[np.arange(n), list(sizes)]
        if power == 0:
            return float(np.exp(np.log(mine).mean()))
        return float((mine**power).mean() ** (1 / power))

    best = max(mean(s) for s in product(choices, repeat=n) if sum(s) <= gpus)
    held = sizes_of(seen, policy.plan(seen))
    assert mean(tuple(held[job.id] for job in jobs)) == pytest.approx(best)


def test_pollux_at_most_doubles_and_remembers() -> None:
    seen = snapshot([Pool("train", nodes=2)], [Job("a", sizes=SIZES, power=1)], sizes=SIZES)
    plan = decide(Pollux(), seen)
    assert (sizes_of(seen, plan), dict(plan.notes)) == ({"a": 1}, {"a": (1.0,)})
    seen = noted(seen, a=(4.0,))
    plan = decide(Pollux(), seen)
    assert (sizes_of(seen, plan), dict(plan.notes)) == ({"a": 8}, {"a": (8.0,)})


@pytest.mark.parametrize(("restarts", "expected"), [(0, 8), (100, 4)])
def test_a_job_that_was_restarted_often_is_left_alone(restarts: int, expected: int) -> None:
    jobs = [Job("a", sizes=SIZES, power=0.9, held={"train-000": 4})]
    seen = snapshot([Pool("train", nodes=1)], jobs, sizes=SIZES)
    seen = columns(replace(seen, now_s=3600.0), restarts=np.array([restarts]))
    assert sizes_of(seen, Pollux().plan(seen)) == {"a": expected}


def test_speed_between_sizes_is_linear() -> None:
    seen = snapshot([Pool("train")], [Job("a", sizes=(2, 4), rates=(3.0, 5.0))])
    (field,) = problems(seen)
    assert [float(rate_at(field, g)[0]) for g in (1, 2, 3, 4, 9)] == [1.5, 3.0, 4.0, 5.0, 5.0]


def test_use_is_one_where_each_gpu_is_worth_as_much_as_the_first() -> None:
    linear = [float(k) for k in range(1, 17)]
    assert utility(problem([1.0], [linear], 8), np.array([8])) == pytest.approx(1.0)
