"""The faults: what is hurt, for how long, and whose voice shows that it is well again."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tests.chaos.fleet import (
    BRIDGES,
    LEASE_MARGIN_S,
    LEASE_S,
    SCHEDULERS,
    SERVING,
    TRAINING,
    Fleet,
)

#: How long a killed process stays away, and a frozen one or a bad link lasts.
AWAY_S = (0.5, 3.0)
FROZEN_S = (1.5, 8.0)
#: Beyond the lease: the agent must have given up its work, and the scheduler placed it elsewhere.
PAST_LEASE_S = LEASE_S + LEASE_MARGIN_S + 6.0
#: With telemetry every 2 s, more than the scheduler remembers pieces of (`scheduler.dedupe`).
OUTAGE_S = 150.0


class Target(Protocol):
    """A process or a broker."""

    name: str

    def kill(self) -> None: ...
    def start(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


@dataclass(slots=True)
class Fault:
    """One fault, chosen and ready to happen."""

    kind: str
    target: str
    hold_s: float
    hurt: Callable[[], None]
    heal: Callable[[], None]
    #: Agents that must be heard again; a tenant's event must come through in any case.
    agents: Sequence[str] = ()

    @classmethod
    def none(cls, fleet: Fleet) -> "Fault":
        """Give no fault: the beginning, when every agent must be heard."""
        return cls("start", "everything", 0.0, lambda: None, lambda: None, fleet.agents)

    async def happen(self) -> float:
        """Hurt, wait, heal; give the moment of the healing by the wall clock."""
        await asyncio.to_thread(self.hurt)
        await asyncio.sleep(self.hold_s)
        await asyncio.to_thread(self.heal)
        return time.time()


class Faults:
    """Chooses targets and lengths by chance."""

    def __init__(self, fleet: Fleet, rng: np.random.Generator, leader: Callable[[], str]) -> None:
        self._fleet, self._rng, self._leader = fleet, rng, leader

    def make(self, kind: str) -> Fault:
        """Give a fault of this kind."""
        verb, _, what = kind.partition("-")
        if verb in ("kill", "freeze"):
            return self._of_processes(kind, verb, self._targets(what))
        edge = str(self._rng.choice(self._fleet.edges))
        proxy, process = self._fleet.proxies[edge], self._fleet.processes[edge]
        hold_s = self._length(FROZEN_S)
        match kind:
            case "cut-link":
                return Fault(kind, edge, hold_s, proxy.cut, proxy.heal, [edge])
            case "cut-past-lease":
                return Fault(kind, edge, PAST_LEASE_S, proxy.cut, proxy.heal, [edge])
            case "stall-link":
                return Fault(kind, edge, hold_s, proxy.stall, proxy.heal, [edge])
            case "slow-link":

                def slow() -> None:
                    proxy.slow(float(self._rng.uniform(0.1, 0.6)), 4000.0)

                return Fault(kind, edge, 2 * hold_s, slow, proxy.heal, [edge])
            case "disk-full":
                # It ends then; whoever looks after it starts it again.
                return Fault(kind, edge, hold_s, process.fill_disk, process.empty_disk, [edge])
            case "outage":
                both = [self._fleet.processes[name] for name in SCHEDULERS]
                return self._killed(kind, both, OUTAGE_S, [])
            case _:
                raise ValueError(f"no fault {kind!r}; there are {', '.join(KINDS)}")

    def _of_processes(self, kind: str, verb: str, targets: Sequence[Target]) -> Fault:
        fleet = self._fleet
        if targets[0].name in (TRAINING, SERVING, *fleet.edges):
            agents = [targets[0].name]
        elif targets[0].name in (*BRIDGES, "mosquitto"):
            agents = list(fleet.edges)
        else:
            agents = list(fleet.agents) if targets[0].name == "kafka" else []
        if verb == "kill":
            return self._killed(kind, targets, self._length(AWAY_S), agents)

        def freeze() -> None:
            for target in targets:
                target.freeze()

        def thaw() -> None:
            for target in targets:
                target.thaw()

        names = " ".join(target.name for target in targets)
        return Fault(kind, names, self._length(FROZEN_S), freeze, thaw, agents)

    def _killed(
        self, kind: str, targets: Sequence[Target], hold_s: float, agents: Sequence[str]
    ) -> Fault:
        def kill() -> None:
            for target in targets:
                target.kill()

        def start() -> None:
            for target in targets:
                target.start()

        return Fault(kind, " ".join(one.name for one in targets), hold_s, kill, start, agents)

    def _targets(self, what: str) -> list[Target]:
        fleet, processes = self._fleet, self._fleet.processes
        leader = self._leader() if self._leader() in SCHEDULERS else SCHEDULERS[0]
        match what:
            case "leader":
                return [processes[leader]]
            case "standby":
                return [processes[name] for name in SCHEDULERS if name != leader]
            case "schedulers":
                return [processes[name] for name in SCHEDULERS]
            case "bridge":
                return [processes[str(self._rng.choice(BRIDGES))]]
            case "bridges":
                return [processes[name] for name in BRIDGES]
            case "cloud":
                return [processes[str(self._rng.choice((TRAINING, SERVING)))]]
            case "edge":
                return [processes[str(self._rng.choice(fleet.edges))]]
            case "mosquitto" | "kafka":
                return [fleet.broker(what)]
            case _:
                raise ValueError(f"no target {what!r}; there are {', '.join(KINDS)}")

    def _length(self, bounds: tuple[float, float]) -> float:
        return float(self._rng.uniform(*bounds))


_PROCESSES = ("leader", "standby", "bridge", "cloud", "edge", "mosquitto", "kafka")
#: Every kind of fault, each once a round.
KINDS: tuple[str, ...] = (
    *(f"kill-{what}" for what in _PROCESSES),
    "kill-schedulers",
    "kill-bridges",
    *(f"freeze-{what}" for what in _PROCESSES),
    "cut-link",
    "stall-link",
    "slow-link",
    "disk-full",
    "cut-past-lease",
    "outage",
)
#: Kinds that take long: a short run leaves them out.
LONG_KINDS = ("cut-past-lease", "outage")
