"""Policies that know types of GPUs: Gavel's shares of time, Sia's configurations."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler.policies.interface import Snapshot
from scheduler.policies.literature.gavel import Gavel, fair_shares
from scheduler.policies.literature.sia import Sia, best_configs
from tests.markets import columns, pools, sizes
from tests.snapshots import Job, Pool, apply, decide, snapshot

NOW_S = 10_000.0
SIZES = np.array([1, 2, 4, 8])


# --- gavel ----------------------------------------------------------------------------------------


def levels(rate: np.ndarray, weight: np.ndarray, shares: np.ndarray) -> np.ndarray:
    found: np.ndarray = weight * (rate * shares).sum(axis=1)
    return found


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_least_share_is_the_best_on_a_grid(seed: int) -> None:
    """Two or three jobs, two types: no point of a grid beats it, and it is within a step of one."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 4))
    rate, gpus = rng.uniform(0.2, 2.0, (n, 2)), rng.integers(1, 4, n)
    weight, capacity = rng.uniform(0.5, 2.0, n), rng.integers(3, 5, 2)
    shares = fair_shares(rate, gpus, weight, capacity)
    assert (shares >= -1e-9).all()
    assert (shares.sum(axis=1) <= 1 + 1e-6).all()
    assert (gpus @ shares <= capacity + 1e-6).all()
    steps = 8 if n == 2 else 4
    parts = np.array([p for p in product(range(steps + 1), repeat=2) if sum(p) <= steps]) / steps
    some = np.array(list(product(range(len(parts)), repeat=n)))
    use = sum(gpus[job] * parts[some[:, job]] for job in range(n))
    able = (use <= capacity + 1e-9).all(axis=1)
    worth = np.stack([weight[j] * (parts[some[:, j]] @ rate[j]) for j in range(n)], axis=1)
    best = float(worth[able].min(axis=1).max())
    least = float(levels(rate, weight, shares).min())
    assert least >= best - 1e-6
    assert least <= best + 2 * float((weight[:, None] * rate).max()) / steps


def test_who_cannot_have_more_does_not_hold_the_others_down() -> None:
    """Water-filling: the slow job is served all the time; what is left goes to the fast one."""
    rate = np.array([[1.0, 0.0], [4.0, 4.0]])
    shares = fair_shares(rate, np.ones(2, dtype=np.int64), np.ones(2), np.array([1, 1]))
    assert levels(rate, np.ones(2), shares) == pytest.approx([1.0, 4.0])


def test_like_jobs_are_one_and_unlike_ones_go_where_they_are_better() -> None:
    rate = np.array([[3.0, 1.0]] * 4 + [[1.0, 1.0]] * 4)
    gpus, weight = np.full(8, 1), np.ones(8)
    shares = fair_shares(rate, gpus, weight, np.array([2, 4]))
    assert (shares[:4] == shares[0]).all()
    assert (shares[4:] == shares[4]).all()
    assert shares[4, 0] == pytest.approx(0.0, abs=1e-6)
    assert shares[0, 0] == pytest.approx(0.5)


def test_a_gang_larger_than_every_type_gets_nothing_and_harms_nobody() -> None:
    shares = fair_shares(np.ones((2, 2)), np.array([9, 1]), np.ones(2), np.array([4, 4]))
    assert shares[0].tolist() == [0.0, 0.0]
    assert shares[1].sum() == pytest.approx(1.0)


def two_types(*jobs: Job) -> Snapshot:
    return snapshot([Pool("fast", speed=4.0, gpus=4), Pool("slow", gpus=4)], jobs)


def test_gavel_shares_the_fast_type_in_turns() -> None:
    """Who had the fast GPUs until now leaves them, when the round is over, to who had none."""
    jobs = [
        Job("a", sizes=(4,), held={"fast-000": 4}, submit_s=NOW_S - 360, changed_s=NOW_S - 360),
        Job("b", sizes=(4,), held={"slow-000": 4}, submit_s=NOW_S - 360, changed_s=NOW_S - 360),
    ]
    held_s = np.array([360.0, 360.0])
    for end_s, want in ((NOW_S + 1, {}), (NOW_S, {"a": "slow", "b": "fast"})):
        notes = np.array([[end_s, 0.0, 0.0, np.nan]] * 2)
        plan = decide(Gavel(), columns(two_types(*jobs), held_s=held_s, notes=notes))
        assert pools(plan) == want
        if want:
            assert plan.notes["a"] == (NOW_S + 360, 360.0, 0.0, 0.0)
            assert plan.notes["b"] == (NOW_S + 360, 0.0, 360.0, 0.0)


def test_within_a_round_gavel_fills_what_is_idle() -> None:
    jobs = [Job("a", sizes=(4,), held={"fast-000": 4}), Job("new", sizes=(4,), submit_s=1)]
    notes = np.array([[NOW_S + 100, 0.0, 0.0, 0.0], [np.nan] * 4])
    assert pools(decide(Gavel(), columns(two_types(*jobs), notes=notes))) == {"new": "slow"}


