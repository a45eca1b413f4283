"""The same jobs on ideal agents and on real agent cores: what differs, and by how much."""

from pathlib import Path

import numpy as np
import pytest

from scheduler.policies.registry import make_policy
from simulator.generated import Mix
from simulator.neighbours import neighbours
from simulator.options import Agents
from simulator.outcome import Outcome
from simulator.physics.base import Cluster, Entry
from simulator.physics.simple import SimplePhysics
from simulator.pools import Failure
from simulator.run import Options, simulate
from tests.scripted import Script, entry

CLUSTER = Cluster(4, 8)
POOLS = neighbours(2, 2, 8, seed=3, hours=96.0)
#: An agent saves each gang every so many seconds, and a save takes so long.
SAVES_S, SAVE_S = (600.0, 900.0), 10.0


def jobs() -> list[Entry]:
    physics = SimplePhysics(seed=3, mix=Mix(days=0.2, load=1.0))
    return physics.entries(Path("generated"), CLUSTER, adaptive=False)


def both(policy: str, **options: object) -> list[Outcome]:
    made: tuple[Agents, ...] = ("ideal", "core")
    sizes = tuple(sorted({size for one in jobs() for size in one.model.sizes}))  # type: ignore[attr-defined]
    return [
        simulate(
            jobs(),
            make_policy(policy),
            Options(cluster=CLUSTER, on_events=True, sizes=sizes, agents=agents, **options),  # type: ignore[arg-type]
        )
        for agents in made
    ]


def test_where_nothing_changes_real_cores_take_longer_by_their_saves_alone() -> None:
    ideal, core = both("fifo:sizes=requested")
    ran_s = [out.end_s - out.ready_s for out in (ideal, core)]
    more_s = ran_s[1] - ran_s[0]
    assert more_s.max() >= 5 * SAVE_S
    saves = more_s / SAVE_S
    assert np.allclose(saves, np.round(saves), atol=1e-3)
    assert (saves <= ran_s[1] / SAVES_S[0] + 1e-3).all()
    assert (saves >= ran_s[1] / (SAVES_S[1] + 60.0 + SAVE_S) - 1.0).all()  # looked at each minute
    paused_s = [(out.paused_gpu_s / out.requested) for out in (ideal, core)]
    assert np.allclose(paused_s[0], 30.0)
    assert np.allclose(paused_s[1], 30.0 + more_s)
    # What starts later waits for what takes longer.
    assert 1.0 <= core.end_s.mean() / ideal.end_s.mean() < 1.03
    assert [int(out.restarts.sum() + out.preemptions.sum()) for out in (ideal, core)] == [0, 0]


@pytest.mark.slow
def test_where_jobs_change_size_real_cores_lose_less() -> None:
    """An ideal agent stands still for 40 s at any change, a real core 3 s if it keeps workers."""
    ideal, core = both("aryl", pools=POOLS)
    assert np.isfinite([ideal.end_s, core.end_s]).all()
    assert ideal.invariant_violations == core.invariant_violations == 0
    assert 0.85 < (core.end_s - core.submit_s).sum() / (ideal.end_s - ideal.submit_s).sum() < 1.05
    assert 0.7 < core.restarts.sum() / ideal.restarts.sum() < 1.5
    paused_gpu_s = [out.paused_gpu_s.sum() / out.restarts.sum() for out in (ideal, core)]
    assert paused_gpu_s[1] < 0.9 * paused_gpu_s[0]
    lent_gpu_s = [out.fleet.lent_gpu_s for out in (ideal, core) if out.fleet is not None]
    assert lent_gpu_s[0] > 0
    assert lent_gpu_s[1] == pytest.approx(lent_gpu_s[0], rel=0.25)


def test_what_real_cores_cannot_run_is_refused() -> None:
    with pytest.raises(ValueError, match="run jobs as declared"):
        simulate([entry("a")], Script({}), Options(agents="core"))
    failures = (Failure(1.0, "node-000", 1.0),)
    with pytest.raises(ValueError, match="without failures"):
        simulate(jobs(), Script({}), Options(agents="core", failures=failures))
