"""What both agent services have in common.

`agent.runs` says whether the machine is simulated (workers, GPUs and owners are closed forms of
time) or real. Everything else of an agent is always real.
"""

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bus.clock import Clock
from bus.contract import BusError, Link, Message
from bus.wire import Client
from runtime.build import MachineMaker, Options
from runtime.core import Limits
from runtime.effects import EffectsFile, recorded
from runtime.gate import UNVOUCHED
from runtime.heap import give_back_large_blocks
from runtime.metering.nvml import NvmlUnavailable, inventory, least_mib, offered, type_name
from runtime.service import AgentService
from runtime.simulated import Physics
from runtime.simulated_owner import Demand, Service, simulated
from runtime.store import held_gangs
from schemas.codec import Rejected, decode_event, encode, event
from schemas.events import LinkLost
from schemas.topics import EVENTS
from services.config import Config, ConfigError
from services.logs import Log
from services.machines import CPU, RealMachine
from services.metrics import RoleName, Sample
from services.probe import BusProbe
from services.sections import AgentSection, SimulatedSection

#: After so many commands in a row without a trusted signature, the agent is taken to trust no
#: scheduler, if no good one came for long: whoever can write to the bus can send forged ones.
_REFUSED_LEAST = 2
#: How long that is without a lease. With one: half of what was left of it at the first refusal; the
#: scheduler renews it when a third is over.
_REFUSED_S = 60.0
#: For so long a refusal counts of an agent without a lease.
_FRESH_S = 600.0
#: A scheduler that leads has taken a birth within this, and renewed the lease.
_TAKEN_S = 60.0
#: What to do where the driver has GPUs and not their memory.
MEMORY_UNKNOWN = (
    "agent.gpu_memory_mib is not set, and the driver does not say how much memory its GPUs have, "
    "as where they share it with the processor; set how much of it the jobs on one GPU may use"
)
#: What both agents may be told of their GPUs.
_ALIKE = ("gpu_type", "gpu_memory_mib", "speed_factor", "transfer_mib_per_s")


