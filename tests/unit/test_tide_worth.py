"""What each job is worth where: short ones, those that went without, and those with a right."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.tide.tide import Tide
from scheduler.policies.tide.worth import (
    AGE_POWER,
    FAVOUR,
    LENGTH_POWER,
    MOVE,
    PAUSES,
    RANK_POWER,
    RIPPLE,
    START_MOST,
    UNDONE,
)
from tests.markets import columns, opened
from tests.snapshots import Job, Pool, snapshot

NOW_S = 10_000.0
HOUR_S = 3600.0
TRAIN = Pool("train")


def test_weights_are_those_of_the_formula() -> None:
    jobs = [Job("a", work_s=100), Job("b", work_s=400), Job("c", work_s=400, sizes=(2, 4))]
    # Time on one GPU at the base size's speed: two are slower than two GPUs by 2 ** 0.1.
    work_s = np.array([100.0, 400.0, 400.0 * 2**0.1])
    rank, base = np.array([3, 2, 1]), np.array([1, 1, 2])
    expected = (2 * rank - 1) ** RANK_POWER * work_s**-LENGTH_POWER
    expected *= (NOW_S + work_s / base) ** AGE_POWER
    assert opened(snapshot([TRAIN], jobs)).weight == pytest.approx(expected)


def test_the_short_weigh_more_and_equals_are_ranked_by_their_place() -> None:
    jobs = [Job(f"j{n}", work_s=work_s) for n, work_s in enumerate((500, 50, 500, 5000))]
    weight = opened(snapshot([TRAIN], jobs)).weight
    assert np.argsort(-weight).tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize(("hours", "factor"), [(1.0, 1.0), (3.0, 1.0), (9.0, 1.5), (12.0, 2.0)])
def test_who_went_without_for_long_weighs_more(hours: float, factor: float) -> None:
    """A job's own time without GPUs counts, not its age: the other held some all the time."""
    jobs = [Job("went", work_s=90_000), Job("held", work_s=90_000)]
    age_s = hours * HOUR_S
    seen = columns(snapshot([TRAIN], jobs, now_s=age_s), held_s=[0.0, age_s])
    weight = opened(seen, Tide(patience_s=6 * HOUR_S)).weight
    assert weight[1] / weight[0] * factor == pytest.approx(3**RANK_POWER)


def test_a_priority_doubles_the_weight_or_halves_it() -> None:
    jobs = [Job("a"), Job("b"), Job("c"), Job("d")]
    usual = opened(snapshot([TRAIN], jobs)).weight
    seen = columns(snapshot([TRAIN], jobs), priority=[0, 1, 99, -10])
    assert opened(seen).weight / usual == pytest.approx([1.0, FAVOUR, FAVOUR, 1 / FAVOUR])


def test_who_has_a_right_is_worth_more_than_all_of_a_lower_class() -> None:
    jobs = [
        Job("long", work_s=1e7, sizes=(4,), priority=1),
        Job("longer", work_s=1e8, sizes=(8,), priority=2),
        *(Job(f"short{n}", work_s=10.0) for n in range(5)),
    ]
    found = opened(snapshot([TRAIN], jobs))
    per_gpu = found.value[0, :, 1:] / found.market.sizes[1:]
    own = [found.row("long"), found.row("longer")]
    others = np.delete(per_gpu, own, axis=0).max()
    assert others < per_gpu[own[0]].max() < per_gpu[own[1]].max()
    assert found.got() == {"longer": ("train", 8)}
    # The right is to the base size: more than that is worth as much as to others.
    alike = opened(columns(found.seen, priority=np.ones(len(jobs), dtype=np.int64)))
    assert alike.value[0, :, 1:].max() < others * 99


def test_within_a_class_the_short_may_grow_before_the_long_start() -> None:
    """Also beside other classes: a right is no more than what lower ones could pay."""
    short = [Job(f"s{n}", work_s=600.0, sizes=(1, 2, 4), power=1.0) for n in range(2)]
    long = [Job(f"l{n}", work_s=1e6, sizes=(1,)) for n in range(4)]
    alone = opened(snapshot([TRAIN], [*short, *long])).got()
    assert alone == {"s0": ("train", 4), "s1": ("train", 4)}
    below = [Job(f"b{n}", work_s=1e5, priority=-1) for n in range(2)]
    assert opened(snapshot([TRAIN], [*short, *long, *below])).got() == alone
    above = Job("a", work_s=1e7, sizes=(4,), priority=1)
    found = opened(snapshot([TRAIN], [*short, *long, above])).got()
    assert found.pop("a") == ("train", 4)
    assert found == {"s0": ("train", 2), "s1": ("train", 2)}, "what is left is shared by worth"


def test_rights_of_many_classes_are_told_apart() -> None:
    jobs = [Job(f"j{n:03}", work_s=10.0 ** (n % 7), sizes=(1, 2), priority=n) for n in range(200)]
    found = opened(snapshot([TRAIN], jobs))
    assert found.got() == {f"j{n:03}": ("train", 1) for n in range(192, 200)}
    per_gpu = found.value[0, :, 1]
    assert (np.diff(per_gpu) > 0).all(), "a higher priority is worth more, by each"


