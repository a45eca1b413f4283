"""The demo's services: scheduler, agents and tenants of a scenario, on one embedded bus."""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bus.clock import Clock
from bus.contract import Bus, Link, Message
from cloud_agent import agent as cloud
from demo.leader import Leader
from edge_agent import agent as edge
from runtime.build import Options
from runtime.service import AgentService
from runtime.simulated import Physics
from runtime.simulated_owner import simulated
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, event
from schemas.topics import EVENTS
from simulator.scenario import PoolSpec, Scenario
from simulator.tides import Tide
from simulator.workload import Workload

#: What arrives within this time is decided in one tick: agents report at the same moments.
GATHER_S = 1.0
#: A demo need not outlive a loss of power, and its day of turns is over in half a minute.
_OPTIONS = Options(durability="process_crash")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that runs."""

    scheduler: SchedulerService | Leader
    agents: tuple[AgentService, ...]
    tenants: Callable[[], Coroutine[Any, Any, None]]

    @property
    def duplicates(self) -> int:
        """How many messages came to the scheduler again."""
        if isinstance(self.scheduler, Leader):
            return self.scheduler.duplicates
        return self.scheduler.intake.counts["duplicates"]


def build_fleet(
    scenario: Scenario,
    *,
    bus: Bus,
    clock: Clock,
    start_s: float,
    agents_dir: Path,
    policy: str,
    failures_per_gpu_hour: float,
    watch: Callable[[Stimulus, Decision], None] | None,
    link: Callable[[str], Link] | None = None,
) -> Fleet:
    """Put the services of a scenario together; agents keep their state under `agents_dir`.

    The scenario begins at `start_s`. With `link`, which makes the link of an edge agent, the bus is
    a broker's: it may go away, and the scheduler goes on when it is back.
    """
    agents_dir.mkdir(parents=True, exist_ok=True)
    physics = Physics(
        seed=scenario.seed, failures_per_gpu_hour=failures_per_gpu_hour, reports_loss=True
    )
    config = ServiceConfig(policy=policy, gather_s=GATHER_S, validate_ticks=1)

    def scheduler() -> SchedulerService:
        return SchedulerService(bus, clock, config, watch=watch)

    return Fleet(
        scheduler() if link is None else Leader(scheduler, clock),
        tuple(_agents(scenario, start_s, bus, link or (lambda _: bus), clock, agents_dir, physics)),
        partial(_submit, scenario.workload, start_s, bus, clock),
    )


def _agents(
    scenario: Scenario,
    start_s: float,
    bus: Bus,
    link: Callable[[str], Link],
    clock: Clock,
    agents_dir: Path,
    physics: Physics,
) -> Iterator[AgentService]:
    for pool in scenario.pools:
        if pool.kind == "edge":
            for name, gpus in pool.nodes:
                server = edge.EdgeAgentConfig(
                    name,
                    pool=pool.name,
                    gpus=gpus,
                    gpu_type=pool.gpu_type,
                    gpu_memory_mib=pool.gpu_memory_mib,
                    speed_factor=pool.speed_factor,
                    transfer_mib_per_s=pool.transfer_mib_per_s,
                    options=_OPTIONS,
                )
                demand = _demand(scenario.tides[name], start_s)
                machine = simulated(demand, physics)
                state_file = agents_dir / f"{name}.db"
                yield edge.build_agent(server, link(name), clock, state_file, machine)
        else:
            tide = scenario.tides.get(pool.name)
            owner = None if tide is None else _demand(tide, start_s)
            machine = simulated(owner, physics)
            state_file = agents_dir / f"{pool.name}.db"
            yield cloud.build_agent(_cluster(pool), bus, clock, state_file, machine)


def _cluster(pool: PoolSpec) -> cloud.CloudAgentConfig:
    if pool.kind == "edge":
        raise ValueError(f"{pool.name}: an edge server has an agent of its own")
    return cloud.CloudAgentConfig(
        name=pool.name,
        pool=pool.name,
        pool_kind=pool.kind,
        nodes=tuple(name for name, _ in pool.nodes),
        gpus_per_node=pool.nodes[0][1],
        gpu_type=pool.gpu_type,
        gpu_memory_mib=pool.gpu_memory_mib,
        speed_factor=pool.speed_factor,
        transfer_mib_per_s=pool.transfer_mib_per_s,
        options=_OPTIONS,
    )


def _demand(tide: Tide, start_s: float) -> Callable[[float], float]:
    return lambda now_s: float(tide.gpus_needed(now_s - start_s))


async def _submit(workload: Workload, start_s: float, bus: Bus, clock: Clock) -> None:
    """Speak for all tenants: submit the workload's jobs when they arrive.

    After a restart it says again what it had said: the scheduler takes each number once.
    """
    clock.enter()
    try:
        for sequence, (at_s, job) in enumerate(workload.submissions(start_s)):
            await clock.sleep_until(at_s)
            said = event(job, source="/operators/demo", sequence=sequence, bootid=0, time_s=at_s)
            await bus.publish(Message(EVENTS.name, "default", encode(said)))
    finally:
        clock.leave()
