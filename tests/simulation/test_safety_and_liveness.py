"""Engine and real agent cores over a faulty wire: first nothing bad, then everything good."""

import pytest

from runtime.core import Limits
from scheduler.core.settings import Settings
from scheduler.core.transitions import JobState
from tests.simulation.world import Faults, World


@pytest.mark.parametrize("autonomous", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_faults_break_no_law_and_when_they_stop_every_job_ends(seed: int, autonomous: bool) -> None:
    print(f"seed {seed}")  # noqa: T201  pytest shows it with a failure
    settings = Settings(edge_lease_s=3600.0) if autonomous else Settings()
    limits = Limits(after_reboot="resume") if autonomous else Limits()
    world = World(seed, Faults(loss=0.05, twice=0.1, late=0.3), settings, limits)
    rng = world.rng
    agents = list(world.agents.values())
    for _ in range(400):
        if rng.random() < 0.06 and len(world.submitted) < 15:
            steps = int(10 ** rng.uniform(2.0, 4.3))  # some outlast a lease
            world.submit(gpus_min=int(rng.integers(1, 3)), total_steps=steps)
        agent = agents[int(rng.integers(len(agents)))]
        if rng.random() < 0.02:
            agent.linked = not agent.linked
        if rng.random() < (0.01 if agent.up else 0.2):
            agent.restart(world.now_s)
        if rng.random() < 0.01 and agent.up:
            agent.die(world.now_s, farewell=bool(rng.random() < 0.5))
        if rng.random() < 0.02 and agent.core.gangs:
            agent.executor.fail(next(iter(agent.core.gangs)), "chance", world.now_s)
        if rng.random() < 0.02:
            world.restart_engine()
        world.step(float(rng.uniform(1.0, 40.0)))
    totals = world.engine.state.totals
    assert totals.jobs_started > 3, "the storm let nothing happen"
    assert totals.policy_failures > 3, "no plan was nonsense"
    world.heal()
    world.settle()
    states = {job.state for job in world.engine.state.jobs.values()}
    assert states <= {JobState.COMPLETED, JobState.FAILED}
    for _ in range(40):
        world.step(60.0)
    assert world.engine.state.gpus_held == 0
    assert not any(agent.core.gangs for agent in agents)
