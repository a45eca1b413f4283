"""Policies that know deadlines, in the cloud: EDF and ElasticFlow with its parts."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.literature.edf import Edf
from scheduler.policies.literature.elasticflow import ADMITTED, ElasticFlow
from scheduler.policies.parts.minimum import Least, least, plan_least
from scheduler.policies.parts.share import Curve, Demand, Profile, book, curve
from scheduler.policies.parts.surplus import best_effort_price, share_out
from tests.markets import noted, sizes
from tests.snapshots import Job, Pool, decide, rules, snapshot

NOW = 10_000.0
TRAIN = Pool("train", nodes=1, gpus=8)
CURVE = curve(np.array([1, 2, 4, 8]), np.array([1.0, 1.8, 3.0, 2.9]))


def room(gpus: int) -> Profile:
    return Profile(np.array([0.0]), np.array([gpus], dtype=np.int64))


def gpu_s(least: Least) -> float:
    own = least.filling
    ends_s = np.concatenate((own.starts_s[1:], [own.end_s]))
    return float(own.used @ (ends_s - own.starts_s))


# --- the least that keeps a deadline --------------------------------------------------------------


def test_sizes_that_are_no_faster_than_smaller_ones_are_not_worth_having() -> None:
    assert CURVE.sizes.tolist() == [1, 2, 4]
    assert curve(np.array([1, 2]), np.array([0.0, 2.0])).sizes.tolist() == [2]


def test_a_share_is_filled_backwards_from_the_deadline() -> None:
    # 100 steps in 60 s: 1 GPU gives 60, 2 give 108. 2 GPUs are needed for 50 s, 1 before.
    profile = room(8)
    own = least(profile, Demand(100.0, 60.0, CURVE), 0.0)
    assert own is not None
    assert own.filling.used.tolist() == [1, 2]
    assert own.filling.starts_s.tolist() == [0.0, pytest.approx(10.0)]
    assert own.filling.end_s == pytest.approx(60.0)
    assert gpu_s(own) == pytest.approx(110.0)
    book(profile, own.filling)
    assert profile.free.tolist() == [7, 6, 8]


def test_the_moment_of_growth_is_rounded_down_to_a_slot() -> None:
    own = least(room(8), Demand(100.0, 60.0, CURVE), 8.0)
    assert own is not None
    assert own.filling.starts_s.tolist() == [0.0, 8.0]
    assert own.filling.end_s == pytest.approx(8.0 + 92.0 / 1.8)


def test_who_has_time_starts_as_late_as_can_be() -> None:
    own = least(room(8), Demand(30.0, 60.0, CURVE), 0.0)
    assert own is not None
    assert own.filling.now == 0
    assert own.filling.end_s == pytest.approx(60.0)


def test_what_earlier_jobs_took_is_not_there() -> None:
    profile = Profile(np.array([0.0, 30.0]), np.array([1, 4], dtype=np.int64))
    own = least(profile, Demand(90.0, 60.0, CURVE), 0.0)  # 30 by 30 s, then 2 per s
    assert own is not None
    assert own.filling.used[:2].tolist() == [1, 2]
    assert own.filling.end_s == pytest.approx(60.0)
    assert least(profile, Demand(121.0, 60.0, CURVE), 0.0) is None
    assert least(profile, Demand(1.0, 0.0, CURVE), 0.0) is None
    assert least(profile, Demand(1.0, 60.0, Curve(CURVE.sizes[:0], CURVE.rate[:0])), 0.0) is None


def test_least_is_the_cheapest_of_all_plans_of_two_neighbouring_sizes() -> None:
    chance = np.random.default_rng(3)
    for _ in range(200):
        free = chance.integers(0, 9, size=5).astype(np.int64)
        starts_s = np.concatenate(([0.0], np.cumsum(chance.integers(5, 30, size=4)))) * 1.0
        work, due_s = float(chance.integers(20, 200)), float(chance.integers(40, 140))
        demand = Demand(work, due_s, CURVE)
        own = least(Profile(starts_s, free), demand, 0.0)
        cheapest = _search(starts_s, free, demand)
        if own is None:
            assert cheapest == math.inf
        else:
            assert own.filling.end_s <= due_s + 1e-6
            assert gpu_s(own) <= cheapest + 1e-6


def _search(starts_s: np.ndarray, free: np.ndarray, demand: Demand) -> float:
    """GPU-seconds of the best of all whole seconds to grow at, at the smallest share that does."""
    seconds = np.arange(int(demand.deadline_s))
    there = free[np.searchsorted(starts_s, seconds, side="right") - 1]
    gpus = np.concatenate(([0], CURVE.sizes))
    pace = np.concatenate(([0.0], CURVE.rate))
    offered = np.searchsorted(CURVE.sizes, there, side="right")
    for share in range(1, len(gpus)):
        if pace[np.minimum(offered, share)].sum() < demand.work - 1e-9:
            continue
        cost = math.inf
        for grows in range(len(seconds) + 1):
            level = np.minimum(offered, np.where(seconds < grows, share - 1, share))
            done = np.cumsum(pace[level])
            if done[-1] >= demand.work - 1e-9:
                last = int(np.searchsorted(done, demand.work - 1e-9))
                over = (done[last] - demand.work) / pace[level[last]]
                cost = min(cost, gpus[level[: last + 1]].sum() - over * gpus[level[last]])
        return cost
    return math.inf


def test_who_cannot_be_in_time_never_takes_from_who_can() -> None:
    late, fine = Demand(500.0, 50.0, CURVE), Demand(150.0, 60.0, CURVE)
    ledger = plan_least(room(4), [late, fine], 0.0)
    assert ledger.least[0] is None
    assert ledger.least[1] is not None
    assert ledger.gpus_now.tolist() == [0, 2]


# --- the surplus ----------------------------------------------------------------------------------


def surplus(demands: list[Demand], gpus: int) -> list[int]:
    ledger = plan_least(room(gpus), demands, 10.0)
    price = [
        best_effort_price(demand) if own is None else own.price
        for demand, own in zip(demands, ledger.least, strict=True)
    ]
    free = int(ledger.profile.free[0])
    got: list[int] = share_out(ledger.gpus_now, free, demands, price).tolist()
    return got


def test_who_holds_nothing_comes_first() -> None:
    idle, busy = Demand(10.0, 1000.0, CURVE), Demand(100.0, 60.0, CURVE)
    assert surplus([busy, idle], 2) == [1, 1]
    assert surplus([busy, idle], 3) == [2, 1]


def test_the_steeper_curve_grows_first_with_prices_and_without() -> None:
    flat = curve(np.array([1, 2]), np.array([1.0, 1.1]))
    steep = curve(np.array([1, 2]), np.array([1.0, 2.0]))
    demands = [Demand(100.0, 200.0, flat), Demand(100.0, 200.0, steep)]
    assert surplus(demands, 3) == [1, 2]
    assert share_out(np.array([0, 0]), 3, demands).tolist() == [1, 2]


def test_best_effort_gets_what_is_left_and_no_more() -> None:
    free, timed = Demand(1000.0, math.inf, CURVE), Demand(150.0, 60.0, CURVE)
    assert surplus([timed, free], 4)[0] >= 2
    assert sum(surplus([timed, free], 8)) == 8
    assert surplus([Demand(170.0, 60.0, CURVE), free], 4) == [4, 0]


# --- ElasticFlow ----------------------------------------------------------------------------------


def job(name: str, work_s: float, due_in_s: float, **more: object) -> Job:
    made = Job(name, work_s=work_s, deadline_s=NOW + due_in_s, rates=(1.0, 1.8, 3.0, 5.0))
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_job_is_declined_if_somebody_would_be_late() -> None:
    a, b = job("a", 4500.0, 1000.0), job("b", 4500.0, 1001.0, submit_s=1.0)
    alone = snapshot([TRAIN], [a])
    plan = decide(ElasticFlow(), alone)
    assert plan.notes == {"a": ADMITTED}
    assert sizes(plan) == {"a": 8}
    held = replace(a, held={"train-000": 8})
    plan = decide(ElasticFlow(), noted(snapshot([TRAIN], [held, b]), a=ADMITTED))
    assert (plan.decline, plan.notes, plan.targets) == (("b",), {}, {})
    assert rules(plan) == {"b": "elasticflow.declined"}
    (reason,) = plan.reasons
    assert reason.needs[0].want >= NOW + 1001.0


def test_arrivals_of_one_moment_stand_or_fall_together() -> None:
    jobs = [job("a", 800.0, 1000.0), job("b", 9000.0, 1000.0, submit_s=1.0)]
    seen = snapshot([TRAIN], jobs)
    plan = decide(ElasticFlow(), seen)
    assert (plan.decline, plan.notes) == (("a", "b"), {})


def test_a_promise_already_lost_does_not_decline_others() -> None:
    lost = job("a", 90_000.0, 100.0, held={"train-000": 8})
    seen = noted(snapshot([TRAIN], [lost, job("b", 800.0, 1000.0, submit_s=1.0)]), a=ADMITTED)
    plan = decide(ElasticFlow(), seen)
    assert plan.notes == {"b": ADMITTED}
    assert sizes(plan) == {"a": 4, "b": 4}
    assert rules(plan) == {"a": "elasticflow.late", "b": "elasticflow.surplus"}


def test_a_job_that_runs_already_is_admitted_as_it_is() -> None:
    seen = snapshot([TRAIN], [job("a", 90_000.0, 100.0, held={"train-000": 2})])
    assert ElasticFlow().plan(seen).notes == {"a": ADMITTED}


def test_best_effort_is_always_admitted_and_waits_for_room() -> None:
    jobs = [Job("a", work_s=500.0), job("b", 4900.0, 1000.0, submit_s=1.0)]
    plan = decide(ElasticFlow(), snapshot([TRAIN], jobs))
    assert plan.notes == {"a": ADMITTED, "b": ADMITTED}
    assert sizes(plan) == {"b": 8}
    assert rules(plan)["a"] == "elasticflow.best_effort"


def test_what_moves_now_is_planned_with_from_when_it_ends() -> None:
    moving = job("a", 900.0, 1000.0, held={"train-000": 8}, moving=True)  # 180 s at 8 GPUs
    soon, later = job("b", 4000.0, 900.0, submit_s=1.0), job("b", 4000.0, 1200.0, submit_s=1.0)
    seen = noted(snapshot([TRAIN], [moving, soon]), a=ADMITTED)
    assert ElasticFlow().plan(seen).decline == ("b",)
    plan = decide(ElasticFlow(), noted(snapshot([TRAIN], [moving, later]), a=ADMITTED))
    assert plan.notes == {"b": ADMITTED}
    assert plan.targets == {}


def test_an_admitted_job_waits_while_it_backs_off() -> None:
    seen = snapshot([TRAIN], [job("a", 800.0, 1000.0, backoff_until_s=NOW + 60.0)])
    plan = decide(ElasticFlow(), seen)
    assert (plan.targets, plan.notes) == ({}, {})
    assert rules(plan) == {"a": "gang.backoff"}


# --- EDF ------------------------------------------------------------------------------------------


def test_the_nearest_deadline_takes_its_best_size_though_less_would_do() -> None:
    jobs = [job("a", 100.0, 5000.0), job("b", 100.0, 4000.0, sizes=(1, 2, 4), rates=(1, 2, 3))]
    plan = decide(Edf(), snapshot([TRAIN], jobs))
    assert sizes(plan) == {"a": 4, "b": 4}


def test_who_can_no_longer_be_in_time_still_goes_first() -> None:
    held = job("b", 10.0, 500.0, held={"train-000": 8}, submit_s=1.0)
    plan = decide(Edf(), snapshot([TRAIN], [job("a", 1e6, -100.0), held]))
    assert sizes(plan) == {"a": 8, "b": 0}


def test_without_a_deadline_comes_last_by_submission() -> None:
    jobs = [Job("a", sizes=(4,)), Job("b", sizes=(4,), submit_s=1.0), job("c", 9.0, 9e9, sizes=(4,),
            rates=(1.0,), submit_s=2.0)]  # fmt: skip
    plan = decide(Edf(), snapshot([TRAIN], jobs))
    assert sizes(plan) == {"a": 4, "c": 4}
    (waits,) = [reason for reason in plan.reasons if reason.verb == "waits"]
    assert (waits.subject, waits.lost_to) == ("b", ("c", "a"))


def test_the_largest_size_may_be_slower_than_the_fastest() -> None:
    seen = snapshot([TRAIN], [job("a", 9.0, 99.0, rates=(1.0, 3.0, 3.0, 2.0))])
    assert sizes(Edf().plan(seen)) == {"a": 2}
    assert sizes(Edf(most="largest").plan(seen)) == {"a": 8}
