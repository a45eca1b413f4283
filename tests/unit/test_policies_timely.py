"""`timely`: who is promised to be in time, who lends, and that no promise is broken."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scheduler.policies.parts.commitments import (
    PROMISED,
    Courses,
    borrow,
    free_over_time,
    resume,
    written,
)
from scheduler.policies.parts.laxity import Laxity, latest_return_s, laxity
from scheduler.policies.timely import TimelyOptions, has_deadlines, timely

from scheduler.policies.interface import NOTE, Plan, Snapshot
from scheduler.policies.parts.contest import contests
from simulator.physics.base import Entry, Room
from simulator.physics.elasticflow import Overhead, TableJob
from simulator.profiles import rate_table
from simulator.run import Options, simulate
from tests.snapshots import INF, Job, Pool, faults, snapshot

NOW = 10_000.0
OPTIONS = TimelyOptions(doubling_s=0.0)
LINEAR = (1.0, 2.0, 4.0, 8.0)


def job(
    name: str,
    work: float,
    due: float,
    on: int = 0,
    rates: tuple[float, ...] = LINEAR,
    **more: float,
) -> Job:
    """A job due so long from now, on GPUs of the first node; starts take 10 s."""
    held = {"a-000": on} if on else {}
    return Job(
        name,
        work_s=work,
        rates=rates,
        held=held,
        deadline_s=NOW + due,
        start_cost_s=10.0,
        checkpoint_cost_s=0.0,
        submit_s=more.get("submit_s", 0.0),
        moving=bool(more.get("moving", 0)),
    )


def see(jobs: list[Job], nodes: int = 1, **notes: tuple[float, ...]) -> Snapshot:
    """A snapshot with the notes that jobs have."""
    seen = snapshot([Pool("a", nodes=nodes)], jobs, NOW)
    table = seen.jobs.notes.copy()
    for name, note in notes.items():
        table[seen.jobs.ids.index(name), : len(note)] = note
    return replace(seen, jobs=replace(seen.jobs, notes=table))


def lax_of(seen: Snapshot) -> Laxity:
    return laxity(seen, contests(seen)[0], OPTIONS.doubling_s)


def sizes_of(seen: Snapshot, plan: Plan) -> dict[str, int]:
    """What jobs hold when the plan is carried out."""
    assert faults(seen, plan) == []
    after = dict(zip(seen.jobs.ids, seen.jobs.size.tolist(), strict=True))
    after.update({name: target.size if target else 0 for name, target in plan.targets.items()})
    return after


# --- columns --------------------------------------------------------------------------------------


def test_the_least_size_counts_the_pause_of_a_change() -> None:
    # a: 400 of work, due in 105 s: 4 GPUs take 100 s, if it has them already.
    lax = lax_of(see([job("a", 400, 105, 4)]))
    assert lax.sizes[lax.least[0]] == 4
    lax = lax_of(see([job("a", 400, 105)]))
    assert lax.sizes[lax.least[0]] == 8
    assert lax.area_gpu_s[0] == pytest.approx(8 * 60)


def test_nobody_is_in_time_without_a_deadline_or_too_late() -> None:
    lax = lax_of(see([job("a", 400, 55), Job("b", work_s=10.0)]))
    assert lax.least.tolist() == [0, 0]
    assert np.isinf(lax.area_gpu_s).all()


def test_sizes_that_are_slower_do_not_pay() -> None:
    lax = lax_of(see([job("a", 400, 500, rates=(1.0, 3.0, 2.0, 4.0))]))
    assert lax.sizes[lax.pays[0]].tolist() == [1, 2, 8]


@pytest.mark.parametrize("low", [0, 1, 2])
def test_who_returns_at_the_latest_moment_is_just_in_time(low: int) -> None:
    lax = lax_of(see([job("a", 400, 150, 4)]))
    level = lax.least.copy()
    until_s = float(latest_return_s(lax, level)[0, low])
    done = lax.rate[0, low] * max(until_s - NOW - (10.0 if low else 0.0), 0.0)
    assert until_s + 10.0 + (400 - done) / 4.0 == pytest.approx(NOW + 150)
    assert np.isneginf(latest_return_s(lax, level)[0, int(level[0]) :]).all()


# --- commitments ----------------------------------------------------------------------------------


def courses_of(lax: Laxity) -> Courses:
    n = len(lax.work)
    return Courses(
        np.ones(n, dtype=np.bool_), lax.least.copy(), np.full(n, math.inf), lax.least.copy()
    )


def test_lenders_make_room_and_come_back() -> None:
    seen = see([job("a", 2000, 600, 4), job("b", 2000, 600, 4), job("c", 100, 70, submit_s=1.0)])
    lax = lax_of(seen)
    courses = courses_of(lax)
    courses.kept[2] = False
    profile = free_over_time(lax, courses)
    assert profile.free[0] == 0
    after = borrow(lax, courses, latest_return_s(lax, courses.level), profile, 2, 2, 5.0)
    assert after is not None
    assert lax.sizes[after.level].sum() <= 8
    lenders = np.flatnonzero(np.isfinite(after.until_s)).tolist()
    assert lenders == [0]  # one suffices
    assert after.until_s[0] == pytest.approx(NOW + 10 + 50)
    assert free_over_time(lax, after).free.min() >= 0
    assert written(lax, after, 0) == (PROMISED, 4.0, after.until_s[0])
    assert written(lax, after, 2) == (PROMISED,)


def test_nobody_lends_for_longer_than_there_is_time() -> None:
    seen = see([job("a", 2000, 510, 4), job("b", 2000, 510, 4), job("c", 100, 70, submit_s=1.0)])
    lax = lax_of(seen)
    courses = courses_of(lax)
    latest_s = latest_return_s(lax, courses.level)
    profile = free_over_time(lax, courses)
    assert borrow(lax, courses, latest_s, profile, 2, 2, 5.0) is None


def test_what_was_lent_is_still_owed_in_the_next_plan() -> None:
    jobs = [job("a", 2000, 640, 2), job("b", 2000, 520, 4), job("c", 100, 60, 2, submit_s=1.0)]
    back = NOW + 50.0
    seen = see(jobs, a=(PROMISED, 4.0, back), b=(PROMISED,), c=(PROMISED,))
    lax = lax_of(seen)
    courses = resume(lax, seen.jobs.notes)
    assert courses.until_s.tolist() == [back, math.inf, math.inf]
    assert lax.sizes[courses.level].tolist() == [2, 4, 2]
    # Once c has ended there is room for all at once.
    seen = see(jobs[:2], a=(PROMISED, 4.0, back), b=(PROMISED,))
    courses = resume(lax_of(seen), seen.jobs.notes)
    assert not courses.lending
    plan = timely(seen, OPTIONS)
    assert sizes_of(seen, plan) == {"a": 4, "b": 4}
    assert plan.notes == {"a": (PROMISED,)}


def test_lost_gpus_cost_the_largest_rest() -> None:
    jobs = [job("a", 2000, 520, 4), job("b", 1000, 260, 4)]
    seen = see(jobs, a=(PROMISED,), b=(PROMISED,))
    lax = replace(lax_of(seen), gpus=4)
    assert resume(lax, seen.jobs.notes).level.tolist() == [0, 3]


# --- plans ----------------------------------------------------------------------------------------


def test_a_short_job_gets_in_where_all_is_taken() -> None:
    jobs = [job("a", 2000, 600, 4), job("b", 2000, 600, 4), job("c", 100, 70, submit_s=1.0)]
    seen = see(jobs, a=(PROMISED,), b=(PROMISED,))
    plan = timely(seen, OPTIONS)
    after = sizes_of(seen, plan)
    assert after["c"] >= 2
    assert sum(after.values()) <= 8
    assert plan.notes["c"] == (PROMISED,)
    lender = next(name for name, note in plan.notes.items() if len(note) == 3)
    rules = {reason.subject: reason.rule for reason in plan.reasons}
    assert rules[lender] == "timely.lends"
    assert rules["c"] == "timely.promised"


def test_in_overload_the_smallest_come_first() -> None:
    jobs = [job("a", 800, 115), *(job(f"b{i}", 200, 115, submit_s=1.0) for i in range(4))]
    seen = see(jobs)
    plan = timely(seen, OPTIONS)
    assert set(plan.notes) == {"b0", "b1", "b2", "b3"}
    assert sizes_of(seen, plan) == {"a": 0, "b0": 2, "b1": 2, "b2": 2, "b3": 2}
    assert {r.subject: r.rule for r in plan.reasons}["a"] == "timely.room"


def test_a_large_job_runs_without_a_promise_until_its_rest_is_small() -> None:
    options = replace(OPTIONS, pledge_s=100.0)  # 800 GPU seconds of 8
    for work, note in ((2000.0, {}), (700.0, {"a": (PROMISED,)})):
        seen = see([job("a", work, 1e4)])
        plan = timely(seen, options)
        assert sizes_of(seen, plan)["a"] >= 1
        assert plan.notes == note
    # It gives way to a small one; who was promised before stays so.
    jobs = [job("a", 2000, 300, 8), job("b", 400, 75, submit_s=1.0)]
    after = sizes_of(see(jobs), timely(see(jobs), options))
    assert after == {"a": 0, "b": 8}
    seen = see(jobs, a=(PROMISED,))
    assert sizes_of(seen, timely(seen, options)) == {"a": 8, "b": 0}


def test_a_promise_waits_until_the_rest_is_no_more_than_a_median_job() -> None:
    small = [job(f"b{i}", 300, 1000, submit_s=1.0) for i in range(2)]
    for work, note in ((2000, {}), (300, {"a": (PROMISED,)})):
        seen = see([job("a", work, 1000, 4), *small])
        plan = timely(seen, OPTIONS)
        assert sizes_of(seen, plan)["a"] >= 4  # it runs at once, promise or not
        assert plan.notes == note | {"b0": (PROMISED,), "b1": (PROMISED,)}
    # What they did so far counts: the others were larger once.
    seen = see([job("a", 2000, 1000, 4), *small])
    done_gpu_s = np.array([0.0, 5000.0, 5000.0])
    seen = replace(seen, jobs=replace(seen.jobs, attained_gpu_s=done_gpu_s))
    assert set(timely(seen, OPTIONS).notes) == {"a", "b0", "b1"}
    # Nobody is smaller: who is alone is promised at once, and two alike are.
    for alike in ([job("a", 2000, 1000)], [job("a", 1000, 1000), job("c", 1000, 1000)]):
        assert len(timely(see(alike), OPTIONS).notes) == len(alike)


def test_what_is_left_goes_to_who_needs_it_then_to_the_rest() -> None:
    late, best = job("late", 4000, 20), Job("best", work_s=500.0, rates=LINEAR, start_cost_s=10.0)
    seen = see([late, best, job("a", 400, 150)])
    after = sizes_of(seen, timely(seen, OPTIONS))
    assert after["a"] >= 4
    assert after["late"] + after["best"] == 8 - after["a"]
    # Alone it is not wasted either.
    seen = see([late])
    assert sizes_of(seen, timely(seen, OPTIONS)) == {"late": 8}
    assert timely(seen, OPTIONS).notes == {}


def test_what_it_is_for() -> None:
    assert has_deadlines(see([job("a", 100, 100)]))
    assert not has_deadlines(see([Job("a")]))
    two = snapshot([Pool("a"), Pool("b")], [job("a", 100, 100)], NOW)
    assert not has_deadlines(two)


@pytest.mark.parametrize("seed", range(40))
def test_plans_keep_what_plans_promise(seed: int) -> None:
    """Any mixture: moving jobs, notes of lenders long gone, nodes of several sizes."""
    rng = np.random.default_rng(seed)
    free = [8] * 4
    jobs: list[Job] = []
    notes: dict[str, tuple[float, ...]] = {}
    for index in range(int(rng.integers(1, 30))):
        held = {}
        node, size = int(rng.integers(4)), int(rng.choice([1, 2, 4, 8]))
        if rng.random() < 0.6 and free[node] >= size:
            free[node] -= size
            held = {f"a-{node:03}": size}
        one = Job(
            f"j{index:02}",
            work_s=float(rng.uniform(1, 5000)),
            power=float(rng.uniform(0.3, 1.0)),
            held=held,
            moving=bool(held) and rng.random() < 0.2,
            deadline_s=NOW + float(rng.uniform(-100, 3000)) if rng.random() < 0.8 else INF,
            submit_s=float(index),
            backoff_until_s=NOW + 5.0 if rng.random() < 0.1 else -INF,
        )
        jobs.append(one)
        if rng.random() < 0.5:
            lent = (4.0, NOW + float(rng.uniform(-50, 500))) if rng.random() < 0.4 else ()
            notes[one.id] = (PROMISED, *lent)
    seen = see(jobs, 4, **notes)
    plan = timely(seen, OPTIONS)
    assert faults(seen, plan) == []
    assert timely(seen, OPTIONS) == plan


@dataclass
class Observed:
    """`timely` alone; checks every plan and remembers the promises."""

    name: str = "timely"
    promised: set[str] = field(default_factory=set)
    lent: int = 0

    def plan(self, snapshot: Snapshot) -> Plan:
        plan = timely(snapshot, TimelyOptions())
        assert faults(snapshot, plan) == []
        self.promised.update(plan.notes)
        self.lent += sum(len(note) > 1 for note in plan.notes.values())
        return plan


def crowd(seed: int, count: int) -> list[Entry]:
    """Jobs of uneven curves that come in bursts, each feasible alone or nearly so."""
    rng = np.random.default_rng(seed)
    entries, submit_s = [], 0.0
    for index in range(count):
        submit_s += float(rng.choice([0.0, rng.exponential(400.0)]))
        speed = np.cumprod(np.concatenate(([1.0], rng.uniform(0.95, 2.0, 3))))
        points = [(1 << i, 64.0 * rate) for i, rate in enumerate(speed.tolist())]
        table = rate_table("net", 64, points)
        assert table is not None
        run_s = float(rng.lognormal(6.0, 1.5))
        due_s = submit_s + 20.0 + run_s * float(rng.uniform(0.4, 2.0))
        entries.append(
            Entry(
                id=f"j{index:03}",
                submit_s=submit_s,
                model=TableJob(table, run_s, Overhead()),
                requested=1,
                deadline_s=due_s if rng.random() < 0.9 else INF,
                start_cost_s=Overhead().full_s(1),
            )
        )
    return entries


@pytest.mark.parametrize("seed", range(8))
def test_who_was_promised_is_in_time(seed: int) -> None:
    policy = Observed()
    jobs = crowd(seed, 60)
    options = Options(
        room=Room(2, 4), round_s=INF, on_events=True, sizes=(1, 2, 4, 8), instant=True
    )
    out = simulate(jobs, policy, options)
    promised = np.array([name in policy.promised for name in out.ids])
    late = [
        name for name, end, due in zip(out.ids, out.end_s, out.deadline_s, strict=True) if end > due
    ]
    assert promised.sum() > 20
    assert not policy.promised.intersection(late)
    assert np.isfinite(out.end_s).all()  # and nobody is left out
    assert out.refused.sum() == 0
    if seed == 6:
        assert policy.lent > 0
    assert NOTE >= 3
