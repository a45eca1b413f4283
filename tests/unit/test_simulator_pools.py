"""Every policy on a small cluster with everything: loans, edge servers, failures.

Nothing is lost or given twice, policies see what is true, the account of a run agrees with the
engine's own totals, and the journal of the run replays.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from bus.reading import open_log
from scheduler.core.canonical import state_hash
from scheduler.policies.interface import Kind, LoanPhase, Phase, Plan, Policy, Snapshot
from scheduler.policies.registry import POLICIES, make_policy
from schemas.journal import SnapshotTaken, decode_snapshot
from schemas.topics import SNAPSHOTS
from simulator.driver import START_S
from simulator.generated import Mix
from simulator.ideal import Ideal
from simulator.layout import Layout
from simulator.log import Recorder, join
from simulator.metrics import measure
from simulator.outcome import Outcome
from simulator.physics.base import Cluster, Entry
from simulator.physics.simple import SimplePhysics
from simulator.pools import Failure, Load, SimulatedPool
from simulator.run import Options, Run, simulate
from simulator.tides import edge_tide, pool_tide
from tests.scripted import replayed
from tests.snapshots import faults

pytestmark = pytest.mark.slow

CLUSTER = Cluster(2, 8, memory_mib=32_000.0, transfer_mib_per_s=2000.0)
#: Which pools a policy takes GPUs from, beside the training pool.
TAKES = {"tide": ("serve", "edge"), "aryl": ("serve",), "edgeflow": ("edge",)}


@dataclass
class Watched:
    """A policy whose snapshots and plans are checked."""

    policy: Policy
    run: Run | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(self, seen: Snapshot) -> Plan:
        self._check(seen)
        plan = self.policy.plan(seen)
        self.faults.extend(faults(seen, plan))
        return plan

    def _check(self, seen: Snapshot) -> None:
        nodes, held, jobs = seen.nodes, seen.holdings, seen.jobs
        used = np.bincount(held.node, held.gpus, len(nodes.ids)).astype(np.int64)
        assert (used + nodes.free <= nodes.gpus).all()
        assert not nodes.free[~nodes.usable].any()
        kind = seen.pools.kind[nodes.pool]
        ours = (kind == Kind.TRAINING) | np.isin(nodes.loan, (LoanPhase.LENT, LoanPhase.RECLAIMING))
        assert not used[~ours].any(), "somebody holds what is its owner's"
        stays = (jobs.phase == Phase.RUNNING)[held.job]
        assert (jobs.pool[held.job] == nodes.pool[held.node])[stays].all()
        size = np.bincount(held.job, held.gpus, len(jobs.ids))
        assert (size == jobs.size)[jobs.phase == Phase.RUNNING].all()
        at_edge = np.bincount(held.job, kind[held.node] == Kind.EDGE, len(jobs.ids))
        assert at_edge.max(initial=0) <= 1
        self._check_progress(seen)

    def _check_progress(self, seen: Snapshot) -> None:
        assert self.run is not None
        assert isinstance(self.run._field, Ideal)
        gangs = [self.run._field._gangs.at[name] for name in seen.jobs.ids]
        left = np.array([gang.entry.model.total - gang.progress(seen.now_s) for gang in gangs])
        known = seen.jobs.phase != Phase.MOVING  # of others the agent may not have reported yet
        assert seen.jobs.remaining_steps[known] == pytest.approx(left[known], abs=1e-3)


def jobs() -> list[Entry]:
    physics = SimplePhysics(seed=4, mix=Mix(days=0.2, jobs=24, load=2.0))
    made = physics.entries(Path("generated"), CLUSTER, adaptive=False)
    return [replace(one, edge_allowed=number % 3 > 0) for number, one in enumerate(made)]


def pools() -> tuple[SimulatedPool, ...]:
    rng = np.random.Generator(np.random.PCG64([2, 1]))
    # The run begins at three at night: nodes are idle until the morning.
    serve = Load.of_tide(pool_tide(rng, 24, 48.0, start_hour=3.0), from_s=-86_400.0)
    edges = tuple(Load.of_tide(edge_tide(rng, 1, 24.0, start_hour=3.0)) for _ in range(3))
    return (
        SimulatedPool("serve", Kind.INFERENCE, 3, 8, 0.8, 16_000.0, 1000.0, (serve,)),
        SimulatedPool("edge", Kind.EDGE, 3, 1, 0.5, 16_000.0, 60.0, edges),
        SimulatedPool("spare", Kind.EDGE, 1, 2, 0.5, 16_000.0, 60.0),
    )


def failures() -> tuple[Failure, ...]:
    """Some nodes now and then, and for two minutes all."""
    failing = ["node-001", "serve-001", "edge-000", "spare-000"]
    drawn = [
        Failure(3000.0 + 7000.0 * n + 900.0 * k, node, 400.0 * (1 + k))
        for k, node in enumerate(failing)
        for n in range(4)
    ]
    return (*drawn, *(Failure(9000.0, node, 120.0) for node in Layout(CLUSTER, pools()).ids))


def watch(name: str, journal: Path, merge_s: float = 0.0) -> tuple[Watched, Run, Outcome]:
    options = Options(
        CLUSTER,
        round_s=300.0,
        on_events=True,
        merge_s=merge_s,
        pools=pools(),
        failures=failures(),
        checkpoint_every_s=1800.0,
        horizon_s=86_400.0,
    )
    policy = Watched(make_policy(name))
    policy.run = run = Run(jobs(), policy, options, line=name)
    with Recorder(journal, run.driver.engine) as recorder:
        run.driver.watches.append(recorder.saw)
        return policy, run, run.run()


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_lost_and_all_accounts_agree(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.log.SNAPSHOT_ENTRIES", 500)
    policy, run, out = watch(name, tmp_path / "journal")
    state, fleet, figures = run.driver.engine.state, out.fleet, measure(out)
    assert fleet is not None
    assert not policy.faults
    assert figures["completed"] + figures["rejected"] == figures["jobs"]  # type: ignore[operator]
    assert out.invariant_violations == 0
    again = replayed(tmp_path / "journal")
    assert again.first_difference is None
    assert (again.decisions, again.state_hash) == (state.number, state_hash(state))
    check_totals(run, out)
    # What jobs attained is what was allocated, and what was open was there for it.
    width_s = np.diff(np.append(out.line_s, out.until_s))
    attained_gpu_s = float(out.attained_gpu_s.sum())
    assert attained_gpu_s == pytest.approx(float(out.line_gpus @ width_s))
    assert attained_gpu_s <= fleet.ready_gpu_s
    assert out.paused_gpu_s.sum() < attained_gpu_s
    assert fleet.lent_used_gpu_s <= fleet.lent_gpu_s
    width_s = np.diff(np.append(fleet.line_s, out.until_s))
    assert fleet.lent_gpu_s == pytest.approx(float(fleet.line_lent @ width_s))
    assert fleet.lent_used_gpu_s == pytest.approx(float(fleet.line_used @ width_s))
    # Loans end by their deadline, or are counted as late; what is not back runs to the end.
    over_s = np.maximum(fleet.reclaim_due_s, fleet.reclaim_asked_s + 180.0) + 10.0
    assert (np.minimum(fleet.reclaim_back_s, out.until_s) <= over_s).all()
    assert figures["kills"] >= (out.lost_gpu_s > 0).sum()
    assert fleet.failures > 9
    takes = TAKES.get(name, ())
    if name in (*TAKES, "fifo"):
        assert (fleet.lent_used_gpu_s > 0, fleet.edge_used_gpu_s > 0) == (
            "serve" in takes,
            "edge" in takes,
        )
    assert out.claims_timed_out == 0


def check_totals(run: Run, out: Outcome) -> None:
    """Hold the account of a run to the engine's totals, which count by themselves."""
    state, fleet, ended = run.driver.engine.state, out.fleet, np.isfinite(out.end_s)
    assert fleet is not None
    totals, started = state.totals, np.isfinite(out.start_s)
    rest_s = START_S + out.until_s - state.now_s
    assert totals.policy_failures == 0
    assert (totals.claims, totals.claims_timed_out) == (out.claims, out.claims_timed_out)
    assert totals.jobs_completed == ended.sum()
    assert totals.jobs_declined == out.refused.sum()
    assert totals.jobs_started == started.sum()
    assert totals.jct_s == pytest.approx((out.end_s - out.submit_s)[ended].sum(), abs=1e-3)
    assert totals.queueing_s == pytest.approx((out.start_s - out.submit_s)[started].sum(), abs=1e-3)
    assert totals.deadlines_met == (out.end_s <= out.deadline_s)[np.isfinite(out.deadline_s)].sum()
    assert totals.preemptions + totals.failures == out.preemptions.sum()
    attained_gpu_s = totals.training_gpu_s + state.gpus_held * rest_s
    assert attained_gpu_s == pytest.approx(out.attained_gpu_s.sum())
    for number, name in enumerate(out.ids):
        if name in state.jobs:  # GPUs being left are held, and the job's no more
            assert state.jobs[name].attained_gpu_s <= out.attained_gpu_s[number] + 1e-6
            assert state.jobs[name].restarts == out.restarts[number]
    assert totals.loans_granted == fleet.loans
    back = int((fleet.reclaim_back_s < np.inf).sum())
    assert totals.loans_reclaimed <= back <= totals.loans_reclaimed + fleet.failures
    late = fleet.reclaim_back_s > fleet.reclaim_due_s
    assert totals.reclaims_late <= late.sum()
    loaned_gpu_s = totals.loaned_gpu_s + state.gpus_loaned * rest_s
    assert loaned_gpu_s == pytest.approx(fleet.lent_gpu_s + fleet.edge_gpu_s)


