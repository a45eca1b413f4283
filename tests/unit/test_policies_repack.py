"""Small gangs make room on a node for a larger one."""

from collections.abc import Mapping

import numpy as np
import pytest

from scheduler.policies.interface import Plan, Snapshot
from scheduler.policies.parts.allot import KEEP, Allotment, allot
from scheduler.policies.parts.free_gpus import FreeGpus
from scheduler.policies.parts.repack import Repack
from tests.markets import plan, reason
from tests.snapshots import INF, Job, Pool, faults, snapshot

TRAIN = Pool("train", nodes=2, gpus=4)


def repacked(seen: Snapshot, gpus: Mapping[str, int], **columns: Mapping[str, float]) -> Plan:
    """Give jobs these GPUs, the others what they have; moves cost 1, lying apart 10."""
    ids = seen.jobs.ids
    wanted = np.array([gpus.get(name, KEEP) for name in ids])
    move, apart = (
        np.array([columns.get(what, {}).get(name, usual) for name in ids])
        for what, usual in (("move", 1.0), ("apart", 10.0))
    )
    found = allot(seen, Allotment(wanted, "test.rule", repack=lambda: Repack(move, apart)))
    assert not faults(seen, found)
    return found


def nodes(found: Plan) -> dict[str, int]:
    """Return on how many nodes those are that come or move."""
    return {name: len(target.placement) for name, target in found.targets.items() if target}


def halves(**more: Mapping[str, int]) -> Snapshot:
    """Two nodes with a small gang each, and others."""
    jobs = [Job("a", held={"train-000": 2}), Job("b", held={"train-001": 1}), Job("new")]
    return snapshot([TRAIN], [*jobs, *(Job(name, held=held) for name, held in more.items())])


def test_who_is_moved_at_less_cost_makes_room() -> None:
    found = repacked(halves(), {"new": 4})
    assert nodes(found) == {"new": 1, "a": 1}  # either would do
    told = reason(found, "a")
    assert (told.verb, told.rule, told.lost_to) == ("migrates", "gang.repack", ("new",))
    found = repacked(halves(), {"new": 4}, move={"a": 5.0})
    assert nodes(found) == {"new": 1, "b": 1}


@pytest.mark.parametrize(
    "columns",
    [{"move": {"a": INF, "b": INF}}, {"apart": {"new": 0.0}}, {"move": {"a": 10.0, "b": 10.0}}],
)
def test_nobody_moves_who_may_not_or_where_it_does_not_pay(
    columns: Mapping[str, Mapping[str, float]],
) -> None:
    assert nodes(repacked(halves(), {"new": 4}, **columns)) == {"new": 2}


def test_nobody_moves_where_a_node_has_room() -> None:
    seen = snapshot([Pool("train", nodes=3, gpus=4)], [Job("a", held={"train-000": 2}), Job("new")])
    assert nodes(repacked(seen, {"new": 4})) == {"new": 1}


def test_no_more_move_than_must() -> None:
    """The cheapest is too small, and need not move once the next has gone."""
    jobs = [
        Job("one", held={"train-000": 1}),
        Job("two", held={"train-000": 2}),
        Job("three", sizes=(3,), held={"train-001": 3}),
        Job("new"),
    ]
    seen = snapshot([Pool("train", nodes=2, gpus=5)], jobs, sizes=(1, 2, 3, 4, 8))
    found = repacked(seen, {"new": 4}, move={"two": 2.0, "three": INF})
    assert nodes(found) == {"new": 1, "two": 1}


