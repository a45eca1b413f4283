"""The whole system in one process, in virtual time: broker, schedulers, agents, tenants, a storm.

One run is a function of its storm: the same storm is the same run, to the byte.
"""

import asyncio
import gc
import heapq
import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from scheduler import garbage
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.core.transitions import TERMINAL
from scheduler.core.validate import violations
from scheduler.service_config import ServiceConfig
from tests.whole import coverage
from tests.whole.agents import Agent, listed, places
from tests.whole.aims import Aims
from tests.whole.blows import Blows
from tests.whole.blows_mqtt import MqttBlows
from tests.whole.bridges import Bridging, Device
from tests.whole.broker import Broker
from tests.whole.laws import facts
from tests.whole.loop import Loop, Time, others_run
from tests.whole.mosquitto import Mosquitto
from tests.whole.operators import Operators, gateways
from tests.whole.policies import POLICIES
from tests.whole.reclaims import Reclaims
from tests.whole.releases import releases
from tests.whole.schedulers import Group, Member
from tests.whole.stalls import Stalls
from tests.whole.storm import Blow, Storm
from tests.whole.stuck import Stuck, limit
from tests.whole.tenants import Tenants
from tests.whole.written import Written

#: When each storm begins: what goes by the time of a takeover needs a date of our days.
START_S = 1_767_571_200.0  # 2026-01-05
#: How often the group of schedulers is looked after, and the dead.
LOOK_S = 5.0
#: The leader's own laws are asked so often.
CHECK_S = 60.0
#: After the storm every job ends within so many virtual hours.
CALM_HOURS = 4.0
#: When the storm is over what requests left standing is lifted, and once more: what was asked
#: before may come late.
LIFTED_S = 0.0, 300.0
#: Who is dead starts again after about so long.
DEAD_S = 60.0
#: A run that has no end after so many real seconds is stuck; the longer ones get as many more for
#: each virtual hour. One takes a few seconds.
REAL_S = 120.0


@dataclass(slots=True)
class Outcome:
    """What came of a storm."""

    seed: int
    broken: list[str]  #: Laws, each with what broke it.
    blows: Counter[str]
    facts: Counter[str]
    pairs: Counter[str]  #: Kind of blow, and the state of some job, node, loan or command then.
    transitions: Counter[str]
    commands: Counter[str]  #: By kind.
    stuck: bool  #: Its run did not end.
    virtual_hours: float
    seconds: float  #: Of processor time.
    journal: str  #: Its digest.
    jobs: int
    takeovers: int


def run(storm: Storm, say: Callable[[str], None] | None = None, real_s: float = REAL_S) -> Outcome:
    """Let a storm pass over a new system, and hold what was written down to the laws.

    Args:
        storm: What befalls it.
        say: Is told step by step what happens.
        real_s: For how long it may run, in real seconds, for each two virtual hours.
    """
    # Agents flush to disk at each turn; what a disk keeps is decided here, so memory will do.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    looks = gc.get_threshold()
    garbage.put_off()  # as a scheduler's process does
    with tempfile.TemporaryDirectory(prefix="tidegate-whole-", dir=memory) as folder:
        world = _World(storm, Path(folder), say)
        stuck = False
        try:
            patience_s = real_s * max(1.0, storm.hours / 2.0)
            with limit(patience_s), releases(), asyncio.Runner(loop_factory=Loop) as runner:
                runner.run(world.run())
        except Stuck as error:
            stuck = True
            world.found.append(f"stuck at {world.clock.now_s() - START_S:.1f} s: {error}")
        except Exception as error:  # noqa: BLE001  a seed that ends the harness must be named
            world.found.append(f"the run ended: {type(error).__name__}: {error}")
        finally:
            gc.set_threshold(*looks)
    return world.outcome(stuck=stuck)


