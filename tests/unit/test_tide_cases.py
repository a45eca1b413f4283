"""Cases in which the default policy once went wrong."""

import numpy as np
import pytest

from scheduler.policies.interface import NOTE, Kind, LoanPhase, Need, Snapshot
from scheduler.policies.tide.commitments import PROMISED
from tests.markets import columns, opened, plan, pools, reason
from tests.property.test_policies import random_jobs
from tests.snapshots import Job, Pool, apply, snapshot

TRAIN = Pool("train")


def test_who_is_worth_more_everywhere_is_not_left_out_for_who_is_worth_less() -> None:
    """The second bids at the dear site, gets nothing there, and the third has the other."""
    jobs = [Job(f"j{n}", work_s=1000.0 * 4**n, sizes=(8,)) for n in range(3)]
    found = opened(snapshot([Pool("fast", speed=2.0), Pool("slow")], jobs))
    assert found.got() == {"j0": ("fast", 8), "j1": ("slow", 8)}


def test_a_gang_larger_than_every_site_is_told_so() -> None:
    told = reason(plan(snapshot([TRAIN], [Job("a", sizes=(16,))])), "a")
    assert (told.rule, told.needs) == ("market.too_large", (Need("gpus", 8, 16),))


@pytest.mark.parametrize(
    ("size", "rule", "need"),
    [
        (16, "market.too_large", Need("gpus", 8, 16)),
        (8, "gang.capacity", Need("free_gpus", 4, 8)),
    ],
)
def test_a_site_is_as_large_as_it_is_also_while_others_use_it(
    size: int, rule: str, need: Need
) -> None:
    starts = Job("b", sizes=(4,), held={"train-000": 4}, moving=True)
    told = reason(plan(snapshot([TRAIN], [Job("a", sizes=(size,)), starts])), "a")
    assert (told.rule, told.needs) == (rule, (need,))


def test_whose_node_goes_back_is_told_whose_it_is_where_no_site_is_left() -> None:
    infer = Pool("infer", Kind.INFERENCE, loan=LoanPhase.RECLAIMING, history=[8.0] * 60)
    told = reason(plan(snapshot([infer], [Job("a", sizes=(8,), held={"infer-000": 8})])), "a")
    assert (told.verb, told.rule, told.lost_to) == ("preempts", "loans.reclaim", ("infer",))


def changes(places: list[Pool], jobs: list[Job], now_s: float) -> list[int]:
    """Return how many jobs each of eight plans names; nothing changes but the time."""
    found = []
    for cycle in range(8):
        seen = snapshot(places, jobs, now_s=now_s + 600 * cycle)
        named = plan(seen)
        found.append(len(named.targets))
        jobs = apply(seen, named, jobs)
    return found


def test_two_that_are_alike_do_not_take_turns() -> None:
    """One that waits may start small, so its first GPU is worth more than each of those it ran on:
    a change of size costs it twice the pause within the horizon, a start hardly anything."""
    jobs = [
        Job("elastic", work_s=12_000.0, sizes=(1, 2), power=0.7),
        Job("rigid", work_s=9_600.0, sizes=(2,), power=0.7),
        *(Job(f"w{n:02}", work_s=1e6, sizes=(2,), submit_s=1.0) for n in range(14)),
    ]
    assert changes([Pool("train", gpus=2)], jobs, 10_000.0) == [1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("seed", [66, 578, 1609])
def test_it_comes_to_rest_beside_a_lender(seed: int) -> None:
    places = [Pool("train", nodes=4), Pool("infer", Kind.INFERENCE, nodes=2, loan=LoanPhase.LENT)]
    jobs = [
        Job(one.id, work_s=one.work_s + 100, sizes=one.sizes or (1,), submit_s=one.submit_s)
        for one in random_jobs(np.random.default_rng(seed), places)
    ]
    assert changes(places, jobs, 200_000.0)[-1] == 0


def test_who_finds_no_room_at_the_edge_stays_where_it_is() -> None:
    """Two servers have one GPU left each; the job's cloud stands empty."""
    edge = Pool("edge", Kind.EDGE, nodes=2, gpus=2, speed=3.0, loan=LoanPhase.LENT)
    jobs = [
        *(Job(f"m{n}", held={f"edge-00{n}": 1}, moving=True, edge_allowed=True) for n in range(2)),
        Job("a", work_s=90_000, sizes=(2,), held={"train-000": 2}, edge_allowed=True),
    ]
    assert "a" not in plan(snapshot([edge, Pool("train", gpus=2)], jobs)).targets


def test_what_keeps_a_job_from_a_pool_is_what_it_lacks() -> None:
    """It has the memory; its affinity is 0."""
    seen = columns(snapshot([TRAIN], [Job("a")]), affinity=[[0.0]])
    assert all(need.have < need.want for need in reason(plan(seen), "a").needs)


def promised(seen: Snapshot, *names: str) -> Snapshot:
    """Return the snapshot with jobs that were promised to be in time."""
    notes = np.full((len(seen.jobs.ids), NOTE), np.nan)
    notes[[seen.jobs.ids.index(name) for name in names], 0] = PROMISED
    return columns(seen, notes=notes)


def test_a_promise_binds_a_job_to_no_site_where_it_cannot_run() -> None:
    seen = snapshot(
        [Pool("a", gpus=4), Pool("b", gpus=8)], [Job("j", sizes=(8,), deadline_s=20_000.0)]
    )
    assert pools(plan(promised(seen, "j"))) == {"j": "b"}


def test_a_promise_that_can_no_more_be_kept_keeps_nothing_from_others() -> None:
    held = {f"train-{node:03}": 8 for node in range(8)}
    sizes = (1, 2, 4, 8, 16, 32, 64)
    late = Job("late", work_s=5e7, sizes=sizes, held=held, deadline_s=9_999.0)
    others = [Job(f"o{n:02}", work_s=1800, priority=1000, submit_s=1.0) for n in range(40)]
    seen = snapshot([Pool("train", nodes=8)], [late, *others], now_s=10_000.0)
    assert plan(promised(seen, "late")) == plan(seen)


def test_nobody_leaves_for_an_edge_pool_where_no_server_has_room() -> None:
    """Both servers have two GPUs left; the job would run on four."""
    edge = Pool("e", Kind.EDGE, nodes=2, gpus=4, loan=LoanPhase.LENT, history=[0.0] * 9)
    jobs = [
        Job(f"a{n}", sizes=(2,), work_s=1e6, held={f"e-00{n}": 2}, edge_allowed=True)
        for n in range(2)
    ]
    jobs.append(Job("b", sizes=(1, 2, 4), held={"t-000": 2}, edge_allowed=True))
    assert plan(snapshot([edge, Pool("t", gpus=2)], jobs)).targets == {}
