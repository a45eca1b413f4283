"""Who is promised to be in time, who lends, and that no more is promised than there is."""

import math
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase, Snapshot
from scheduler.policies.tide.commitments import (
    PROMISED,
    Schedule,
    borrow,
    free_over_time,
    resume,
    written,
)
from scheduler.policies.tide.market import DOUBLING_S, open_market
from scheduler.policies.tide.promises import CALM_S, TRIES
from scheduler.policies.tide.slack import Slack, latest_return_s, slack_at
from scheduler.policies.tide.tide import Tide
from tests.markets import columns, noted, opened, plan, reason
from tests.snapshots import INF, Job, Pool, snapshot

NOW = 10_000.0
LINEAR = (1.0, 2.0, 4.0, 8.0)


def job(name: str, work: float, due: float, on: int = 0, **more: object) -> Job:
    """A job due so long from now, on GPUs of the first node; starts take 10 s and 2 a doubling."""
    usual: dict[str, object] = {"start_cost_s": 10.0, "checkpoint_cost_s": 0.0, "rates": LINEAR}
    held = {"a-000": on} if on else {}
    return Job(name, work_s=work, held=held, deadline_s=NOW + due, **{**usual, **more})  # type: ignore[arg-type]


def see(jobs: list[Job], nodes: int = 1, **notes: tuple[float, ...]) -> Snapshot:
    return noted(snapshot([Pool("a", nodes=nodes)], jobs, NOW), **notes)


def lax_of(seen: Snapshot) -> Slack:
    every = np.arange(len(seen.jobs.ids))
    return slack_at(open_market(seen, {}), 0, every, seen.jobs.deadline_s)


def after(seen: Snapshot, policy: Tide | None = None) -> dict[str, int]:
    """Return what jobs hold when the plan is carried out."""
    held = dict(zip(seen.jobs.ids, seen.jobs.size.tolist(), strict=True))
    for name, target in plan(seen, policy).targets.items():
        held[name] = target.size if target else 0
    return held


# --- columns --------------------------------------------------------------------------------------


def test_the_least_size_counts_the_pause_of_a_change() -> None:
    # 400 of work, due in 105 s: 4 GPUs take 100 s, if it has them already.
    for on, gpus in ((4, 4), (0, 8)):
        slack = lax_of(see([job("a", 400, 105, on)]))
        assert slack.sizes[slack.least[0]] == gpus


def test_who_comes_first_does_not_depend_on_who_runs() -> None:
    for held in ((0, 0), (2, 0), (0, 2), (2, 2)):
        slack = lax_of(see([job("a", 400, 300, held[0]), job("b", 410, 300, held[1])]))
        assert slack.area_gpu_s.tolist() == pytest.approx([400.0, 410.0])


@pytest.mark.parametrize(("due", "gpus"), [(2015.0, 4), (2035.0, 2)])
def test_who_runs_shrinks_only_to_a_size_with_some_time_to_spare(due: float, gpus: int) -> None:
    """2 GPUs take 2,000 s and a pause of 12, which is in time both times."""
    seen = see([job("a", 4000, due, 4)])
    slack = lax_of(seen)
    assert slack.takes_s[0, 2] < 2015
    assert slack.sizes[slack.least[0]] == gpus
    for quotas in ({}, {"tenant": "4..8"}):  # with quotas, all are looked at over time
        found = opened(seen, Tide(quotas=quotas))
        assert found.market.sizes[found.promises.floor[0]] == gpus
    assert slack.sizes[lax_of(see([job("a", 4000, due)])).least[0]] == 2, "who waits needs none"


@pytest.mark.parametrize(("checkpoint_s", "level"), [(20.0, 4), (50.0, 0)])
def test_the_checkpoint_of_who_must_leave_counts(checkpoint_s: float, level: int) -> None:
    """8 GPUs would take 66 s to the end, 4 take 114 s; 4 are free."""
    slow = Job("slow", 9e4, sizes=(4,), held={"a-000": 4}, checkpoint_cost_s=checkpoint_s)
    assert lax_of(see([job("a", 400, 100), slow])).least[0] == level
    assert lax_of(see([job("a", 400, 115), slow])).least[0] == 3


def test_nobody_is_in_time_without_a_deadline_or_too_late() -> None:
    slack = lax_of(see([job("a", 400, 55), Job("b", work_s=10.0)]))
    assert slack.least.tolist() == [0, 0]
    assert np.isinf(slack.area_gpu_s).all()


