"""Reclaims: how near the fewest preemptions they come, and the figures they are found with."""

import numpy as np
import pytest

from benchmarks.reclaim import LARGE, case, measure, optimum
from scheduler.policies.parts.evacuation import MEND_STEPS, Evacuation
from scheduler.policies.parts.victims import RULES, Occupant, assess, choose


def evacuation(occupants: list[Occupant], nodes: list[int]) -> Evacuation:
    return Evacuation(
        [occupant.held for occupant in occupants],
        [occupant.base for occupant in occupants],
        [occupant.stop_cost for occupant in occupants],
        [occupant.shrink_cost for occupant in occupants],
        nodes,
    )


def figures(state: Evacuation) -> list[object]:
    """All that a state counts of nodes that are not chosen."""
    is_open = np.isfinite(state._open) & (state._open == 0)
    return [
        *(np.round(column[is_open], 6).tolist() for column in (state._whole, state._part)),
        *(column[is_open].tolist() for column in (state._blocks, state._frees)),
        state._alone,
        state.stopped,
        round(state.cost, 6),
    ]


def test_mended_reclaims_stop_at_most_two_in_a_hundred_jobs_too_many() -> None:
    """Of 60 other cases than the benchmark's 1000; there it is 1.002 of the optimum."""
    found = measure(60, seed=77)
    assert found["proven"] == 60
    assert found["preemptions_least"] > 80
    ratio = {row["answer"]: row for row in found["ratios"]}
    assert 1.0 <= ratio["mended"]["preemptions"] <= 1.02
    assert ratio["mended"]["gpu_s"] <= 1.05
    assert ratio["mended"]["preemptions"] <= ratio["best of three"]["preemptions"]
    assert ratio["best of three"]["preemptions"] <= min(
        ratio[rule]["preemptions"] for rule in RULES
    )


def test_the_program_agrees_with_a_case_solved_by_hand() -> None:
    """Two gangs of two servers: one falls, not one of each."""
    occupants = [Occupant(16, {0: 8, 1: 8}), Occupant(16, {2: 8, 3: 8})]
    assert optimum(occupants, 4, 2) == (1.0, 1.0)
    assert choose(occupants, range(4), 2).stopped == (0,)
    assert choose(occupants, [2, 3, 0, 1], 2).stopped == (1,), "among equals, the first given"


@pytest.mark.parametrize("layout", ["random", "contiguous", "packed"])
def test_what_is_counted_is_what_counting_anew_gives(layout: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(12):
        occupants = case(rng, 12, 20, layout, weighed=bool(rng.random() < 0.5))
        nodes = sorted(rng.permutation(12)[:9].tolist())
        state = evacuation(occupants, nodes)
        for _ in range(25):
            at = int(rng.integers(9))
            if at in state.chosen:
                state.drop(at)
            else:
                state.add(at)
        anew = evacuation(occupants, nodes)
        for at in state.chosen:
            anew.add(at)
        assert figures(state) == figures(anew)
        says = assess(occupants, [nodes[at] for at in state.chosen])
        assert state.cost == pytest.approx(says.cost)
        assert state.stopped == len(says.stopped)
        state.clear()
        assert figures(state) == figures(evacuation(occupants, nodes))


def test_mending_a_large_reclaim_ends_and_does_no_harm() -> None:
    servers, jobs, need = LARGE
    occupants = case(np.random.default_rng(8), servers, jobs, "random")
    found = choose(occupants, range(servers), need)
    assert len(found.nodes) == need
    alone = [choose(occupants, range(servers), need, (rule,)) for rule in RULES]
    assert found.cost <= min(one.cost for one in alone)
    state = evacuation(occupants, list(range(servers)))
    state.fill(need, "ratio")
    state.mend()
    assert state.steps <= MEND_STEPS + 2 * 2 * 32, "the last trial may end"


def test_gpus_above_a_base_are_taken_before_jobs_fall() -> None:
    elastic = [Occupant(8, {0: 8, 1: 4}, 1.0, 0.01), Occupant(4, {2: 4, 1: 4}, 1.0, 0.01)]
    rigid = Occupant(8, {3: 8})
    found = choose([*elastic, rigid], range(4), 1)
    assert (found.nodes, found.stopped, found.shrunk) == ((2,), (), (1,))
    # The second job can give up one of its servers, not both.
    assert len(choose([*elastic, rigid], range(4), 2).stopped) == 1


def test_a_job_that_holds_less_than_its_base_falls_by_any_node() -> None:
    occupants = [Occupant(16, {0: 4, 1: 4}), Occupant(8, {2: 8}, 0.5)]
    assert choose(occupants, range(3), 1).stopped == (1,)
    assert choose(occupants, range(3), 2).stopped == (0,)