@pytest.mark.parametrize("seed", range(8))
def test_the_node_is_the_cheapest_of_all_and_of_equal_ones_the_first(seed: int) -> None:
    """Nodes are looked at from the cheapest gang on, but the answer is that of a look at all."""
    rng = np.random.default_rng(seed)
    held = [int(gpus) for gpus in rng.integers(1, 3, 12)]
    cost = [float(price) for price in rng.integers(1, 5, 12)]  # many are equal
    jobs = [Job(f"j{n:02}", held={f"train-{n:03}": gpus}) for n, gpus in enumerate(held)]
    seen = snapshot([Pool("train", nodes=12, gpus=4)], [*jobs, Job("one"), Job("two")])
    moves = {job.id: price for job, price in zip(jobs, cost, strict=True)}
    found = repacked(seen, {"one": 4, "two": 4}, move=moves)
    went = [name for name in found.targets if name.startswith("j")]
    ranked = sorted(moves, key=lambda name: (moves[name], name))
    assert went == sorted(ranked[: len(went)])
    assert went


def test_only_smaller_gangs_on_one_node_move() -> None:
    jobs = [Job("a", held={"train-000": 2, "train-001": 2}), Job("b", held={"train-000": 1})]
    found = repacked(snapshot([TRAIN], [*jobs, Job("new")]), {"new": 2}, move={"b": INF})
    assert nodes(found) == {"new": 1}
    jobs = [Job("a", held={"train-000": 3}), Job("b", held={"train-001": 3})]
    assert nodes(repacked(snapshot([TRAIN], [*jobs, Job("new")]), {"new": 2})) == {"new": 2}


def test_what_moves_cost_is_asked_only_where_a_gang_fits_on_no_node() -> None:
    def unasked() -> Repack:
        raise AssertionError("asked")

    def come(seen: Snapshot, gpus: int) -> Plan:
        wanted = np.array([gpus if name == "new" else KEEP for name in seen.jobs.ids])
        return allot(seen, Allotment(wanted, "test.rule", repack=unasked))

    assert nodes(come(halves(), 2)) == {"new": 1}
    four = Pool("train", nodes=4, gpus=4)
    seen = snapshot([four], [Job("a", held={"train-000": 1}), Job("new")])
    assert nodes(come(seen, 8)) == {"new": 2}  # no node is so large
    with pytest.raises(AssertionError, match="asked"):
        come(halves(), 4)


def test_a_room_has_again_what_is_given_back() -> None:
    room = FreeGpus(np.array([0, 1, 9]), np.array([0, 1]))
    room.give(0, 2)
    assert (room.gpus, room.free(0), room.fits(2), room.fits(3)) == (3, 2, True, False)
    assert room.take(3, {}, "pack") == {0: 2, 1: 1}


# --- the default policy ---------------------------------------------------------------------------


def test_the_default_policy_makes_room_for_a_gang_that_stays_for_long() -> None:
    def after(pause_s: float) -> dict[str, int]:
        jobs = [
            Job(f"j{n}", 50_000.0, (2,), held={f"train-00{n}": 2}, start_cost_s=pause_s)
            for n in range(2)
        ]
        return nodes(plan(snapshot([TRAIN], [*jobs, Job("new", work_s=50_000.0, sizes=(4,))])))

    assert after(20.0) == {"new": 1, "j0": 1}
    assert after(200.0) == {"new": 2}  # 424 s of two GPUs are more than a tenth of 600 s of four


def test_nobody_moves_who_is_promised_to_be_in_time_nor_for_one_who_is() -> None:
    jobs = [
        Job("a", work_s=3000.0, sizes=(2,), held={"train-000": 2}, deadline_s=20_000.0),
        Job("b", work_s=3000.0, sizes=(2,), held={"train-001": 2}, deadline_s=20_000.0),
        Job("new", work_s=50_000.0, sizes=(4,)),
    ]
    assert nodes(plan(snapshot([TRAIN], jobs))) == {"new": 2}
    jobs = [
        Job("a", work_s=50_000.0, sizes=(2,), held={"train-000": 2}),
        Job("b", work_s=50_000.0, sizes=(2,), held={"train-001": 2}),
        Job("new", work_s=10_000.0, sizes=(4,), deadline_s=30_000.0),
    ]
    assert nodes(plan(snapshot([TRAIN], jobs))) == {"new": 2}
