"""Loans, edge servers and failures in the direct driver, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase
from simulator.metrics import measure
from simulator.outcome import FleetRecord
from simulator.physics.base import Entry, Room
from simulator.room import Failure, Load, PoolRoom
from simulator.run import Options, Outcome, simulate
from tests.scripted import Script, entry

INF = float("inf")
#: 4 of 8 GPUs for four minutes, then all.
SERVE = PoolRoom(
    "serve",
    Kind.INFERENCE,
    nodes=2,
    gpus_per_node=4,
    speed=0.5,
    memory_mib=16_000.0,
    transfer_mib_per_s=40.0,
    loads=(Load(np.array([4.0] * 4 + [8.0])),),
)
EDGE = PoolRoom("edge", Kind.EDGE, 2, 1, speed=0.25, memory_mib=8_000.0, transfer_mib_per_s=20.0)
OLD = PoolRoom("old", Kind.TRAINING, 1, 4, speed=0.5)


def run(policy: Script, *jobs: Entry, **options: object) -> tuple[Outcome, FleetRecord]:
    given = {"room": Room(1, 4), "pools": (SERVE,), "on_events": True, "instant": True, **options}
    out = simulate(jobs, policy, Options(**given))  # type: ignore[arg-type]
    assert out.fleet is not None
    return out, out.fleet


def test_a_loan_from_asking_to_serving_again() -> None:
    job = replace(entry("a", work=1000.0), checkpoint_cost_s=15.0, checkpoint_mib=400.0)
    policy = Script(
        {
            0.0: {"b": {0: 4}},
            20.0: {"a": {"serve-001": 4}},
            300.0: {"a": {0: 4}},
        },
        lends={0.0: ("serve-001",)},
        reclaims={300.0: {"serve-001": 420.0}},
    )
    out, fleet = run(policy, job, entry("b", work=760.0))
    # Half speed from 30 to 300; then 10 s to restart and 10 s for the checkpoint to get there.
    assert out.end_s.tolist() == [320.0 + (1000 - 2 * 270) / 4, 200.0]
    lent = [int(policy.at(s).nodes.loan[2]) for s in (0.0, 20.0, 300.0, 360.0)]
    assert lent == [LoanPhase.OWNED, LoanPhase.LENT, LoanPhase.LENT, LoanPhase.OWNED]
    usable = [bool(policy.at(s).nodes.usable[2]) for s in (0.0, 20.0, 360.0)]
    assert usable == [False, True, False]
    assert policy.at(20.0).nodes.lent_since_s[2] == 20.0
    assert policy.at(360.0).nodes.returned_s[2] == 315.0
    assert policy.at(60.0).jobs.pool.tolist() == [1, 0]
    assert policy.at(60.0).jobs.affinity.tolist() == [[1.0, 0.5]] * 2
    assert (fleet.loans, fleet.migrated.tolist(), fleet.crossed.tolist()) == (1, [1, 0], [0, 0])
    assert fleet.lent_gpu_s == 4 * (315 - 20)
    assert fleet.lent_used_gpu_s == 4 * (300 - 20)
    end_s = out.until_s
    assert fleet.needed_gpu_s == 4 * 240 + 8 * (end_s - 240)
    assert fleet.short_gpu_s == 4 * (345 - 240)  # it is warm at 345
    figures = measure(out)
    assert (figures["p50_reclaim_s"], figures["reclaims_late"]) == (15.0, 0)
    assert figures["loan_efficiency"] == (300 - 20) / (315 - 20)
    served = fleet.needed_gpu_s - fleet.short_gpu_s
    held = float(out.attained_gpu_s.sum())
    assert figures["cluster_usage"] == pytest.approx((held + served) / (12 * end_s))
    assert figures["utilisation"] == pytest.approx(held / (4 * end_s + 4 * 295))


@pytest.mark.parametrize(("every_s", "saved_s", "saved"), [(INF, 30.0, 0.0), (100.0, 330.0, 600.0)])
def test_who_stays_over_the_grace_is_killed(every_s: float, saved_s: float, saved: float) -> None:
    policy = Script(
        {20.0: {"a": {"serve-001": 4}}, 480.0: {"a": {0: 4}}},
        lends={0.0: ("serve-001",)},
        reclaims={300.0: {"serve-001": 360.0}},
    )
    out, fleet = run(policy, entry("a", work=1200.0), checkpoint_every_s=every_s)
    # 120 s of grace, although the owner wanted it after 60.
    assert policy.at(360.0).jobs.size.tolist() == [4]
    assert policy.at(360.0).nodes.loan[2] == LoanPhase.RECLAIMING
    assert policy.at(420.0).jobs.size.tolist() == [0]
    assert policy.at(300.0).jobs.checkpoint_age_steps[0] == (540.0 if every_s == INF else 140.0)
    assert policy.at(420.0).jobs.remaining_steps[0] == 1200.0 - saved
    assert fleet.lost_gpu_s.tolist() == [4 * (420.0 - saved_s)]
    assert fleet.killed.tolist() == [1]
    assert out.end_s[0] == 490.0 + (1200.0 - saved) / 4
    figures = measure(out)
    assert (figures["reclaims_late"], figures["max_reclaim_s"]) == (1, 120.0)
    assert figures["reclaim_preemptions"] == 1
    assert (figures["kills"], figures["preemptions"]) == (1, 1)


def test_rounds_go_on_while_a_node_is_on_loan() -> None:
    policy = Script(
        {0.0: {"a": {0: 4}}}, lends={0.0: ("serve-001",)}, reclaims={600.0: {"serve-001": 900.0}}
    )
    run(policy, entry("a"), entry("late", 3000.0), horizon_s=4000.0)
    assert policy.moments[:11] == [0.0, 20.0, 35.0, *np.arange(60.0, 481.0, 60.0).tolist()]
    assert policy.moments[12:14] == [600.0, 3000.0]


def test_two_nodes_of_a_batch_are_back_with_the_last() -> None:
    policy = Script(
        {20.0: {"a": {"serve-001": 1}}, 60.0: {"a": None}},
        lends={0.0: ("serve-000", "serve-001")},
        reclaims={60.0: {"serve-000": 180.0, "serve-001": 70.0}},
    )
    out, fleet = run(policy, replace(entry("a"), checkpoint_cost_s=30.0), horizon_s=600.0)
    assert fleet.reclaim_batch.tolist() == [0, 0]
    assert fleet.reclaim_back_s.tolist() == [60.0, 90.0]
    figures = measure(out)
    assert (figures["reclaims"], figures["reclaims_late"]) == (2, 1)
    assert (figures["mean_reclaim_s"], figures["unfinished"]) == (30.0, 1)


def test_a_job_that_goes_to_the_edge_and_back() -> None:
    job = replace(
        entry("a", work=1000.0), checkpoint_mib=200.0, memory_mib=8_000.0, edge_allowed=True
    )
    policy = Script(
        {
            0.0: {"a": {0: 1}},
            60.0: {"a": {"edge-000": 1}},
            120.0: {"a": {"edge-001": 1}},
            180.0: {"a": None},
            240.0: {"a": {0: 4}},
        }
    )
    out, fleet = run(policy, job, pools=(EDGE,))
    # 200 MiB at 20 MiB/s and a restart: 20 s; at the edge a quarter of the speed.
    done = 50 + 40 / 4 + 40 / 4
    assert out.end_s[0] == 260.0 + (1000 - done) / 4
    assert out.paused_gpu_s[0] == 10 + 20 + 20 + 4 * 20
    assert (fleet.migrated.tolist(), fleet.crossed.tolist()) == ([3], [2])
    assert fleet.edge_used_gpu_s == 120.0
    assert fleet.edge_gpu_s == 2 * out.until_s
    seen = policy.at(60.0)
    assert seen.lenders == ()
    assert (seen.nodes.loan[0], bool(seen.nodes.usable[0])) == (LoanPhase.LENT, True)


def test_a_pool_of_other_gpus_suits_some_jobs_better_than_others() -> None:
    slow, fond = entry("a", work=400.0), replace(entry("b", work=400.0), affinity={"old": 2.0})
    policy = Script({0.0: {"a": {"old-000": 2}, "b": {"old-000": 2}}})
    out, fleet = run(policy, slow, fond, pools=(OLD,))
    assert out.end_s.tolist() == [10.0 + 400.0, 10.0 + 100.0]
    assert policy.at(0.0).jobs.affinity.tolist() == [[1.0, 0.5], [1.0, 2.0]]
    assert policy.at(0.0).nodes.usable.tolist() == [True, True]
    assert fleet.ready_gpu_s == 8 * out.until_s
    assert fleet.migrated.tolist() == [0, 0]


def test_a_node_that_fails_takes_its_jobs_with_it() -> None:
    policy = Script({0.0: {"a": {0: 4, 1: 2}, "b": {1: 2}}, 95.0: {"a": {1: 2}}})
    out, fleet = run(
        policy,
        entry("a", work=1000.0),
        entry("b", work=1000.0),
        room=Room(2, 4),
        pools=(),
        failures=(Failure(95.0, "node-000", 300.0), Failure(200.0, "node-000", 9.0)),
        checkpoint_every_s=50.0,
    )
    seen = policy.at(95.0)
    assert seen.nodes.usable.tolist() == [False, True]
    assert seen.nodes.free.tolist() == [0, 2]
    assert seen.jobs.size.tolist() == [0, 2]
    assert seen.jobs.remaining_steps[0] == 1000.0 - 6 * 50
    assert policy.at(395.0).nodes.free.tolist() == [4, 0]
    assert fleet.lost_gpu_s.tolist() == [6 * 35.0, 0.0]
    assert out.end_s.tolist() == [105.0 + 700 / 2, 510.0]
    assert (fleet.failures, fleet.killed.tolist()) == (1, [1, 0])
    assert fleet.ready_gpu_s == 8 * out.until_s - 4 * 300


def test_a_lent_node_that_fails_ends_the_loan() -> None:
    policy = Script(
        {20.0: {"a": {"serve-001": 4}}},
        lends={0.0: ("serve-001",)},
        reclaims={60.0: {"serve-001": 300.0}},
    )
    _, fleet = run(
        policy,
        entry("a", work=5000.0),
        failures=(Failure(100.0, "serve-001", 100.0),),
        horizon_s=600.0,
    )
    assert policy.at(100.0).lenders[0].nodes.tolist() == [1]
    assert policy.at(100.0).nodes.loan[2] == LoanPhase.OWNED
    assert policy.at(200.0).lenders[0].nodes.tolist() == [1, 2]
    assert fleet.reclaim_back_s.tolist() == [100.0]
    assert fleet.short_gpu_s == 0.0  # it was up again before it was needed
    assert fleet.lent_gpu_s == 4 * 80


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        ({"big": {"edge-000": 1}}, "its memory does not fit"),
        ({"tied": {"edge-000": 1}}, "it may not leave the cloud"),
        ({"free": {"edge-000": 1, "edge-001": 1}}, "a gang has one edge server"),
        ({"free": {"edge-000": 1, "node-000": 1}}, "is in another pool"),
        ({"free": {"serve-000": 1}}, "serve-000 takes no work"),
        ({"big": {"old-000": 1}}, "it cannot run there"),
    ],
)
def test_what_no_cluster_could_do_is_refused(act: dict[str, dict[str, int]], problem: str) -> None:
    jobs = (
        replace(entry("big"), memory_mib=9_000.0, edge_allowed=True, affinity={"old": 0.0}),
        entry("tied"),
        replace(entry("free"), edge_allowed=True),
    )
    with pytest.raises(RuntimeError, match=problem):
        run(Script({0.0: act}), *jobs, pools=(EDGE, SERVE, OLD))


def test_loans_that_cannot_be_are_refused() -> None:
    with pytest.raises(RuntimeError, match="node-000 was asked for, and is not its owner's"):
        run(Script({}, lends={0.0: ("node-000",)}), entry("a"))
    with pytest.raises(RuntimeError, match="serve-000 was asked for"):
        run(Script({}, lends={0.0: ("serve-000",), 60.0: ("serve-000",)}), entry("a"))
    with pytest.raises(RuntimeError, match="serve-000 was asked back, and is not lent"):
        run(Script({}, reclaims={0.0: {"serve-000": 9.0}}), entry("a"))
    with pytest.raises(ValueError, match="there is no node nowhere"):
        run(Script({}), failures=(Failure(1.0, "nowhere", 1.0),))