class _World:
    def __init__(self, storm: Storm, folder: Path, say: Callable[[str], None] | None) -> None:
        self.storm, self.say = storm, say
        self.clock = Time(START_S)
        self.rng = np.random.default_rng([storm.seed, 2])
        self.broker = Broker(self.clock)
        self.members = [self._member(f"s{number}") for number in range(2)]
        self.group = Group(self.members, self.clock)
        self.mosquitto = Mosquitto(self.clock, self.rng)
        self.agents = [
            Agent(
                places()[one],
                self.broker,
                self.mosquitto,
                self.clock,
                folder,
                self.rng,
                storm.tide_s,
            )
            for one in storm.places
        ]
        other = Broker(self.clock)
        self.bridges = [
            Bridging(f"b{n}", self.broker, other, self.mosquitto, self.clock, self.rng)
            for n in range(storm.bridges)
        ]
        self.carriers = Group(self.bridges, self.clock)
        self.device = Device(self.mosquitto, self.clock, self.rng)
        self.everybody: list[Agent | Member | Bridging]
        self.everybody = [*self.agents, *self.members, *self.bridges]
        self.tenants = Tenants(self.broker, self.clock, self.rng)
        hostile, devices = self.tenants.hostile, [one for one in self.agents if one.over_mqtt]
        self.stalls = Stalls(self.clock, self.mosquitto, self.bridges, devices)
        self.reclaims = Reclaims(self.clock, self.agents, self._hindered)
        mqtt = MqttBlows(
            self.clock,
            self.mosquitto,
            self.group,
            self.bridges,
            devices,
            hostile,
            self._later,
        )
        self.operators = Operators(self.clock, self.agents, self.tenants)
        self.aims = Aims(self.clock, self.agents, self.tenants, self._later, self._strike)
        self.blows = Blows(
            self.clock,
            self.broker,
            self.group,
            self.agents,
            self.tenants,
            self.bridges,
            mqtt,
            self.operators,
            self._later,
        )
        self.written = Written(
            self.broker, self.mosquitto, self.agents, self.tenants, self.operators
        )
        self.found: list[str] = []
        self.pairs: Counter[str] = Counter()
        self._coming: list[tuple[float, int, Callable[[], Any]]] = []
        self._order = itertools.count()
        self._checked_s = 0.0
        self._began_s = time.process_time()

    def _member(self, name: str) -> Member:
        policy, lease_s = POLICIES[self.storm.policy], self.storm.lease_s
        settings = Settings(lease_s=lease_s, command_ttl_s=min(600.0, lease_s - 180.0))
        config = ServiceConfig(
            name=name,
            policy=policy,
            settings=settings,
            pools=listed(),
            gateways=gateways(),
            snapshot_entries=400,
        )
        return Member(name, self.broker, self.clock, self.rng, config, self._watch)

    # --- a run ---

    async def run(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._wrong)
        if self.bridges:
            self.mosquitto.begin()
            self.device.start()
        for bridge in self.bridges:
            bridge.start()
        for agent in self.agents:
            agent.start()
        self.group.look()
        self.carriers.look()
        for job in self.storm.jobs:
            self._later(START_S + job.at_s, partial(self.operators.submit, job))
        for blow in self.storm.blows:
            self._later(START_S + blow.at_s, partial(self._strike, blow))
        await self._until(START_S + 3600.0 * self.storm.hours)
        self._heal()
        limit_s = self.clock.now_s() + 3600.0 * CALM_HOURS
        while self.clock.now_s() < limit_s and not self._quiet():
            await self._until(self.clock.now_s() + 60.0)
        await self._until(self.clock.now_s() + self.storm.rest_s)
        try:
            self.found += self.written.broken()
        finally:
            await self._end()

    def outcome(self, *, stuck: bool) -> Outcome:
        """Give what came of it."""
        books = self.written.books()
        return Outcome(
            self.storm.seed,
            self.found,
            Counter(blow.kind for blow in self.storm.blows),
            facts(books),
            self.pairs,
            coverage.transitions(books.journal),
            coverage.commands(books.commands),
            stuck,
            (self.clock.now_s() - START_S) / 3600.0,
            time.process_time() - self._began_s,
            blake2b(b"".join(r.value or b"" for r in books.journal), digest_size=8).hexdigest(),
            len(self.tenants.accepted),
            self.group.takeovers,
        )

    def _later(self, at_s: float, what: Callable[[], Any]) -> None:
        heapq.heappush(self._coming, (at_s, next(self._order), what))

    async def _until(self, end_s: float) -> None:
        while (now_s := self.clock.now_s()) < end_s:
            next_s = min(end_s, now_s + LOOK_S)
            if self._coming:
                next_s = min(next_s, max(now_s, self._coming[0][0]))
            await self.clock.run_until(next_s)
            while self._coming and self._coming[0][0] <= self.clock.now_s():
                heapq.heappop(self._coming)[2]()
            await others_run()
            for agent in self.agents:
                agent.look()
            self._revive()
            self.group.look()
            self.carriers.look()
            self._check()
            self._look_for_stalls()
            if late := self.reclaims.look():
                self._found_once(f"nodes kept from their owner: {late[0]}")

    def _strike(self, blow: Blow) -> None:
        if blow.aim:
            self.aims.wait(blow, START_S + 3600.0 * self.storm.hours)
            return
        self._tell(f"*** {blow.kind} {blow.who} {blow.size:.2f}")
        state = self._state()
        for stands in () if state is None else coverage.standing(state):
            self.pairs[f"{blow.kind} x {stands}"] += 1
        self.blows.strike(blow)

    def _revive(self) -> None:
        """Start again whoever is dead, after a while."""
        for one in self.everybody:
            if not one.process.alive and not one.process.mourned:
                one.process.mourned = True
                self._later(self.clock.now_s() + self.rng.exponential(DEAD_S), one.start)

    def _heal(self) -> None:
        """End the storm, but for pauses: who stands still goes on when its pause is over."""
        for one in self.everybody:
            one.link.slow = one.link.lost_answers = one.link.deadly = 0.0
            one.link.mend()
            one.process.clock.set(0.0)
        for agent in self.agents:
            agent.full_until_s = agent.disk.unreadable_until_s = agent.disk.errs = 0.0
            agent.hasten()
        for bridge in self.bridges:
            bridge.heal()
        self.mosquitto.repeats = 0.0
        for wait_s in LIFTED_S:
            self._later(self.clock.now_s() + wait_s, self.operators.lift)

    async def _end(self) -> None:
        # All at once: each would wait for the others to end in good order.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        for _ in range(20):  # parts of parts end one after another
            await asyncio.sleep(0)

    # --- what is seen on the way ---

    def _state(self) -> ClusterState | None:
        service = None if self.group.holder is None else self.group.holder.service
        return service.engine.state if service is not None and service.leads else None

    def _quiet(self) -> bool:
        state = self._state()
        if state is None or self._coming:
            return False
        jobs = state.jobs
        # A job may be unknown for good if the broker has lost its submission.
        known = [job for job in self.tenants.accepted if job in jobs or not self.broker.losses]
        if not all(job in jobs and jobs[job].state in TERMINAL for job in known):
            return False
        return not state.commands and all(agent.idle for agent in self.agents)

    def _check(self) -> None:
        if self.clock.now_s() < self._checked_s + CHECK_S:
            return
        self._checked_s = self.clock.now_s()
        state = self._state()
        if state is not None and not self.found and (wrong := violations(state)):
            self.found.append(f"the engine's state: {wrong[0]} at {self._now()}")

    def _look_for_stalls(self) -> None:
        if late := self.stalls.look():
            self._found_once(f"words that stand still: {late[0]}, nothing being in their way")

    def _found_once(self, what: str) -> None:
        law = what.split(":")[0]
        if not any(found.startswith(law) for found in self.found):
            self.found.append(what)

    def _hindered(self, agent: Agent) -> bool:
        """Whether anything is in the way between an agent and who leads."""
        leader, between = self.group.holder, self.bridges if agent.over_mqtt else []
        if leader is None or self._state() is None or leader.hindered or agent.hindered:
            return True
        hangs = not self.mosquitto.up or bool(self.mosquitto.holds)
        return any(one.hindered for one in between) or (bool(between) and hangs)

    def _watch(self, stimulus: Stimulus, decision: Decision) -> None:
        self.aims.see(decision.facts, self._state())
        for fact in decision.facts if self.say is not None else ():
            self._tell(f"{type(stimulus.data).__name__}: {fact}")

    def _tell(self, what: str) -> None:
        if self.say is not None:
            self.say(f"{self._now()}  {what}")

    def _wrong(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.found.append(f"a task ended at {self._now()}: {context['message']}: {error!r}")

    def _now(self) -> str:
        return f"{self.clock.now_s() - START_S:9.1f} s"
