"""Room for a large gang that waits beside idle GPUs, in place of a few that gain less together."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.parts.hull import climb, take
from scheduler.policies.tide.gangs import displaced_by, shared_out
from scheduler.policies.tide.tide import Tide
from tests.markets import opened, plan, reason, sizes
from tests.snapshots import Job, Pool, snapshot

HOUR_S = 3600.0
TRAIN = [Pool("train", nodes=3)]
GANG = Job("gang", work_s=160 * HOUR_S, sizes=(16,))


def small(number: int, node: int = 0, priority: int = 0) -> Job:
    """A job of one GPU that runs; each is a little longer than the one before it."""
    return Job(
        f"s{number}",
        work_s=(10 + number / 10) * HOUR_S,
        sizes=(1,),
        held={f"train-{node:03}": 1},
        priority=priority,
    )


SMALL = [small(number) for number in range(8)] + [small(number, 1) for number in (8, 9)]


def test_a_gang_starts_where_it_gains_more_than_the_few_that_have_to_go() -> None:
    """14 of 24 GPUs are idle, and each of ten small jobs gains more a GPU than a gang of 16."""
    found = plan(snapshot(TRAIN, [*SMALL, GANG]))
    assert sizes(found) == {"gang": 16, "s8": 0, "s9": 0}, "the least worth of the small ones go"
    told = reason(found, "gang")
    worth, price = (one.value for one in told.figures if one.name.endswith("per_gpu"))
    assert (told.verb, told.rule) == ("starts", "market.gang")
    assert worth <= price
    gone = reason(found, "s9")
    assert (gone.verb, gone.rule) == ("preempts", "market.outbid")
    assert gone.lost_to[0] == "gang"
    assert next(one.value for one in gone.figures if one.name == "worth_per_gpu") > price
    (need,) = gone.needs
    more = Pool("train", nodes=3, gpus=8 + int(need.want - need.have))
    assert sizes(plan(snapshot([more], [*SMALL, GANG]))) == {"gang": 16}


def test_it_stays_once_it_runs_and_those_that_went_come_back_when_it_ends() -> None:
    runs = replace(GANG, held={"train-001": 8, "train-002": 8})
    waits = [replace(job, held={}) for job in SMALL[8:]]
    assert sizes(plan(snapshot(TRAIN, [*SMALL[:8], *waits, runs]))) == {}
    assert sizes(plan(snapshot(TRAIN, [*SMALL[:8], *waits]))) == {"s8": 1, "s9": 1}


def test_it_waits_where_those_that_would_go_lose_more() -> None:
    """With six GPUs idle ten of the small ones would have to go."""
    more = [small(number, 1) for number in range(10, 16)] + [small(16, 2), small(17, 2)]
    told = reason(plan(snapshot(TRAIN, [*SMALL, *more, GANG])), "gang")
    assert (told.verb, told.rule) == ("waits", "market.outbid")


def test_nobody_of_a_higher_class_goes_for_it() -> None:
    high = [replace(job, priority=1) for job in SMALL]
    found = plan(snapshot(TRAIN, [*high, GANG]))
    assert sizes(found) == {}
    assert reason(found, "gang").verb == "waits"
    found = plan(snapshot(TRAIN, [*high[:8], *SMALL[8:], GANG]))
    assert sizes(found) == {"gang": 16, "s8": 0, "s9": 0}, "of its own class they do"


def test_limits_that_nobody_meets_change_nothing() -> None:
    seen = snapshot(TRAIN, [*SMALL, GANG])
    tenants = tuple("few" if name == "gang" else "many" for name in seen.jobs.ids)
    seen = replace(seen, jobs=replace(seen.jobs, tenants=tenants))
    for quotas in ({}, {"many": "..20"}, {"few": "..20"}):
        assert sizes(plan(seen, Tide(quotas=quotas))) == {"gang": 16, "s8": 0, "s9": 0}
    assert sizes(plan(seen, Tide(quotas={"few": "..15"}))) == {}
    assert sizes(plan(seen, Tide(quotas={"many": "10.."}))) == {}, "a guarantee is a right"


def test_it_bids_for_another_site_as_well() -> None:
    """Both sites are as good for it; what is idle at one, and few would have to go, decides."""
    pools = [Pool("a", nodes=2), Pool("train", nodes=3)]
    full = [Job(f"f{at}", work_s=HOUR_S, sizes=(8,), held={f"a-{at:03}": 8}) for at in range(2)]
    got = opened(snapshot(pools, [*full, *SMALL, GANG])).got()
    assert got["gang"] == ("train", 16)
    assert {got["f0"], got["f1"]} == {("a", 8)}


def test_it_does_not_go_first_for_what_others_find_room_for_besides() -> None:
    """Two gangs of 8 gain more than one of 12, but none of them alone, as its reason would say.

    Of 18 GPUs 6 are idle beside the larger one, whose reason to wait would count too few GPUs.
    """
    levels = np.array([0, 8, 12])
    value = np.array([[0.0, -np.inf, 12.6], [0.0, 8.0, -np.inf], [0.0, 7.9, -np.inf]])
    start = np.zeros(3, dtype=np.int64)
    steps = climb(levels, value, start)
    got, first = shared_out(levels, value, start, steps, 18, start)
    assert (got.tolist(), first) == ([2, 0, 0], -1)
    assert displaced_by(levels, steps)[0] == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_all_gain_is_never_less_and_never_takes_more_than_there_is(seed: int) -> None:
    """A step that goes behind one taken first finds room again once `displaced_by` is added."""
    rng = np.random.default_rng(seed)
    levels = np.array([0, 1, 2, 4, 8, 16])
    for _ in range(50):
        rows = int(rng.integers(2, 12))
        value = np.full((rows, 6), -np.inf)
        value[:, 0] = 0.0
        for row in range(rows):
            least = int(rng.integers(1, 6))
            for level in range(least, min(least + int(rng.integers(1, 3)), 6)):
                value[row, level] = levels[level] ** 0.7 * rng.uniform(0.5, 1.5)
        start, rank = np.zeros(rows, dtype=np.int64), rng.integers(0, 2, rows)
        steps, gpus = climb(levels, value, start), int(rng.integers(4, 40))
        plain, left = take(levels, value, start, steps, gpus)
        assert left == gpus - levels[plain].sum()
        got, first = shared_out(levels, value, start, steps, gpus, rank)
        each = np.arange(rows)
        assert levels[got].sum() <= gpus
        assert value[each, got].sum() >= value[each, plain].sum()
        less = got < plain
        if first >= 0:
            lost = value[less, plain[less]] - value[less, got[less]]
            assert value[first, got[first]] > lost.sum()
        assert (first >= 0) == bool((got != plain).any())
        assert first < 0 or (got[first] > 0 and rank[less].max() <= rank[first])
        # With what its steps and all before them cost, and the gang's, a job has what it had.
        costs = steps.cost.cumsum() + displaced_by(levels, steps)
        for at in less[steps.row].nonzero()[0].tolist():
            row, end = int(steps.row[at]), int(steps.end[at])
            again, _ = shared_out(levels, value, start, steps, int(costs[at]), rank)
            assert again[row] >= end
