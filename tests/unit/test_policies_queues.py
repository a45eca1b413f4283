"""Policies that queue: backfill that delays nobody, shortest first, and queues with guarantees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from scheduler.policies.interface import Snapshot
from scheduler.policies.literature.capacity_queues import CapacityQueues
from scheduler.policies.literature.fifo import Fifo
from scheduler.policies.literature.shortest import Sjf, Srtf
from scheduler.policies.parts.gang import Claim, Holder, reserve, start
from scheduler.policies.parts.queue_tree import Queue
from tests.effort import examples
from tests.markets import columns, sizes
from tests.snapshots import Job, Pool, decide, rules, snapshot

NOW_S = 10_000.0
INF = float("inf")


# --- backfill -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "started"),
    [
        ("strict", {}),
        ("easy", {"short": 4}),
    ],
)
def test_who_passes_a_gang_that_does_not_fit(mode: str, started: dict[str, int]) -> None:
    jobs = [
        Job("run", work_s=4000, sizes=(4,), power=1.0, held={"train-000": 4}),
        Job("head", sizes=(8,), submit_s=1, waiting_since_s=NOW_S - 60),
        Job("long", work_s=40_000, sizes=(4,), submit_s=2),
        Job("short", work_s=400, sizes=(4,), submit_s=3),
    ]
    seen = snapshot([Pool("train")], jobs)
    assert sizes(decide(Fifo(backfill=mode), seen)) == started  # type: ignore[arg-type]


def test_a_reservation_counts_who_starts_just_before() -> None:
    """`first` takes half of an idle cluster; what `head` waits for is its end, and `long` waits."""
    jobs = [
        Job("first", work_s=4 * 100, sizes=(4,), power=1.0),
        Job("head", sizes=(8,), submit_s=1),
        Job("long", work_s=4 * 1000, sizes=(4,), power=1.0, submit_s=2),
    ]
    assert sizes(decide(Fifo(), snapshot([Pool("train")], jobs))) == {"first": 4}


@pytest.mark.parametrize("vast", [(), (Job("vast", sizes=(16,), submit_s=0.5),)])
@pytest.mark.parametrize("moving", [False, True])
def test_room_is_kept_for_the_first_gang_that_will_ever_fit(
    vast: tuple[Job, ...], moving: bool
) -> None:
    """Behind one that never will, and while who is there has just begun to start, too."""
    jobs = [
        Job("run", work_s=4000, sizes=(4,), power=1.0, held={"train-000": 4}, moving=moving),
        *vast,
        Job("head", sizes=(8,), submit_s=1),
        Job("long", work_s=40_000, sizes=(4,), submit_s=2),
    ]
    assert sizes(decide(Fifo(), snapshot([Pool("train")], jobs))) == {}


def test_fifo_gives_the_smallest_size_or_the_one_asked_for() -> None:
    seen = snapshot([Pool("train")], [Job("a", sizes=(1, 2, 4)), Job("b", sizes=(2, 8))])
    seen = columns(seen, requested=[3, 1])
    assert sizes(decide(Fifo(), seen)) == {"a": 1, "b": 2}
    assert sizes(decide(Fifo(sizes="requested"), seen)) == {"a": 2, "b": 2}


JOBS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 8), st.integers(1, 20)), min_size=1, max_size=12
)


@given(jobs=JOBS)
@settings(max_examples=examples(150))
def test_nobody_starts_later_than_promised(jobs: list[tuple[int, int, int]]) -> None:
    """With exact run times: what a gang was promised first is kept, whoever passes it."""
    jobs = sorted(jobs, key=lambda job: job[0])
    running: dict[int, float] = {}
    started: dict[int, float] = {}
    promised: dict[int, float] = {}
    now_s = 0.0
    while len(started) < len(jobs):
        running = {job: end_s for job, end_s in running.items() if end_s > now_s}
        holders = [Holder(end_s, job, jobs[job][1]) for job, end_s in running.items()]
        claims = [
            Claim(at, gpus, run_s, (1.0,))
            for at, (submit_s, gpus, run_s) in enumerate(jobs)
            if submit_s <= now_s and at not in started
        ]
        room = [8 - sum(jobs[job][1] for job in running)]
        found = start(now_s, claims, room, [holders].__getitem__, "easy", lambda *_: (1.0,))
        head = next((one.job for one in found if one.rule == "capacity"), -1)
        if head >= 0:
            taken = [one.job for one in found if one.rule == "start"]
            ahead = [Holder(now_s + jobs[job][2], job, jobs[job][1]) for job in taken]
            free = 8 - sum(holder.gpus for holder in (*holders, *ahead))
            _, from_s, _ = reserve(jobs[head][1], [free], {0: [*holders, *ahead]})
            promised.setdefault(head, from_s)
        for one in found:
            if one.pool >= 0:
                started[one.job] = now_s
                running[one.job] = now_s + jobs[one.job][2]
        assert sum(jobs[job][1] for job in running) <= 8
        later = [submit_s for submit_s, _, _ in jobs if submit_s > now_s]
        now_s = min([*later, *(end_s for end_s in running.values())], default=INF)
    assert all(started[job] <= moment for job, moment in promised.items())


# --- shortest first -------------------------------------------------------------------------------


def test_the_shortest_starts_first_and_who_fits_passes() -> None:
    jobs = [
        Job("wide", work_s=800, sizes=(8,), power=1.0),  # 100 s
        Job("narrow", work_s=200, sizes=(1,), power=1.0, submit_s=1),  # 200 s
    ]
    plan = decide(Sjf(), snapshot([Pool("train")], jobs))
    assert sizes(plan) == {"wide": 8}
    assert rules(plan) == {"wide": "sjf.order", "narrow": "gang.capacity"}
    assert sizes(decide(Sjf(), snapshot([Pool("train", gpus=4)], jobs))) == {"narrow": 1}


@pytest.mark.parametrize(("left_s", "swaps"), [(949.0, False), (951.0, True)])
def test_srtf_swaps_only_what_pays_for_the_pauses(left_s: float, swaps: bool) -> None:
    """T_q + d_q + d_r < T_r: 900 + 20 + (10 + 20) = 950."""
    jobs = [
        Job("runs", work_s=8 * left_s, sizes=(8,), power=1.0, held={"train-000": 8}),
        Job("waits", work_s=8 * 900, sizes=(8,), power=1.0, submit_s=1),
    ]
    seen = snapshot([Pool("train")], jobs)
    plan = decide(Srtf(), seen)
    assert sizes(plan) == ({"runs": 0, "waits": 8} if swaps else {})
    if swaps:
        (stopped,) = [reason for reason in plan.reasons if reason.verb == "preempts"]
        assert (stopped.rule, stopped.lost_to) == ("srtf.order", ("waits",))


def test_srtf_preempts_the_longest_and_nobody_without_need() -> None:
    jobs = [
        Job(f"r{k}", work_s=1000.0 * k * size, sizes=(size,), power=1.0, held={"train-000": size})
        for k, size in ((5, 2), (6, 4), (7, 2))
    ]
    jobs.append(Job("waits", work_s=400, sizes=(4,), power=1.0, submit_s=1))
    assert sizes(decide(Srtf(), snapshot([Pool("train")], jobs))) == {"r6": 0, "waits": 4}


# --- queues with guarantees -----------------------------------------------------------------------

#: Queue A has a quota of 10 and uses 20 more, which are a bonus; then C needs its 20.
QUEUES = (Queue("a", 10, gpus=True), Queue("c", 20, gpus=True))
RULES = CapacityQueues(queues=QUEUES, leaf_of={"a": "a", "c": "c"}, round_most=1.0)
SIZES = (1, 2, 5, 10, 20)


def queued(
    *jobs: tuple[str, str, int, int], waited_s: float = 1000.0, **more: np.ndarray
) -> Snapshot:
    """(tenant, id, GPUs, first of the GPUs held or -1) on three nodes of 10."""
    built, at = [], {}
    for tenant, name, gpus, first in jobs:
        held: dict[str, int] = {}
        for gpu in range(first, first + gpus) if first >= 0 else ():
            held[f"train-{gpu // 10:03}"] = held.get(f"train-{gpu // 10:03}", 0) + 1
        built.append(Job(name, sizes=(gpus,), held=held, waiting_since_s=NOW_S - waited_s))
        at[name] = tenant
    seen = snapshot([Pool("train", nodes=3, gpus=10)], built, sizes=SIZES)
    tenants = tuple(at[name] for name in seen.jobs.ids)
    return columns(replace(seen, jobs=replace(seen.jobs, tenants=tenants)), **more)


BONUS = [("a", f"C{k}", 10, at) for k, at in ((5, 0), (6, 10), (7, 20))]


def test_what_is_beyond_a_quota_is_a_bonus_and_is_taken_back() -> None:
    idle = queued(*[(queue, name, gpus, -1) for queue, name, gpus, _ in BONUS])
    assert rules(decide(RULES, idle)) == {
        "C5": "capacity.guaranteed",
        "C6": "capacity.bonus",
        "C7": "capacity.bonus",
    }
    seen = queued(*BONUS, ("c", "need", 20, -1), first_start_s=np.array([1.0, 2.0, 3.0, INF]))
    plan = decide(RULES, seen)
    assert sizes(plan) == {"C6": 0, "C7": 0, "need": 20}
    assert rules(plan)["C6"] == rules(plan)["C7"] == "capacity.reclaim"


def test_a_bonus_is_left_alone_in_the_grace_time_and_the_dead_zone() -> None:
    assert sizes(decide(RULES, queued(*BONUS, ("c", "need", 20, -1), waited_s=59))) == {}
    over = [("a", "base", 10, 0), ("a", "more", 1, 10)]
    seen = queued(*over, ("c", "need", 20, -1))
    usual = replace(RULES, round_most=CapacityQueues().round_most)
    assert sizes(decide(usual, seen)) == {}
    strict = replace(usual, dead_zone=0.0)
    assert sizes(decide(strict, seen)) == {"more": 0, "need": 20}


def test_a_round_takes_part_and_holds_it_for_the_claim() -> None:
    bonus = [("a", f"b{k}", 5, 5 * k) for k in range(6)]
    jobs = (*bonus, ("c", "need", 20, -1), ("a", "greedy", 5, -1))
    plan = decide(replace(RULES, round_most=0.2), queued(*jobs))
    assert sorted(sizes(plan).values()) == [0]
    assert rules(plan)["greedy"] == "gang.capacity"


def test_jobs_are_scaled_in_before_any_is_preempted_and_grow_again() -> None:
    seen = queued(("a", "big", 20, 0), ("a", "base", 5, 20), ("c", "need", 10, -1))
    rate = seen.jobs.rate.copy()
    big = seen.jobs.ids.index("big")
    rate[big] = np.array(SIZES) ** 0.5
    requested = np.where(np.arange(3) == big, 20, seen.jobs.requested)
    seen = columns(seen, rate=rate, requested=requested)
    assert sizes(decide(RULES, seen)) == {"big": 10, "need": 10}
    seen = queued(("a", "big", 10, 0))
    rate = np.array([SIZES]) ** 0.5
    seen = columns(seen, rate=rate, requested=np.array([20]))
    assert sizes(decide(RULES, seen)) == {"big": 20}


def test_maximum_user_limit_and_cooldown() -> None:
    tree = (
        Queue("team", 0.5, maximum=0.5),
        Queue("team/x", 0.5, user_limit=0.7),
        Queue("team/y", 0.5),
    )
    rule = CapacityQueues(queues=tree, leaf_of={"u": "team/x"}, default_leaf="team/y")
    seen = queued(("u", "a", 5, -1), ("u", "b", 1, -1), ("v", "c", 10, -1), ("w", "d", 1, -1))
    told = rules(decide(rule, seen))
    assert told == {
        "a": "capacity.guaranteed",
        "b": "capacity.user_limit",
        "c": "capacity.guaranteed",
        "d": "capacity.maximum",
    }
    seen = queued(
        *BONUS[:1], ("a", "again", 10, -1), waited_s=299, first_start_s=np.array([1.0, 2.0])
    )
    assert rules(decide(RULES, seen)) == {"again": "capacity.cooldown"}


def test_a_gang_that_no_pool_could_hold_keeps_nobody_of_its_queue_waiting() -> None:
    """The cluster has enough GPUs for it, but no pool has."""
    pools = [Pool("a", gpus=4), Pool("b", gpus=4)]
    never = Job("never", sizes=(6,), waiting_since_s=NOW_S - 3600.0)
    jobs = [never, Job("next", sizes=(2,), submit_s=1.0), Job("last", sizes=(2,), submit_s=2.0)]
    found = decide(CapacityQueues(), snapshot(pools, jobs, now_s=NOW_S, sizes=(2, 6)))
    assert sizes(found) == {"next": 2, "last": 2}


def test_no_queue_above_falls_below_its_guarantee() -> None:
    """`p/a` is over its own guarantee, but `p` as a whole is not: another cannot take from it."""
    tree = (Queue("p", 0.5), Queue("p/a", 0.5), Queue("p/b", 0.5), Queue("q", 0.5), Queue("r", 0.0))
    rule = CapacityQueues(queues=tree, leaf_of={t: f"p/{t}" for t in "ab"} | {"q": "q", "r": "r"})
    rule = replace(rule, round_most=1.0)
    held = [("a", "a1", 5, 0), ("a", "a2", 10, 5), ("r", "r1", 5, 15), ("r", "r2", 10, 20)]
    plan = decide(rule, queued(*held, ("q", "need", 10, -1)))
    assert sizes(plan) == {"need": 10, "r2": 0}
    held = [("a", "a1", 5, 0), ("a", "a2", 5, 5), ("a", "a3", 5, 10), ("q", "q1", 10, 15)]
    held.append(("r", "r1", 5, 25))
    plan = decide(rule, queued(*held, ("b", "need", 5, -1)))
    assert sizes(plan) == {"need": 5, "r1": 0}


@pytest.mark.parametrize(
    "queues",
    [
        (Queue("a", 0.6), Queue("b", 0.6)),
        (Queue("a/b", 0.5),),
        (Queue("a", 0.5), Queue("a", 0.1)),
        (Queue("a", -1),),
        (Queue("a", 0.5, maximum=0.4),),
    ],
)
def test_what_is_no_tree_is_refused(queues: tuple[Queue, ...]) -> None:
    with pytest.raises(ValueError):
        CapacityQueues(queues=queues)