def test_equal_runs_have_equal_journals(tmp_path: Path) -> None:
    for run in ("one", "two"):
        watch("aryl", tmp_path / run, 60.0)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_snapshot_of_a_run_says_where_its_journal_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.log.SNAPSHOT_ENTRIES", 100)
    watch("fifo", tmp_path / "run")
    join(tmp_path / "run.db", [("default", tmp_path / "run")])
    with open_log(tmp_path / "run.db") as log:
        found = [decode_snapshot(record.value or b"") for record in log.records(SNAPSHOTS.name)]
    assert found
    for one in found:
        assert isinstance(one, SnapshotTaken)
        assert one.journal_offset == one.number  # the only run of its log


@pytest.mark.parametrize("on_events", [True, False])
def test_pools_that_are_never_used_change_nothing(on_events: bool) -> None:
    # `fifo` takes nothing on loan.
    options = Options(CLUSTER, round_s=300.0, on_events=on_events)
    plain = simulate(jobs(), make_policy("fifo"), options)
    beside = simulate(jobs(), make_policy("fifo"), replace(options, pools=pools()[:2]))
    assert plain.fleet is None
    for name in ("end_s", "start_s", "attained_gpu_s", "paused_gpu_s", "waited_s", "line_s"):
        assert getattr(plain, name).tolist() == getattr(beside, name).tolist(), name
    assert plain.line_gpus.tolist() == beside.line_gpus.tolist()
    assert plain.until_s == beside.until_s
    fleet = beside.fleet
    assert fleet is not None
    assert (fleet.lent_gpu_s, fleet.short_gpu_s, fleet.edge_gpu_s) == (0.0, 0.0, 0.0)