def test_a_change_loses_what_its_pause_takes() -> None:
    """A running job must regain twice its pause within the horizon; a start loses at most 0.3."""
    job = Job("a", work_s=90_000, power=1.0, held={"train-000": 4}, checkpoint_cost_s=0.0)
    runs = opened(snapshot([TRAIN], [job]), Tide(horizon_s=500.0))
    here, more = (float(runs.value[0, 0, level] / runs.weight[0]) for level in (3, 4))
    pause_s = 20.0 + 2.0 * 3
    assert here == pytest.approx(4.0)
    assert more == pytest.approx(8.0 * (1 - RIPPLE * pause_s / 500.0))
    waits = opened(snapshot([TRAIN], [Job("a", work_s=90_000, power=1.0, checkpoint_cost_s=0.0)]))
    lost = RIPPLE * pause_s / 600.0
    assert waits.value[0, 0, 4] / waits.weight[0] == pytest.approx(8.0 * (1 - lost))
    slow = opened(snapshot([TRAIN], [Job("a", work_s=90_000, power=1.0, start_cost_s=400.0)]))
    assert slow.value[0, 0, 4] / slow.weight[0] == pytest.approx(8.0 * (1 - START_MOST))


def test_a_long_job_may_change_however_long_it_takes_to_start() -> None:
    """With a pause of half the horizon, and no more time to regain it, nothing would ever pay."""
    job = Job("a", work_s=9e6, power=1.0, held={"train-000": 1}, start_cost_s=900.0)
    found = opened(snapshot([TRAIN], [job]), Tide(horizon_s=600.0))
    grown = 8.0 * (1 - RIPPLE / PAUSES)
    assert found.value[0, 0, 4] / found.weight[0] == pytest.approx(grown)
    assert found.got() == {"a": ("train", 8)}
    # What ends before it has regained its pause stays as it is.
    job = Job("a", work_s=1500.0, power=1.0, held={"train-000": 1}, start_cost_s=900.0)
    assert opened(snapshot([TRAIN], [job])).got() == {"a": ("train", 1)}


def test_a_move_to_another_site_counts_half() -> None:
    """The GPUs that it leaves are others' gain; who starts, or grows, takes them from others."""
    job = Job("a", work_s=90_000, power=1.0, held={"train-000": 4}, checkpoint_cost_s=0.0)
    seen = snapshot([TRAIN, Pool("other")], [job])
    found = opened(seen, Tide(horizon_s=500.0))
    pause_s = 20.0 + 2.0 * 3
    for site, counted in (("other", MOVE), ("train", RIPPLE)):
        gained = float(found.value[seen.pools.ids.index(site), 0, 4] / found.weight[0])
        assert gained == pytest.approx(8.0 * (1 - counted * pause_s / 500.0))


def test_a_change_of_who_runs_loses_something_though_it_is_free() -> None:
    """The next change undoes it often; a start takes nothing from a job that runs."""
    runs = Job("a", power=1.0, held={"train-000": 4}, start_cost_s=0.0, checkpoint_cost_s=0.0)
    found = opened(snapshot([TRAIN, Pool("other")], [runs]))
    for site, lost in (("other", MOVE * UNDONE), ("train", RIPPLE * UNDONE)):
        at = found.seen.pools.ids.index(site)
        assert found.value[at, 0, 4] / found.weight[0] == pytest.approx(8.0 * (1 - lost))
    waits = opened(snapshot([TRAIN], [replace(runs, held={})]))
    assert waits.value[0, 0, 4] / waits.weight[0] == pytest.approx(8.0)


def test_nothing_is_worth_nothing_and_what_cannot_be_less() -> None:
    jobs = [Job("a", sizes=(2, 8)), Job("b", work_s=1.0, held={"train-000": 2}, start_cost_s=9e3)]
    value = opened(snapshot([TRAIN], jobs)).value[0]
    assert (value[:, 0] == 0.0).all()
    assert np.isneginf(value[0, [1, 3, 5, 6, 7]]).all()
    assert (value[1, [1, 3, 4]] == 0.0).all(), "no pause costs more than all that it gains"


def test_who_has_just_started_is_worth_more_until_five_pauses_have_passed() -> None:
    """A start of 30 s: 20 to start and 10 of a checkpoint."""
    job = Job("a", sizes=(1,), held={"train-000": 1})

    def value(since_s: float) -> float:
        found = opened(snapshot([TRAIN], [replace(job, changed_s=NOW_S - since_s)]))
        return float(found.value[0, 0, 1])

    plain = value(PAUSES * 30.0)
    assert value(1e9) == value(PAUSES * 30.0 + 1.0) == plain
    assert value(0.0) == pytest.approx(plain * (1.0 + START_MOST))
    assert value(PAUSES * 15.0) == pytest.approx(plain * (1.0 + START_MOST / 2))


def test_what_starts_at_once_has_no_advantage() -> None:
    free = Job("a", sizes=(1,), held={"train-000": 1}, start_cost_s=0.0, checkpoint_cost_s=0.0)
    values = [
        opened(snapshot([TRAIN], [replace(free, changed_s=NOW_S - since_s)])).value[0, 0, 1]
        for since_s in (0.0, 1e9)
    ]
    assert values[0] == values[1]


@pytest.mark.parametrize(("since_s", "stopped"), [(1.0, False), (300.0, True)])
def test_a_job_that_has_just_started_is_not_stopped_for_a_little(
    since_s: float, stopped: bool
) -> None:
    runs = Job("runs", work_s=9_000, sizes=(8,), held={"train-000": 8}, changed_s=NOW_S - since_s)
    got = opened(snapshot([TRAIN], [runs, Job("comes", work_s=8_900, sizes=(8,))])).got()
    assert set(got) == {"comes" if stopped else "runs"}