def test_gavel_rotates_until_all_had_their_share() -> None:
    """Three like gangs, one type with room for one: each runs a third of the rounds."""
    jobs = [Job(f"j{k}", sizes=(8,), work_s=1e9, submit_s=0) for k in range(3)]
    had = dict.fromkeys(("j0", "j1", "j2"), 0.0)
    notes: dict[str, tuple[float, ...]] = {}
    for turn in range(9):
        seen = snapshot([Pool("train")], jobs, now_s=360.0 * turn)
        column = np.array([[*notes.get(j, ()), *[np.nan] * 4][:4] for j in seen.jobs.ids])
        seen = columns(seen, notes=column, held_s=np.array(list(had.values())))
        plan = decide(Gavel(), seen)
        notes.update(plan.notes)
        jobs = apply(seen, plan, jobs)
        for job in jobs:
            had[job.id] += 360.0 if job.held else 0.0
    assert set(had.values()) == {3 * 360.0}


# --- sia ------------------------------------------------------------------------------------------


def worth(value: np.ndarray, chosen: np.ndarray) -> float:
    flat = value.reshape(len(value), -1)
    return float(sum(flat[job, at] for job, at in enumerate(chosen.tolist()) if at >= 0))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_the_knapsack_and_the_integer_program_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, gpus = int(rng.integers(1, 12)), int(rng.integers(1, 25))
    value = np.cumsum(rng.uniform(-0.3, 1.0, (n, 1, 4)), axis=2)
    by_knapsack = best_configs(value, SIZES, np.array([gpus]))
    # A second pool where one dummy job alone is worth something makes it a program.
    both = np.zeros((n + 1, 2, 4))
    both[:n, :1], both[n, 1, 0] = value, 1.0
    by_program = best_configs(both, SIZES, np.array([gpus, 1]))
    assert by_program[n] == 4
    assert worth(value, by_knapsack) == pytest.approx(worth(value, by_program[:n]))
    used = sum(SIZES[at] for at in by_knapsack.tolist() if at >= 0)
    assert used <= gpus


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_configurations_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = rng.uniform(-0.2, 1.0, (3, 2, 3))
    capacity, gpus = rng.integers(1, 7, 2), np.tile(SIZES[:3], 2)
    best = 0.0
    for picks in product(range(-1, 6), repeat=3):
        use = np.zeros(2)
        for at in picks:
            if at >= 0:
                use[at // 3] += gpus[at]
        if (use <= capacity).all():
            best = max(best, worth(value, np.array(picks)))
    found = best_configs(value, SIZES[:3], capacity)
    assert worth(value, found) == pytest.approx(best)


def test_sia_starts_small_and_doubles() -> None:
    job = Job("a", sizes=(1, 2, 4, 8), power=0.95, submit_s=0)
    plan = decide(Sia(), snapshot([Pool("train")], [job]))
    assert (sizes(plan), plan.notes) == ({"a": 1}, {"a": (1.0,)})
    held = replace(job, held={"train-000": 2})
    plan = decide(Sia(), snapshot([Pool("train")], [held]))
    assert (sizes(plan), plan.notes) == ({"a": 4}, {"a": (4.0,)})
    stopped = columns(snapshot([Pool("train")], [job]), notes=np.array([[4.0] + [np.nan] * 3]))
    assert sizes(decide(Sia(), stopped)) == {"a": 8}


def test_sia_lets_nobody_wait_for_the_growth_of_another() -> None:
    """With `idle` 1.1 a start is worth 1.1 - 1 - 0.01; from 4 GPUs to 1 costs 1 - 4 ** -0.5."""
    jobs = [Job(f"j{k}", sizes=(1, 2, 4), power=1.0, submit_s=0) for k in range(8)]
    jobs[0] = replace(jobs[0], held={"train-000": 4})
    seen = snapshot([Pool("train")], jobs)
    assert sizes(decide(Sia(), seen)) == {f"j{k}": 1 for k in range(8)}
    assert sizes(decide(Sia(idle=1.1), seen)) == {f"j{k}": 1 for k in range(1, 5)}


@pytest.mark.parametrize(("restarts", "moves"), [(0, True), (200, False)])
def test_sia_moves_to_a_faster_type_unless_it_moved_too_often(restarts: int, moves: bool) -> None:
    job = Job("a", sizes=(4,), held={"slow-000": 4}, submit_s=NOW_S - 5000)
    seen = columns(two_types(job), restarts=np.array([restarts]))
    assert pools(decide(Sia(), seen)) == ({"a": "fast"} if moves else {})


def test_sia_takes_parts_of_a_node_or_whole_ones() -> None:
    """6 GPUs on nodes of 4 are neither; 3 is all that `odd` allows, so it may have it."""
    levels = (1, 2, 3, 4, 6, 8)
    jobs = [
        Job("a", sizes=(1, 2, 3, 4, 6, 8), power=1.0, submit_s=0),
        Job("odd", sizes=(3,), submit_s=0),
    ]
    seen = snapshot([Pool("train", nodes=3, gpus=4)], jobs, sizes=levels)
    notes = np.array([[3.0] + [np.nan] * 3, [np.nan] * 4])
    assert sizes(decide(Sia(), columns(seen, notes=notes))) == {"a": 4, "odd": 3}