@pytest.mark.parametrize("low", [0, 1, 2])
def test_who_returns_at_the_latest_moment_is_just_in_time(low: int) -> None:
    slack = lax_of(see([job("a", 400, 150, 4)]))
    until_s = float(latest_return_s(slack, slack.least)[0, low])
    done = slack.rate[0, low] * max(until_s - NOW - slack.pause_s[0, low], 0.0)
    assert until_s + slack.start_s[0, 3] + (400 - done) / 4.0 == pytest.approx(NOW + 150)
    assert np.isneginf(latest_return_s(slack, slack.least)[0, int(slack.least[0]) :]).all()


# --- schedule -----------------------------------------------------------------------------------


def courses_of(slack: Slack) -> Schedule:
    n = len(slack.work)
    kept = np.arange(n) < 2
    return Schedule(kept, slack.least.copy(), np.full(n, math.inf), slack.least.copy())


@pytest.mark.parametrize(("due", "lends"), [(600.0, True), (510.0, False)])
def test_lenders_make_room_and_come_back_or_do_not_lend(due: float, lends: bool) -> None:
    seen = see([job("a", 2000, due, 4), job("b", 2000, due, 4), job("c", 100, 75, submit_s=1.0)])
    slack = lax_of(seen)
    schedule = courses_of(slack)
    profile = free_over_time(slack, schedule)
    assert profile.free[0] == 0
    found = borrow(slack, schedule, latest_return_s(slack, schedule.level), profile, 2, 2, 5.0)
    assert (found is not None) is lends
    if found is not None:
        assert np.flatnonzero(np.isfinite(found.until_s)).tolist() == [0], "one suffices"
        assert found.until_s[0] == NOW + 10 + DOUBLING_S + 50
        assert free_over_time(slack, found).free.min() >= 0
        assert written(slack, found, 0) == (PROMISED, 4.0, found.until_s[0])
        assert written(slack, found, 2) == (PROMISED,)


def test_what_was_lent_is_still_owed_in_the_next_plan() -> None:
    jobs = [job("a", 2000, 645, 2), job("b", 2000, 520, 4), job("c", 100, 60, 2, submit_s=1.0)]
    back = NOW + 50.0
    seen = see(jobs, a=(PROMISED, 4.0, back), b=(PROMISED,), c=(PROMISED,))
    slack = lax_of(seen)
    schedule = resume(slack, seen.jobs.notes)
    assert schedule.until_s.tolist() == [back, math.inf, math.inf]
    assert slack.sizes[schedule.level].tolist() == [2, 4, 2]
    # Once c has ended there is room for all at once.
    seen = see(jobs[:2], a=(PROMISED, 4.0, back), b=(PROMISED,))
    assert not resume(lax_of(seen), seen.jobs.notes).lending
    assert after(seen) == {"a": 4, "b": 4}
    assert plan(seen).notes == {"a": (PROMISED,)}


def test_lost_gpus_cost_the_largest_rest() -> None:
    jobs = [job("a", 2000, 520, 4), job("b", 1000, 260, 4)]
    seen = see(jobs, a=(PROMISED,), b=(PROMISED,))
    assert resume(replace(lax_of(seen), gpus=4), seen.jobs.notes).level.tolist() == [0, 3]


# --- plans ----------------------------------------------------------------------------------------


def test_a_short_job_gets_in_where_all_is_taken() -> None:
    jobs = [job("a", 2000, 600, 4), job("b", 2000, 600, 4), job("c", 100, 75, submit_s=1.0)]
    seen = see(jobs, a=(PROMISED,), b=(PROMISED,))
    assert after(seen)["c"] >= 2
    assert sum(after(seen).values()) <= 8
    found = plan(seen)
    assert found.notes["c"] == (PROMISED,)
    lender = next(name for name, note in found.notes.items() if len(note) == 3)
    assert reason(found, lender).rule == "market.lends"
    assert reason(found, "c").rule == "market.promised"


def test_a_large_job_that_lost_its_gpus_borrows_none_for_a_while() -> None:
    for lost_s, lenders in ((CALM_S - 1.0, 0), (CALM_S, 2)):
        c = job("c", 2500, 400, submit_s=1.0, changed_s=NOW - lost_s)
        jobs = [job("a", 2000, 1900, 4), job("b", 2000, 1900, 4), c]
        found = plan(see(jobs, a=(PROMISED,), b=(PROMISED,)))
        assert sum(len(note) == 3 for note in found.notes.values()) == lenders


def test_who_runs_in_time_goes_on_where_others_can_lend_it_room() -> None:
    """In 100 s d will have ended, and c could begin again, and be in time, too."""
    jobs = [job("a", 2500, 2000, 1), job("b", 2500, 2000, 1), job("c", 3000, 1000, 4)]
    seen = see([*jobs, job("d", 200, 105, 2)], d=(PROMISED,))
    assert after(seen) == {"a": 1, "b": 1, "c": 4, "d": 2}


