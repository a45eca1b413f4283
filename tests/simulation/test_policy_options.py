"""With every option of every policy at either end of its range, a small day comes to its end."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler.policies.interface import Kind
from scheduler.policies.registry import make_policy
from simulator.generated import Mix
from simulator.physics.base import Cluster, Entry
from simulator.physics.simple import SimplePhysics
from simulator.pools import Load, SimulatedPool
from simulator.run import Options, simulate
from simulator.tides import edge_tide, pool_tide
from tests.property.test_policies_options import ends_of, options_by_policy

pytestmark = pytest.mark.slow

CLUSTER = Cluster(2, 4, memory_mib=32_000.0, transfer_mib_per_s=2000.0)


def jobs() -> list[Entry]:
    physics = SimplePhysics(seed=4, mix=Mix(days=0.2, jobs=12, load=2.0))
    made = physics.entries(Path("generated"), CLUSTER, adaptive=False)
    return [replace(one, edge_allowed=number % 3 > 0) for number, one in enumerate(made)]


def pools() -> tuple[SimulatedPool, ...]:
    rng = np.random.Generator(np.random.PCG64([2, 1]))
    serve = Load.of_tide(pool_tide(rng, 8, 48.0, start_hour=3.0), from_s=-86_400.0)
    edges = tuple(Load.of_tide(edge_tide(rng, 1, 24.0, start_hour=3.0)) for _ in range(2))
    return (
        SimulatedPool("serve", Kind.INFERENCE, 2, 4, 0.8, 16_000.0, 1000.0, (serve,)),
        SimulatedPool("edge", Kind.EDGE, 2, 1, 0.5, 16_000.0, 60.0, edges),
    )


@pytest.mark.parametrize(("name", "paths"), options_by_policy().items())
def test_all_jobs_run_that_the_policy_admits(name: str, paths: list[str]) -> None:
    # On every event, too: a policy that answers its own moves by more moves never ends.
    options = Options(CLUSTER, round_s=300.0, on_events=True, pools=pools(), horizon_s=3 * 86_400.0)
    for path in paths:
        for line in ends_of(name, path):
            out = simulate(jobs(), make_policy(line), options, line=line)
            left = np.flatnonzero(np.isinf(out.end_s) & (out.refused == 0))
            assert [out.ids[job] for job in left] == [], line
            assert np.isfinite(out.start_s).sum() > len(out.ids) // 2, line
            assert out.invariant_violations == 0, line
