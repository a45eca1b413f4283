"""Who competes for which GPUs, what each could do with them, and what a change would cost."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase
from scheduler.policies.tide import market
from scheduler.policies.tide.market import DOUBLING_S, open_market
from tests.markets import columns, opened, plan
from tests.snapshots import Job, Pool, snapshot

NOW_S = 10_000.0
LENT, OWNED = LoanPhase.LENT, LoanPhase.OWNED
TRAIN = Pool("train", nodes=2)


def edge(**more: object) -> Pool:
    return Pool("edge", **{"kind": Kind.EDGE, "gpus": 2, "speed": 0.5, "loan": LENT, **more})  # type: ignore[arg-type]


def test_sites_are_pools_with_gpus_that_may_be_given() -> None:
    pools = [
        edge(loan=OWNED),
        Pool("infer", Kind.INFERENCE, nodes=3, loan=[LENT, OWNED, LoanPhase.RECLAIMING]),
        Pool("moving"),
        TRAIN,
    ]
    jobs = [Job("a", held={"train-000": 4}), Job("m", held={"moving-000": 8}, moving=True)]
    found = opened(snapshot(pools, jobs))
    assert found.sites() == ["infer", "train"]
    assert found.market.gpus.tolist() == [8, 16]
    assert found.market.firm.tolist() == [False, True]
    assert found.market.home.tolist() == [1]
    assert found.market.sizes[found.market.present].tolist() == [4]


def test_who_may_not_start_or_moves_is_not_there() -> None:
    jobs = [
        Job("backs-off", backoff_until_s=NOW_S + 1),
        Job("moves", held={"train-000": 2}, moving=True),
        Job("no-size", sizes=()),
        Job("runs", held={"train-000": 2}),
        Job("waits"),
    ]
    found = opened(snapshot([TRAIN], jobs))
    assert [found.seen.jobs.ids[row] for row in found.market.rows] == ["runs", "waits"]
    assert found.market.gpus.tolist() == [14]


def test_a_node_that_goes_back_ousts_who_is_there_and_gives_nothing() -> None:
    infer = Pool("infer", Kind.INFERENCE, nodes=2, loan=LENT)
    across = Job("across", sizes=(4,), held={"infer-000": 2, "infer-001": 2})
    seen = snapshot([infer, TRAIN], [across, Job("stays", held={"infer-001": 2})])
    found = open_market(seen, {"infer-000": NOW_S + 300})
    assert found.ousted.tolist() == [True, False]
    assert found.home.tolist() == [-1, 0]
    assert found.gpus.tolist() == [8, 16], "with what the ousted job leaves on the other node"


def test_sizes_that_are_no_faster_do_not_pay_but_the_present_one_may_stay() -> None:
    slower = Job("a", rates=(1.0, 3.0, 2.0, 4.0))
    for held, pays in (({}, [1, 2, 8]), ({"train-000": 4}, [1, 2, 4, 8])):
        found = opened(snapshot([TRAIN], [Job("a", rates=slower.rates, held=held)])).market
        at = found.part_of(0, np.array([0]))[0]
        assert found.sizes[found.pays[at, 0]].tolist() == pays
        assert (np.diff(found.rate[0, 0, :5]) >= 0).all()


@pytest.mark.parametrize(
    ("job", "sizes"),
    [
        (Job("a", edge_allowed=True), [2]),  # the whole server: it runs one gang
        (Job("a", sizes=(1, 4), edge_allowed=True), [1]),
        (Job("a", sizes=(4, 8), edge_allowed=True), []),
        (Job("a"), []),
        (Job("a", memory_mib=20_000, edge_allowed=True), []),
    ],
)
def test_an_edge_server_runs_one_gang_of_the_largest_size_that_fits(
    job: Job, sizes: list[int]
) -> None:
    found = opened(snapshot([edge(nodes=3, memory_mib=16_000)], [job])).market
    assert found.gpus.tolist() == [6]
    assert found.sizes[found.pays[0, 0]].tolist() == sizes


def test_affinity_is_speed_and_none_is_nowhere() -> None:
    seen = columns(snapshot([Pool("a"), Pool("b")], [Job("j")]), affinity=[[0.0, 0.5]])
    found = opened(seen).market
    assert not found.pays[0].any()
    assert found.rate[1, 0, 1:5].tolist() == pytest.approx([0.5 * k**0.9 for k in (1, 2, 4, 8)])


def test_what_jobs_could_do_at_sites_that_are_alike_is_worked_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a cell of many jobs; what comes of it is the same as if it was worked out for each."""
    pools = [
        edge(nodes=2),
        replace(edge(nodes=2), id="edge-2"),
        Pool("infer", Kind.INFERENCE, nodes=2, loan=LENT, speed=0.8, transfer_mib_per_s=50.0),
        *(Pool(f"train-{one}", nodes=2) for one in range(4)),
        Pool("z-far", nodes=2, transfer_mib_per_s=50.0),
        Pool("z-old", nodes=2, memory_mib=16_000),
        Pool("z-small", nodes=1, gpus=2),
    ]
    jobs = [
        *(Job(f"a{one}", held={f"train-{one}-000": 4}, checkpoint_mib=9e3) for one in range(4)),
        Job("e", held={"edge-000": 1}, edge_allowed=True),
        Job("f", held={"edge-2-001": 1}, edge_allowed=True),
        Job("i", held={"infer-001": 8}, checkpoint_mib=9e3),
        *(Job(f"b{one}", work_s=50.0 * one, deadline_s=NOW_S + 2e3 * one) for one in range(1, 9)),
        *(Job(f"c{one}", work_s=70.0 * one, edge_allowed=True) for one in range(1, 9)),
        Job("d", memory_mib=20_000, sizes=(8, 16)),
    ]
    seen = columns(snapshot(pools, jobs), attained_gpu_s=[9.0] * len(jobs))
    few, each = opened(seen), plan(seen)
    monkeypatch.setattr(market, "_AT_ONCE", 0)
    many = opened(seen)
    assert few.market.alike.tolist() == list(range(10))
    assert many.market.alike.tolist() == [0, 1, 2, 3, 3, 3, 3, 4, 5, 6]
    assert [len(one.market.rate) for one in (few, many)] == [10, 8]
    assert (few.value == many.value).all()
    assert plan(seen) == each