def test_who_runs_in_time_goes_on_smaller_where_others_can_lend_it_no_more() -> None:
    """For 4 GPUs "lends" would be back too late; "grown" could begin again in 110 s, in time."""
    grown = job("grown", 1000, 700, 4, rates=(1.0, 1.9, 2.0, 2.0))
    jobs = [job("lends", 2500, 1080, 4), grown, job("short", 420, 120, submit_s=1.0)]
    seen = see(jobs, lends=(PROMISED,))
    assert after(seen) == {"lends": 2, "grown": 2, "short": 4}


def test_who_runs_in_time_goes_on_however_many_wait_who_cannot_be_in_time() -> None:
    """Each of those would need all 8 GPUs now, of which 4 are promised."""
    jobs = [job("promised", 3000, 800, 4), job("runs", 4000, 1100, 4)]
    jobs += [job(f"late{i}", 800, 130, submit_s=1.0) for i in range(TRIES)]
    held = after(see(jobs, promised=(PROMISED,)))
    assert {name: gpus for name, gpus in held.items() if gpus} == {"promised": 4, "runs": 4}


def test_in_overload_the_smallest_come_first() -> None:
    seen = see([job("a", 800, 115), *(job(f"b{i}", 200, 115, submit_s=1.0) for i in range(4))])
    assert set(plan(seen).notes) == {"b0", "b1", "b2", "b3"}
    assert after(seen) == {"a": 0, "b0": 2, "b1": 2, "b2": 2, "b3": 2}


def test_a_higher_class_comes_before_the_small() -> None:
    small = [job(f"b{i}", 200, 125, submit_s=1.0) for i in range(4)]
    seen = see([job("a", 800, 125, priority=1), *small])
    assert after(seen)["a"] == 8


def test_a_large_job_runs_without_a_promise_until_its_rest_is_small() -> None:
    policy = Tide(pledge_s=100.0)  # 800 GPU seconds of 8
    for work, note in ((2000.0, {}), (700.0, {"a": (PROMISED,)})):
        seen = see([job("a", work, 1e4)])
        assert after(seen, policy)["a"] >= 1
        assert plan(seen, policy).notes == note
    # It gives way to a small one; who was promised before stays so.
    jobs = [job("a", 2000, 300, 8), job("b", 400, 75, submit_s=1.0)]
    assert after(see(jobs), policy) == {"a": 0, "b": 8}
    assert after(see(jobs, a=(PROMISED,)), policy) == {"a": 8, "b": 0}


def test_a_promise_waits_until_the_rest_is_no_more_than_a_median_job() -> None:
    small = [job(f"b{i}", 300, 1000, submit_s=1.0) for i in range(2)]
    for work, more in ((2000, set()), (300, {"a"})):
        seen = see([job("a", work, 1000, 4), *small])
        assert after(seen)["a"] >= 2, "it runs at once, promise or not"
        assert set(plan(seen).notes) == {"b0", "b1"} | more
    # What they did so far counts: the others were larger once.
    seen = see([job("a", 2000, 1000, 4), *small])
    assert set(plan(columns(seen, attained_gpu_s=[0.0, 5e3, 5e3])).notes) == {"a", "b0", "b1"}
    # Nobody is smaller: who is alone is promised at once.
    assert set(plan(see([job("a", 2000, 1000)])).notes) == {"a"}


def test_what_is_left_goes_to_who_is_late_anyway_and_to_the_rest() -> None:
    best = Job("best", work_s=500.0, rates=LINEAR, start_cost_s=10.0)
    seen = see([job("late", 4000, 20), best, job("a", 400, 150)])
    held = after(seen)
    assert held["a"] >= 4
    assert sum(held.values()) == 8
    assert after(see([job("late", 4000, 20)])) == {"late": 8}
    assert plan(see([job("late", 4000, 20)])).notes == {}


def test_who_is_in_time_on_gpus_of_others_stays_there_without_a_promise() -> None:
    infer = Pool("infer", Kind.INFERENCE, loan=LoanPhase.LENT, speed=0.8)
    mine = replace(job("a", 2000, 2500), held={"infer-000": 8})
    found = opened(snapshot([infer, Pool("train")], [mine, job("b", 4000, 900)], NOW))
    assert found.got() == {"a": ("infer", 8), "b": ("train", 8)}
    assert set(found.promises.notes) == {"b"}
    assert found.promises.bound[found.row("a")] == -1
    # Too slow there: it is brought back to be in time.
    late = replace(mine, deadline_s=NOW + 300)
    assert opened(snapshot([infer, Pool("train")], [late], NOW)).got() == {"a": ("train", 8)}