class AgentRole:
    """One agent and its link."""

    def __init__(
        self,
        role: RoleName,
        agent: AgentService,
        link: Link,
        clock: Clock,
        config: Config,
        log: Log,
        line: Client | None = None,
        probe: BusProbe | None = None,
        machine: RealMachine | None = None,
    ) -> None:
        """Take the agent and its link.

        Args:
            role: Which of the two it is.
            agent: What runs.
            link: What it speaks over.
            clock: Where time comes from.
            config: The configuration.
            log: The log for operators.
            line: The MQTT connection beneath the link, where there is one.
            probe: Asks the bus that the link is, where it is one.
            machine: What is wrong with the machine, where it is a real one.
        """
        self._role, self._agent, self._link, self._clock = role, agent, link, clock
        self._cell, self._line, self._probe = config.cell, line, probe
        self._machine = machine
        self._ending: asyncio.Task[None] | None = None
        self._oldest_s: float | None = None
        self._seen = (0, 0)
        self._taken, self._begun_s = False, clock.now_s()
        if machine is None:
            log.warning("its workers and GPUs are simulated: no job really runs (agent.runs)")
        if not config.agent.trusted_keys:
            log.warning("commands are carried out unsigned; set agent.trusted_keys")

    async def run(self) -> None:
        """Run the agent until `stop`, then publish the rest as far as the bus takes it."""
        give_back_large_blocks()  # checkpoints on their way are the largest that it ever holds
        try:
            await self._agent.run()
            if self._ending is not None and self._line is None:
                await self._leave()
        finally:
            await self._link.close()

    async def _leave(self) -> None:
        """Tell the scheduler that the agent is away, so that it places nothing here.

        Over MQTT the broker does that (the will).
        """
        name, session = self._agent.core.agent, self._agent.bootid
        word = event(
            LinkLost(agent=name, session=session),
            source=f"/links/{name}",
            sequence=session,
            bootid=0,
            time_s=self._clock.now_s(),
            cell=self._cell,
        )
        with contextlib.suppress(BusError):  # then the scheduler notices its silence
            await self._link.publish(Message(EVENTS.name, self._cell, encode(word)))

    def stop(self) -> None:
        self._ending = asyncio.create_task(self._agent.stop())

    async def refresh(self) -> None:
        """Note the age of the oldest message, and whether the bus takes messages."""
        agent, message = self._agent, self._agent.oldest_waiting
        said = None if message is None else decode_event(message.value or b"")
        self._oldest_s = None if said is None or isinstance(said, Rejected) else said.time_s
        failures = agent.publish_failures + agent.counters.listen_failures
        if failures > self._seen[1]:
            self._taken = False
        elif agent.published > self._seen[0]:
            self._taken = True
        self._seen = agent.published, failures
        if self._probe is not None:
            await self._probe.ask()

    @property
    def _up(self) -> bool:
        return self._taken if self._line is None else self._line.connected

    def problems(self) -> list[str]:
        of_machine = [] if self._machine is None else self._machine.problems(self._clock.now_s())
        of_line = self._of_line()
        of_others = [*self._of_newer_start(), *self._of_refusals()]
        return [*of_line, *(of_others or ([] if of_line else self._of_births())), *of_machine]

    def _of_births(self) -> list[str]:
        """Say that it has no work to wait for; who has a node is given a lease at once."""
        if self._agent.leased or self._clock.now_s() < self._begun_s + _TAKEN_S:
            return []
        bridge = "" if self._line is None else "or no bridge runs (tidegate bridge), "
        return [
            f"no scheduler has taken a node of it within {_TAKEN_S:.0f} s of its start: none leads "
            f"cell {self._cell} yet (tidegate scheduler), {bridge}or it refuses them, as those "
            "that another agent has, or that [[scheduler.pool]] does not list; on the log, "
            "`tidegate nodes` says if none has led, and `tidegate journal stats` what was refused"
        ]

    def _of_refusals(self) -> list[str]:
        """Say that it obeys nobody; its lease is renewed by a command, and so ends."""
        counters, lease_s = self._agent.counters, self._agent.core.lease_until_s
        count, since_s = counters.unvouched, counters.unvouched_since_s
        left_s = 0.0 if lease_s is None else lease_s - since_s
        long_s = left_s / 2 if left_s > 0 else _REFUSED_S
        now_s = self._clock.now_s()
        if count < _REFUSED_LEAST or now_s < since_s + long_s:
            return []
        if (lease_s is None or lease_s <= now_s) and now_s > counters.unvouched_at_s + _FRESH_S:
            return []  # who has no gangs may be told nothing for days
        return [
            f"it refuses all commands, the last {count}, since no key that it trusts has signed "
            "them, so its gangs end with their lease: compare agent.trusted_keys with the "
            "schedulers' scheduler.signing_key_id and signing_key_file"
        ]

    def _of_newer_start(self) -> list[str]:
        newer_boot, own = self._agent.newer_boot, self._agent.bootid
        if newer_boot is None:
            return []
        return [
            f"a newer start of this agent is running (boot {newer_boot}, this one is {own}), so "
            "reports of this one are ignored: end one of the two"
        ]

    def _of_line(self) -> list[str]:
        if self._probe is not None and self._probe.problem:
            return [self._probe.problem]
        if self._up:
            why = self._agent.publish_problem
            return [f"connected, and nothing that it says is taken: {why}"] if why else []
        if self._line is not None:
            return [f"no connection to the MQTT broker at {self._line.where}: {self._line.problem}"]
        if self._seen == (0, 0):
            return ["it is starting: the bus has taken no message of it yet"]
        return ["the bus does not take this agent's messages; trying again"]

    def details(self) -> dict[str, object]:
        return {"spool": self._agent.spool_length, "cell": self._cell}

    def samples(self) -> Iterable[Sample]:
        agent, counters = self._agent, self._agent.counters
        labels = (self._cell, self._role)
        letters = counters.dead_letters + agent.unfit
        yield Sample("tidegate_dead_letters_total", letters, labels)
        oldest_s = self._oldest_s
        waited_s = 0.0 if oldest_s is None else max(0.0, self._clock.now_s() - oldest_s)
        yield Sample("tidegate_oldest_unacked_seconds", waited_s)
        yield Sample("tidegate_link_up", float(self._up))
        yield Sample("tidegate_spool_messages", agent.spool_length)
        yield Sample("tidegate_spool_bytes", agent.spool_bytes)
        yield Sample("tidegate_spool_dropped_total", agent.telemetry_dropped)
        yield Sample("tidegate_published_total", agent.published)
        yield Sample("tidegate_publish_failures_total", agent.publish_failures)
        for reason, count in (dict[str, int].fromkeys(UNVOUCHED, 0) | counters.refused).items():
            yield Sample("tidegate_commands_refused_total", count, (reason,))
        if self._line is not None:
            yield Sample("tidegate_reconnects_total", self._line.reconnects)
        if self._machine is not None:
            yield from self._machine.samples(self._clock.now_s())


def machine_settings(
    config: Config,
    *,
    needed: tuple[str, ...],
    optional: tuple[str, ...] = (),
    foreign: tuple[str, ...],
    has_flags: bool = False,
) -> dict[str, Any]:
    """Give what the configuration says of the machine; for the rest the role has defaults.

    Args:
        config: The configuration.
        needed: Keys of `[agent]` that must be set.
        optional: Keys that may be.
        foreign: Keys of another kind of agent.
        has_flags: Whether it is an agent's own, which takes `--config` and `--set`.

    Raises:
        ConfigError: a needed key is missing, or one of another kind of agent is set.
    """
    section = config.agent
    for name in needed:
        if getattr(section, name) in (None, ()):
            how = "name a configuration with --config (docs/configuration.md), or"
            how = f": {how} --set agent.{name}={name.upper()}" if has_flags else ""
            raise ConfigError(f"agent.{name} is not set; this agent needs it{how}")
    for name in foreign:
        if getattr(section, name) not in (None, ()):
            raise ConfigError(f"agent.{name} is for another kind of agent; take it out")
    if section.runs is None:
        raise ConfigError(
            "agent.runs is not set; say processes (docs/jobs.md has a whole file), or simulated to "
            "try things out: then no job really runs"
        )
    wanted = (*needed, *optional, *_ALIKE)
    said = {name: getattr(section, name) for name in wanted}
    return {name: value for name, value in said.items() if value is not None}