def test_two_sites_that_are_alike_are_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have as many parts as if they were not: one for who runs there, one for all others."""
    pools = [Pool(f"train-{one}", nodes=2) for one in range(2)]
    jobs = [Job(f"a{one}", held={f"train-{one}-000": 4}, checkpoint_mib=9e3) for one in range(2)]
    seen = columns(snapshot(pools, [*jobs, Job("b")]), attained_gpu_s=[9.0, 9.0, 0.0])
    few = opened(seen)
    monkeypatch.setattr(market, "_AT_ONCE", 0)
    many = opened(seen)
    assert many.market.alike.tolist() == [0, 0]
    assert (few.value == many.value).all()


def test_what_a_change_costs() -> None:
    """A start and a checkpoint, more for larger gangs; elsewhere also the way there."""
    running = Job("a", held={"train-000": 4}, checkpoint_mib=600.0, edge_allowed=True)
    seen = snapshot([edge(transfer_mib_per_s=60.0), TRAIN], [running, Job("b", edge_allowed=True)])
    found = opened(columns(seen, attained_gpu_s=[1.0, 0.0])).market
    there, here = found.pause_s[found.part_of(np.arange(2), np.zeros(2, dtype=np.int64)), 0]
    assert here[:5].tolist() == [0.0, 30.0, 30.0 + DOUBLING_S, 0.0, 30.0 + 3 * DOUBLING_S]
    assert there[1:3].tolist() == [30.0 + 10.0, 30.0 + DOUBLING_S + 10.0]
    assert (found.pause_s[0, 1] == found.pause_s[1, 1]).all(), "it has no checkpoint to bring"
    free = Job("c", start_cost_s=0.0, checkpoint_cost_s=0.0)
    assert not opened(snapshot([TRAIN], [free])).market.start_s.any()


def test_a_pause_under_way_has_a_rest() -> None:
    job = Job("a", work_s=1000, sizes=(1,), held={"train-000": 1}, changed_s=NOW_S - 10)
    found = opened(snapshot([TRAIN], [job])).market
    at = found.part_of(0, np.array([0]))[0]
    assert found.pause_s[at, 0, 1] == 20.0
    assert found.takes_s[at, 0, 1] == 1020.0


def test_who_needs_gpus_of_others_waits_for_their_longest_checkpoint() -> None:
    jobs = [
        Job("a", held={"train-000": 8}, checkpoint_cost_s=70.0),
        Job("b", held={"train-001": 4}, checkpoint_cost_s=5.0),
        Job("c"),
    ]
    found = opened(snapshot([TRAIN], jobs)).market
    assert found.leave_s[0].tolist() == [0, 0, 0, 0, 70, 70, 70, 70]