def test_promises_are_kept_at_every_firm_site() -> None:
    pools = [Pool("a"), Pool("b", speed=2.0)]
    jobs = [job(name, 800, 130, submit_s=float(n)) for n, name in enumerate("pqr")]
    found = opened(snapshot(pools, jobs, NOW))
    assert [kept.site for kept in found.promises.kept] == [0, 1]
    assert sorted(found.promises.bound.tolist()) == [0, 1, 1]
    assert set(found.promises.notes) == {"p", "q", "r"}
    assert all(gpus >= 4 for _, gpus in found.got().values())
    # A promise goes on where the job runs, though another site would have room.
    held = [replace(jobs[0], held={"a-000": 8}), jobs[1]]
    seen = noted(snapshot(pools, held, NOW), p=(PROMISED,))
    assert opened(seen).promises.bound[0] == 0


@pytest.mark.parametrize(("idle", "goes"), [(8, True), (2, True), (1, False)])
def test_who_lends_all_it_has_goes_to_another_site_with_idle_gpus(idle: int, goes: bool) -> None:
    """Its own site, a, keeps 8 GPUs for another until it comes back; in time it is with 2."""
    mark_a, mark_b = (float(crc32(name)) for name in (b"a", b"b"))
    busy = Job("busy", 9e6, sizes=(8 - idle,), held={"b-000": 8 - idle}, start_cost_s=0.0)
    jobs = [job("full", 4000, 520, 8), job("lends", 1000, 900), *([busy] if idle < 8 else [])]
    notes = {"full": (PROMISED, 0.0, 0.0, mark_a), "lends": (PROMISED, 4.0, NOW + 600.0, mark_a)}
    seen = noted(snapshot([Pool("a"), Pool("b")], jobs, NOW, sizes=range(1, 9)), **notes)
    found = opened(seen)
    assert (found.got().get("lends", ("", 0))[0] == "b") == goes
    for kept in found.promises.kept:
        assert free_over_time(kept.slack, kept.schedule).free.min() >= 0
    if goes:
        assert plan(seen).notes == {"lends": (PROMISED, 0.0, 0.0, mark_b)}
        assert reason(plan(seen), "lends").rule == "market.promised"
    else:
        assert reason(plan(seen), "lends").rule == "market.lends"


def mixed(seed: int, lenders: bool) -> Snapshot:
    """Any mixture: moving jobs, two firm sites, perhaps notes of lenders that say too much."""
    rng = np.random.default_rng(seed)
    free = {f"{pool}-{n:03}": 8 for pool in "ab" for n in range(2)}
    jobs, notes = [], {}
    for index in range(int(rng.integers(1, 30))):
        node, size = str(rng.choice(list(free))), int(rng.choice([1, 2, 4, 8]))
        held = {node: size} if rng.random() < 0.6 and free[node] >= size else {}
        free[node] -= held.get(node, 0)
        one = Job(
            f"j{index:02}",
            work_s=float(rng.uniform(1, 5000)),
            power=float(rng.uniform(0.3, 1.0)),
            held=held,
            moving=bool(held) and rng.random() < 0.2,
            deadline_s=NOW + float(rng.uniform(-100, 3000)) if rng.random() < 0.8 else INF,
            submit_s=float(index),
            priority=int(rng.random() < 0.1),
            backoff_until_s=NOW + 5.0 if rng.random() < 0.1 else -INF,
        )
        jobs.append(one)
        if rng.random() < 0.5:
            lent: tuple[float, ...] = ()
            if lenders and rng.random() < 0.4:
                lent = 4.0, NOW + float(rng.uniform(-50, 500)), float(crc32(b"ab"[index % 2 :][:1]))
            notes[one.id] = (PROMISED, *lent)
    return noted(snapshot([Pool("a", nodes=2), Pool("b", nodes=2, speed=1.5)], jobs, NOW), **notes)


@pytest.mark.parametrize("seed", range(30))
def test_never_more_is_promised_than_there_is(seed: int) -> None:
    plan(mixed(seed, lenders=True))
    seen = mixed(seed, lenders=False)
    plan(seen)
    found = opened(seen)
    for kept in found.promises.kept:
        assert free_over_time(kept.slack, kept.schedule).free.min() >= 0
    # Who is kept has at least its course, at its own site.
    bound = np.flatnonzero(found.promises.bound >= 0)
    assert (found.found.site[bound] == found.promises.bound[bound]).all()
    assert (found.found.level[bound] >= found.promises.floor[bound]).all()