def options_of(config: Config, usual: Options) -> Options:
    """Give what the configuration says of how the agent works, `usual` where it says nothing."""
    section, verifier = config.agent, None
    if section.trusted_keys:
        # Takes 7 MiB: who obeys unsigned commands does without.
        from bus.signing import Verifier

        verifier = Verifier.of(section.trusted_keys)
    return replace(
        usual,
        cell=config.cell,
        durability=section.durability or usual.durability,
        schedule=section.schedule,
        limits=_limits_of(config),
        spool=section.spool or usual.spool,
        verifier=verifier,
    )


def _limits_of(config: Config) -> Limits:
    section, limits = config.agent, config.agent.limits
    if limits.after_reboot is None and section.runs == "processes":
        return replace(limits, after_reboot="resume")
    if limits.after_reboot == "resume" and section.runs in ("slurm", "kubernetes"):
        raise ConfigError(
            "agent.limits.after_reboot: the cluster's own workers outlive the agent's machine; "
            "take it out"
        )
    return limits


def state_file(config: Config) -> Path:
    """Give the file of the agent's memory."""
    return config.agent.state_file or Path(f"{config.agent.name}.db")


def of_driver(section: AgentSection) -> dict[str, Any]:
    """Give the type and memory of the GPUs that workers here are given, as the driver has them.

    Nothing where there is no driver to ask: then what the role assumes counts. Of several kinds,
    the least memory.

    Raises:
        ConfigError: the driver does not say how much memory they have, nor does the configuration.
    """
    if section.runs != "processes" or section.gpu_type == CPU:
        return {}
    ids = section.workers.gpu_ids if section.workers else ()
    try:
        found = offered(inventory(), ids, gpus_of(section))
    except NvmlUnavailable:
        return {}
    if not found:
        return {}
    memory_mib = least_mib(found)
    if memory_mib is None:
        memory_mib = section.gpu_memory_mib
    if memory_mib is None:
        raise ConfigError(MEMORY_UNKNOWN)
    return {"gpu_type": type_name(found[0].name), "gpu_memory_mib": memory_mib}


def gpus_of(section: AgentSection) -> int:
    """Count the GPUs that an agent offers."""
    return section.gpus or (section.gpus_per_node or 1) * max(1, len(section.nodes))


def machine_of(config: Config, *, lendable: bool) -> tuple[MachineMaker, RealMachine | None]:
    """Give what makes the agent's machine, and the machine's state where it is a real one.

    Args:
        config: What is configured.
        lendable: Whether its nodes are of an inference or edge pool, and so have an owner.

    Raises:
        ConfigError: the configuration does not describe one.
    """
    machine, real = _simulated(config, owned=lendable), None
    if config.agent.runs != "simulated":
        # Lendable nodes without an owner have a simulated one, which needs
        # `agent.simulated.demand_gpus`: nothing unless it is set.
        made_up = machine
        real = RealMachine(
            config,
            lambda specs, now_s: made_up(specs, now_s).owner,
            lendable,
            lambda: held_gangs(state_file(config)),
        )
        machine = real.maker()
    if (path := config.agent.effects_file) is not None:
        machine = recorded(machine, EffectsFile(path, str(config.agent.name)))
    return machine, real


def _simulated(config: Config, *, owned: bool) -> MachineMaker:
    """Give what makes simulated machines; their nodes have an owner if they are `owned`."""
    section = config.agent.simulated
    physics = Physics(
        seed=section.seed,
        rate_noise=section.rate_noise,
        failures_per_gpu_hour=section.failures_per_gpu_hour,
        checkpoint_failure_share=section.checkpoint_failure_share,
    )
    service = Service(drain_s=section.drain_s, warm_up_s=section.warm_up_s)
    return simulated(_demand(section) if owned else None, physics, service)


def _demand(section: SimulatedSection) -> Demand:
    """Make the owner's demand a function of time; before the day's first step, as at its end."""
    steps, day_s = section.demand_gpus, section.day_s
    if not isinstance(steps, tuple):
        return lambda _: steps
    starts, gpus = zip(*steps, strict=True)

    def demand(now_s: float) -> float:
        needed: float = gpus[bisect_right(starts, now_s % day_s) - 1]
        return needed

    return demand
