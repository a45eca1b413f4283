"""Policies on a small cluster with everything: loans, edge servers, failures. Nothing is lost."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from scheduler.policies.interface import Kind, LoanPhase, Plan, Policy, Snapshot
from scheduler.policies.registry import make_policy
from simulator.generated import Mix
from simulator.metrics import measure
from simulator.physics.base import Entry, Room
from simulator.physics.simple import SimplePhysics
from simulator.room import Load, PoolRoom, draw_failures
from simulator.run import Options, Outcome, simulate
from simulator.tides import edge_tide, pool_tide
from tests.snapshots import faults

ROOM = Room(2, 8, memory_mib=32_000.0, transfer_mib_per_s=2000.0)
#: What may follow on a loan's phase, from one decision to the next.
NEXT = {
    LoanPhase.OWNED: (LoanPhase.OWNED, LoanPhase.LENDING, LoanPhase.LENT),
    LoanPhase.LENDING: (LoanPhase.LENDING, LoanPhase.LENT, LoanPhase.OWNED),
    LoanPhase.LENT: (LoanPhase.LENT, LoanPhase.RECLAIMING, LoanPhase.OWNED),
    LoanPhase.RECLAIMING: (LoanPhase.RECLAIMING, LoanPhase.OWNED, LoanPhase.LENDING),
}


@dataclass
class Watched:
    """A policy whose snapshots and plans are checked."""

    policy: Policy
    load: Load
    lent: int = 0
    before: Snapshot | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(self, seen: Snapshot) -> Plan:
        self._check(seen)
        plan = self.policy.plan(seen)
        self.faults.extend(faults(seen, plan))
        self.before = seen
        return plan

    def _check(self, seen: Snapshot) -> None:
        nodes, held, jobs = seen.nodes, seen.holdings, seen.jobs
        used = np.bincount(held.node, held.gpus, len(nodes.ids)).astype(np.int64)
        assert (used + nodes.free <= nodes.gpus).all()
        assert (used + nodes.free == nodes.gpus)[nodes.usable].all()
        assert not nodes.free[~nodes.usable].any()
        kind = seen.pools.kind[nodes.pool]
        ours = (kind == Kind.TRAINING) | np.isin(nodes.loan, (LoanPhase.LENT, LoanPhase.RECLAIMING))
        assert not used[~ours].any(), "somebody holds what is its owner's"
        assert (jobs.pool[held.job] == nodes.pool[held.node]).all()
        assert (np.bincount(held.job, held.gpus, len(jobs.ids)) == jobs.size).all()
        at_edge = np.bincount(held.job, kind[held.node] == Kind.EDGE, len(jobs.ids))
        assert at_edge.max(initial=0) <= 1
        if self.before is not None:
            phases = zip(self.before.nodes.loan.tolist(), nodes.loan.tolist(), strict=True)
            assert all(after in NEXT[LoanPhase(was)] for was, after in phases)
            returned = nodes.returned_s > self.before.nodes.returned_s
            assert not used[returned & (nodes.loan == LoanPhase.OWNED)].any()
        serve = next(one for one in seen.lenders if one.id == "serve")
        assert serve.gpus_needed == self.load.at(seen.now_s // 60.0 * 60.0)
        assert serve.history[-1] >= serve.gpus_needed
        assert len(serve.history) == min(576, 1 + 288 + int(seen.now_s // 300.0))
        self.lent = max(self.lent, int((nodes.loan == LoanPhase.LENT).sum()))


def jobs() -> list[Entry]:
    physics = SimplePhysics(seed=4, mix=Mix(days=0.2, jobs=24, load=2.0))
    made = physics.entries(Path("generated"), ROOM, adaptive=False)
    return [replace(one, edge_allowed=number % 3 > 0) for number, one in enumerate(made)]


def pools() -> tuple[PoolRoom, ...]:
    rng = np.random.Generator(np.random.PCG64([2, 1]))
    # The run begins at three at night: nodes are idle until the morning.
    serve = Load.of_tide(pool_tide(rng, 24, 48.0, start_hour=3.0), from_s=-86_400.0)
    edges = tuple(Load.of_tide(edge_tide(rng, 1, 24.0, start_hour=3.0)) for _ in range(3))
    return (
        PoolRoom("serve", Kind.INFERENCE, 3, 8, 0.8, 16_000.0, 1000.0, (serve,)),
        PoolRoom("edge", Kind.EDGE, 3, 1, 0.5, 16_000.0, 60.0, edges),
        PoolRoom("spare", Kind.EDGE, 1, 2, 0.5, 16_000.0, 60.0),
    )


def watch(name: str, merge_s: float = 0.0) -> tuple[Watched, Outcome]:
    rng = np.random.Generator(np.random.PCG64(3))
    failing = ["node-001", "serve-001", "edge-000", "spare-000"]
    options = Options(
        ROOM,
        round_s=300.0,
        on_events=True,
        merge_s=merge_s,
        pools=pools(),
        failures=draw_failures(rng, failing, 10_000.0, 1800.0, 30_000.0),
        checkpoint_every_s=1800.0,
        horizon_s=86_400.0,
    )
    policy = Watched(make_policy(name), options.pools[0].loads[0])
    return policy, simulate(jobs(), policy, options)


@pytest.mark.parametrize("name", ["fifo", "tide", "aryl", "edgeflow"])
def test_nothing_is_lost_or_given_twice(name: str) -> None:
    policy, out = watch(name)
    fleet, figures = out.fleet, measure(out)
    assert fleet is not None
    assert not policy.faults
    assert figures["completed"] == figures["jobs"]
    # What jobs attained is what was allocated, and what was open was there for it.
    width_s = np.diff(np.append(out.line_s, out.until_s))
    attained_gpu_s = float(out.attained_gpu_s.sum())
    assert attained_gpu_s == pytest.approx(float(out.line_gpus @ width_s))
    assert attained_gpu_s <= fleet.ready_gpu_s
    assert fleet.lent_used_gpu_s <= fleet.lent_gpu_s
    width_s = np.diff(np.append(fleet.line_s, out.until_s))
    assert fleet.lent_gpu_s == pytest.approx(float(fleet.line_lent @ width_s))
    assert fleet.lent_used_gpu_s == pytest.approx(float(fleet.line_used @ width_s))
    # Loans end by their deadline, or are counted as late; what is not back runs to the end.
    over_s = np.maximum(fleet.reclaim_due_s, fleet.reclaim_asked_s + 120.0) + 10.0
    assert (np.minimum(fleet.reclaim_back_s, out.until_s) <= over_s).all()
    late = (np.minimum(fleet.reclaim_back_s, out.until_s) > fleet.reclaim_due_s).sum()
    assert figures["reclaims_late"] == late
    assert figures["failures"] > 0  # type: ignore[operator]
    assert figures["kills"] >= (fleet.lost_gpu_s > 0).sum()
    lends = {"fifo": (), "tide": ("serve", "edge"), "aryl": ("serve",), "edgeflow": ("edge",)}
    assert (fleet.lent_used_gpu_s > 0) == ("serve" in lends[name])
    assert (fleet.edge_used_gpu_s > 0) == ("edge" in lends[name])
    assert (policy.lent > 1) == bool(lends[name])  # the spare server always is


def test_equal_runs_are_equal() -> None:
    one, two = watch("aryl", 60.0)[1], watch("aryl", 60.0)[1]
    assert one.fleet is not None
    assert two.fleet is not None
    assert one.end_s.tolist() == two.end_s.tolist()
    assert one.fleet.reclaim_back_s.tolist() == two.fleet.reclaim_back_s.tolist()
    assert one.fleet.short_gpu_s == two.fleet.short_gpu_s


@pytest.mark.parametrize("on_events", [True, False])
def test_pools_that_are_never_used_change_nothing(on_events: bool) -> None:
    # `fifo` takes nothing on loan.
    options = Options(ROOM, round_s=300.0, on_events=on_events)
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
