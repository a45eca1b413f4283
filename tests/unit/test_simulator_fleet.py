"""Loans, edge servers and failures in the driver, worked out by hand."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase, Policy
from simulator.driver import START_S
from simulator.metrics import measure
from simulator.outcome import FleetRecord
from simulator.physics.base import Cluster, Entry
from simulator.physics.simple import Pauses, SimpleJob
from simulator.pools import Failure, Load, SimulatedPool
from simulator.run import Options, Outcome, PolicyError, Run
from tests.scripted import Script, entry

INF = float("inf")
#: 4 of 8 GPUs for four minutes, then all.
SERVE = SimulatedPool(
    "serve",
    Kind.INFERENCE,
    nodes=2,
    gpus_per_node=4,
    speed=0.5,
    memory_mib=16_000.0,
    transfer_mib_per_s=40.0,
    loads=(Load(np.array([4.0] * 4 + [8.0])),),
)
EDGE = SimulatedPool(
    "edge", Kind.EDGE, 2, 1, speed=0.25, memory_mib=8_000.0, transfer_mib_per_s=20.0
)
OLD = SimulatedPool("old", Kind.TRAINING, 1, 4, speed=0.5)


def field(policy: Policy, *jobs: Entry, **options: object) -> Run:
    given = {"cluster": Cluster(1, 4), "pools": (SERVE,), "on_events": True, **options}
    return Run(jobs, policy, Options(**given))  # type: ignore[arg-type]


def run(policy: Policy, *jobs: Entry, **options: object) -> tuple[Outcome, FleetRecord]:
    out = field(policy, *jobs, **options).run()
    assert out.fleet is not None
    return out, out.fleet


def loan_of(policy: Script, now_s: float, node: str) -> tuple[LoanPhase, bool]:
    """Give the phase that a node was seen in, and whether it was usable."""
    nodes = policy.at(now_s).nodes
    row = nodes.ids.index(node)
    return LoanPhase(nodes.loan[row]), bool(nodes.usable[row])


@pytest.mark.parametrize(
    ("instant", "back_s", "end_s"), [(True, 300.0, 435.0), (False, 315.0, 450.0)]
)
def test_a_loan_from_asking_to_serving_again(instant: bool, back_s: float, end_s: float) -> None:
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
    out, fleet = run(policy, job, entry("b", work=760.0), instant=instant)
    # Half speed from 30 to 300; then 10 s to restart and 10 s for the checkpoint to get there.
    assert end_s == back_s + 20.0 + (1000 - 2 * 270) / 4
    assert out.end_s.tolist() == [end_s, 200.0]
    loans = [loan_of(policy, now_s, "serve-001") for now_s in (0.0, 20.0, 300.0, 360.0)]
    lent, owned = (LoanPhase.LENT, True), (LoanPhase.OWNED, False)
    assert loans == [owned, lent, lent, owned]
    assert policy.at(20.0).nodes.lent_since_s[2] == START_S + 20.0
    assert policy.at(360.0).nodes.returned_s[2] == START_S + back_s
    pools = policy.at(60.0).pools.ids
    assert [pools[pool] for pool in policy.at(60.0).jobs.pool.tolist()] == ["serve", "train"]
    assert policy.at(60.0).jobs.affinity.tolist() == [[0.5, 1.0]] * 2
    assert (fleet.loans, out.migrated.tolist(), out.crossed.tolist()) == (1, [1, 0], [0, 0])
    assert fleet.lent_gpu_s == fleet.lent_used_gpu_s == 4 * (back_s - 20)
    assert fleet.needed_gpu_s == 4 * 240 + 8 * (end_s - 240)
    assert fleet.short_gpu_s == 4 * (back_s + 30 - 240)  # then it is warm
    figures = measure(out)
    assert (figures["p50_reclaim_s"], figures["reclaims_late"]) == (back_s - 300.0, 0)
    served = fleet.needed_gpu_s - fleet.short_gpu_s
    held = float(out.attained_gpu_s.sum())
    assert held == 4 * (end_s - 20) + 4 * 200
    assert figures["cluster_usage"] == pytest.approx((held + served) / (12 * end_s))
    assert figures["utilisation"] == pytest.approx(held / (4 * end_s + 4 * (back_s - 20)))


def test_whom_nobody_moves_leaves_by_itself_when_its_node_goes_back() -> None:
    job = replace(entry("a", work=1000.0), checkpoint_cost_s=15.0)
    policy = Script(
        {20.0: {"a": {"serve-001": 4}}, 360.0: {"a": {0: 4}}},
        lends={0.0: ("serve-001",)},
        reclaims={300.0: {"serve-001": 310.0}},
    )
    out, _ = run(policy, job)
    assert out.end_s.tolist() == [370.0 + (1000 - 2 * 270) / 4]
    assert out.waited_s.tolist() == [20.0 + 45.0]
    assert out.paused_gpu_s.tolist() == [4 * (10 + 15 + 10)]
    figures = measure(out)
    assert (figures["reclaims_late"], figures["max_reclaim_s"]) == (1, 15.0)
    assert (figures["reclaim_preemptions"], figures["preemptions"]) == (1, 1)
    assert (figures["kills"], figures["lost_gpu_s"]) == (0, 0.0)


def test_a_gang_that_saves_for_too_long_is_made_to_go() -> None:
    """The longest grace, 540 s, is over at 840: its agent ends it, though it has not saved."""
    job = replace(entry("a", work=1000.0), checkpoint_cost_s=700.0)
    policy = Script(
        {20.0: {"a": {"serve-001": 4}}},
        lends={0.0: ("serve-001",)},
        reclaims={300.0: {"serve-001": 1200.0}},
    )
    out, fleet = run(policy, job, checkpoint_every_s=100.0, horizon_s=1200.0)
    assert loan_of(policy, 780.0, "serve-001") == (LoanPhase.RECLAIMING, False)
    assert policy.at(780.0).jobs.remaining_steps.tolist() == [1000.0 - 2 * 270]
    assert policy.at(900.0).jobs.remaining_steps.tolist() == [1000.0 - 2 * 200]
    assert policy.at(900.0).jobs.size.tolist() == [0]
    assert fleet.reclaim_back_s.tolist() == [840.0]
    assert fleet.lent_gpu_s == 4 * (840 - 20)
    # Saved at 230, while it ran.
    assert (out.killed.tolist(), out.lost_gpu_s.tolist()) == ([1], [4 * 70.0])
    assert out.preemptions.tolist() == [1]


def test_a_gang_whose_save_is_known_to_take_long_has_the_time() -> None:
    job = replace(entry("a", work=1000.0), checkpoint_cost_s=300.0)
    policy = Script(
        {20.0: {"a": {"serve-001": 4}}},
        lends={0.0: ("serve-001",)},
        reclaims={300.0: {"serve-001": 700.0}},
    )
    out, fleet = run(policy, job, checkpoint_every_s=100.0, horizon_s=800.0)
    assert fleet.reclaim_back_s.tolist() == [600.0]
    assert (out.killed.tolist(), out.lost_gpu_s.tolist()) == ([0], [0.0])


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


@pytest.mark.parametrize("instant", [True, False])
def test_a_job_that_goes_to_the_edge_and_back(instant: bool) -> None:
    model = SimpleJob({1: 1.0, 4: 4.0}, 1000.0, Pauses(start_s=10.0, checkpoint_s=5.0))
    job = Entry("a", 0.0, model, 1, checkpoint_cost_s=5.0, checkpoint_mib=200.0,
                memory_mib=8_000.0, edge_allowed=True)  # fmt: skip
    policy = Script(
        {
            0.0: {"a": {0: 1}},
            60.0: {"a": {"edge-000": 1}},
            120.0: {"a": {"edge-001": 1}},
            180.0: {"a": None},
            240.0: {"a": {0: 4}},
        },
        lends={0.0: ("edge-000", "edge-001")},
    )
    out, fleet = run(policy, job, pools=(EDGE,), instant=instant)
    # A move: 5 s to save, 200 MiB at 20 MiB/s, 10 s to start. At the edge a quarter of the speed.
    done = 50 + 35 / 4 + 35 / 4
    assert out.end_s[0] == 260.0 + (1000 - done) / 4
    assert out.paused_gpu_s[0] == 10 + 25 + 25 + (0 if instant else 5) + 4 * 20
    assert (out.migrated.tolist(), out.crossed.tolist()) == ([3], [2])
    assert fleet.edge_used_gpu_s == (120.0 if instant else 55 + 65)
    assert (fleet.loans, fleet.edge_gpu_s) == (2, 2 * (out.until_s - 20))
    assert [one.id for one in policy.at(60.0).lenders] == ["edge-000", "edge-001"]
    assert loan_of(policy, 0.0, "edge-000") == (LoanPhase.OWNED, False)
    assert loan_of(policy, 60.0, "edge-000") == (LoanPhase.LENT, True)


def test_a_pool_of_other_gpus_suits_some_jobs_better_than_others() -> None:
    slow, fond = entry("a", work=400.0), replace(entry("b", work=400.0), affinity={"old": 2.0})
    policy = Script({0.0: {"a": {"old-000": 2}, "b": {"old-000": 2}}})
    out, fleet = run(policy, slow, fond, pools=(OLD,))
    assert out.end_s.tolist() == [10.0 + 400.0, 10.0 + 100.0]
    assert policy.at(0.0).pools.ids == ("old", "train")
    assert policy.at(0.0).jobs.affinity.tolist() == [[0.5, 1.0], [2.0, 1.0]]
    assert policy.at(0.0).nodes.usable.tolist() == [True, True]
    assert fleet.ready_gpu_s == 8 * out.until_s
    assert out.migrated.tolist() == [0, 0]


def test_a_node_that_fails_takes_its_jobs_with_it() -> None:
    policy = Script({0.0: {"a": {0: 4, 1: 2}, "b": {1: 2}}, 180.0: {"a": {1: 2}}})
    out, fleet = run(
        policy,
        entry("a", work=1000.0),
        entry("b", work=1000.0),
        cluster=Cluster(2, 4),
        pools=(),
        failures=(Failure(95.0, "node-000", 300.0), Failure(200.0, "node-000", 9.0)),
        checkpoint_every_s=50.0,
    )
    seen = policy.at(95.0)
    assert (seen.nodes.ids, seen.nodes.free.tolist()) == (("node-001",), [2])
    assert seen.jobs.size.tolist() == [0, 2]
    assert seen.jobs.remaining_steps.tolist() == [1000.0 - 6 * 50, 1000.0 - 2 * 85]
    assert seen.jobs.backoff_until_s.tolist() == [START_S + 155.0, -INF]
    assert policy.at(395.0).nodes.free.tolist() == [4, 0]
    assert out.lost_gpu_s.tolist() == [6 * 35.0, 0.0]
    assert out.end_s.tolist() == [190.0 + 700 / 2, 510.0]
    assert (fleet.failures, out.killed.tolist()) == (1, [1, 0])
    assert (out.preemptions.tolist(), out.waited_s.tolist()) == ([1, 0], [85.0, 0.0])
    assert fleet.ready_gpu_s == 8 * out.until_s - 4 * 300


def test_a_lent_node_that_fails_ends_the_loan_and_what_was_being_saved() -> None:
    policy = Script(
        {20.0: {"a": {"serve-001": 4}}, 120.0: {"a": {0: 4}}, 300.0: {"a": None},
         420.0: {"a": {0: 4}}},
        lends={0.0: ("serve-001",)},
        reclaims={60.0: {"serve-001": 300.0}},
    )  # fmt: skip
    job = replace(entry("a", work=1000.0), checkpoint_cost_s=100.0)
    out, fleet = run(policy, job, failures=(Failure(100.0, "serve-001", 100.0),))
    assert policy.at(100.0).lenders[0].nodes.tolist() == [1]
    assert policy.at(200.0).lenders[0].nodes.tolist() == [1, 2]
    assert loan_of(policy, 200.0, "serve-001") == (LoanPhase.OWNED, False)
    assert fleet.reclaim_back_s.tolist() == [100.0]
    assert fleet.short_gpu_s == 4 * 0.0  # it was up again before it was needed
    assert fleet.lent_gpu_s == 4 * 80
    assert policy.at(100.0).jobs.remaining_steps.tolist() == [1000.0]
    assert (out.killed.tolist(), out.lost_gpu_s.tolist()) == ([1], [4 * 30.0])
    # It begins anew at 130, saves from 300 to 400, and goes on at 430.
    assert out.end_s.tolist() == [430.0 + (1000 - 4 * 170) / 4]


def test_a_job_that_failed_too_often_is_given_up_and_the_run_ends() -> None:
    failures = tuple(Failure(600.0 * k + 60.0, "node-000", 60.0) for k in range(30))
    policy = Script({600.0 * k: {"a": {0: 4}} for k in range(30)})
    out, fleet = run(policy, entry("a", work=1e6), round_s=600.0, pools=(), failures=failures)
    assert (fleet.failures, out.until_s) == (20, 19 * 600.0 + 60.0)
    assert (out.refused.tolist(), out.end_s.tolist()) == ([0], [INF])


def test_owners_report_the_peaks_that_a_scheduler_keeps() -> None:
    needs = np.random.Generator(np.random.PCG64(3)).integers(0, 50, 200)
    pool = replace(SERVE, nodes=13, loads=(Load(needs.astype(np.float64), 60.0, -1200.0),))
    policy = Script({})
    run(policy, entry("a"), pools=(pool,), horizon_s=14_000.0, stall_s=1e5)
    peaks: dict[int, int] = {}
    reports = count(-1200.0, 60.0)
    at_s, need = next(reports), 0
    for seen in policy.seen:
        while at_s <= seen.now_s - START_S:
            need = int(needs[min(int((at_s + 1200.0) // 60.0), 199)])
            slot = int(at_s // 300.0)
            peaks[slot] = max(peaks.get(slot, 0), need)
            at_s = next(reports)
        (owner,) = seen.lenders
        assert (owner.gpus_needed, owner.history.tolist()) == (need, list(peaks.values()))
        assert owner.load_age_s <= 300.0
    assert len(policy.seen) > 200


@pytest.mark.parametrize(
    "act",
    [
        pytest.param({"big": {"edge-000": 1}}, id="memory"),
        pytest.param({"tied": {"edge-000": 1}}, id="not beyond the cloud"),
        pytest.param({"big": {"old-000": 1}}, id="affinity"),
        pytest.param({"free": {"serve-000": 1}}, id="not lent"),
    ],
)
def test_what_a_job_cannot_have_is_refused_with_a_reason(act: dict[str, dict[str, int]]) -> None:
    (name,) = act
    jobs = (
        replace(entry("big"), memory_mib=9_000.0, edge_allowed=True, affinity={"old": 0.0}),
        entry("tied"),
        replace(entry("free"), edge_allowed=True),
    )
    policy = Script({20.0: act}, lends={0.0: ("edge-000", "edge-001")})
    one = field(policy, *jobs, pools=(EDGE, SERVE, OLD), horizon_s=50.0)
    assert one.run().start_s.tolist() == [INF] * 3
    why = one.driver.engine.state.jobs[name].why
    assert why is not None
    assert (why["verb"], why["rule"]) == ("waits", "plan.refused")


def test_a_gang_in_two_pools_is_a_malformed_plan() -> None:
    lends = {0.0: ("edge-000",)}
    job = replace(entry("a"), edge_allowed=True)
    with pytest.raises(PolicyError, match=r"script: at 20 s: .*node-000"):
        run(Script({20.0: {"a": {"edge-000": 1, "node-000": 1}}}, lends=lends), job, pools=(EDGE,))


def test_what_is_not_its_owners_or_lent_already_is_not_lent() -> None:
    lends = {0.0: ("node-000", "serve-000"), 60.0: ("serve-000",)}
    policy = Script({}, lends=lends, reclaims={0.0: {"serve-000": 9.0}})
    _, fleet = run(policy, entry("a"), horizon_s=100.0)
    assert (fleet.loans, len(fleet.reclaim_back_s)) == (1, 0)
    assert loan_of(policy, 60.0, "serve-000") == (LoanPhase.LENT, True)
    with pytest.raises(ValueError, match="there is no node nowhere"):
        run(Script({}), failures=(Failure(1.0, "nowhere", 1.0),))
