"""A field of real agent cores, and the wire between them and the engine.

An agent takes its turns as its service does (`runtime.turns`), with simulated workers and owners;
it has no store and no bus. Around the engine is what its service does there: each message is taken
once, what says nothing new is not passed on, and contact is kept by silence and leases.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from runtime.core import Action, AgentCore, Command as Order, NodeSpec, Report as Reported
from runtime.executor import Machine
from runtime.simulated import Physics, SimulatedExecutor
from runtime.simulated_owner import SimulatedOwner
from runtime.turns import Report, Turns
from scheduler.contact import Contact
from scheduler.core.stimuli import Cause, Command
from scheduler.dedupe import Dedupe, Verdict
from scheduler.relevance import stimulus_of
from schemas.events import EventData, NodeBorn, NodeMeasured
from simulator.driver import Driver

#: Gangs that run as they are declared, and never fail by themselves.
EXACT = Physics(rate_noise=0.0, failures_per_gpu_hour=0.0)
_EVERY_S: dict[Report, float] = {"telemetry": 60.0, "progress": 60.0, "load": 60.0}
_Word = TypeVar("_Word")


class Wire:
    """How words travel: this one takes no time, and loses none."""

    def orders(self) -> Sequence[float]:
        """Give the seconds that each copy of a command takes; no copy: it is lost."""
        return (0.0,)

    def events(self) -> Sequence[float]:
        """Give the same of what an agent says. Its spool keeps it: at least one copy comes."""
        return (0.0,)


class Lane(Generic[_Word]):
    """What is on its way from one to another, in order."""

    def __init__(self, copies_s: Callable[[], Sequence[float]]) -> None:
        self._copies_s = copies_s
        self._words: deque[tuple[float, _Word]] = deque()

    def put(self, word: _Word, now_s: float) -> None:
        for takes_s in self._copies_s():
            last_s = self._words[-1][0] if self._words else now_s
            self._words.append((max(last_s, now_s + takes_s), word))

    @property
    def due_s(self) -> float:
        return self._words[0][0] if self._words else math.inf

    def take(self, now_s: float) -> Iterator[_Word]:
        while self.due_s <= now_s:
            yield self._words.popleft()[1]


class _Heartbeat:
    """A meter that says no more than that the agent is there."""

    def __init__(self, node: str) -> None:
        self._said = NodeMeasured.model_construct(
            node=node,
            window_s=_EVERY_S["telemetry"],
            gpu_utilisation=[],
            gpu_memory_used_mib=[],
            gpu_temperature_c=[],
            gpu_power_w=[],
        )

    def measure(self, now_s: float, window_s: float) -> list[NodeMeasured]:
        return [self._said]


@dataclass(frozen=True)
class _Watched(Machine):
    """A machine of which somebody is told."""

    watch: Callable[[Action | Reported, float], None] = lambda _what, _now_s: None

    def act(self, action: Action, now_s: float) -> None:
        super().act(action, now_s)
        self.watch(action, now_s)

    def advance(self, now_s: float) -> list[Reported]:
        reports = super().advance(now_s)
        for report in reports:
            self.watch(report, now_s)
        return reports


class Agent:
    """A real core on simulated workers."""

    def __init__(
        self, name: str, specs: Sequence[NodeSpec], owner: SimulatedOwner | None = None
    ) -> None:
        """Make it; it is born when its field begins."""
        self.name, self._specs, self._owner = name, specs, owner
        self.core = AgentCore(name, specs)
        #: Is told what it does, and what its workers and its owner report.
        self.watch: Callable[[Action | Reported, float], None] = lambda _what, _now_s: None
        self._bootid = self._sequence = 0

    def connect(self, wire: Wire) -> None:
        """Put it on a wire."""
        self.inbox: Lane[Order] = Lane(wire.orders)
        self.outbox: Lane[tuple[Cause, EventData]] = Lane(wire.events)

    def begin(self, now_s: float) -> None:
        """Be born, with no worker yet."""
        speeds = {spec.node: spec.speed_factor for spec in self._specs}
        self.executor = SimulatedExecutor(speeds, EXACT)
        meter = _Heartbeat(self._specs[0].node)
        machine = _Watched(self.executor, meter, self._owner, watch=self.watch)
        self._turns = Turns(self.core, machine, _EVERY_S, self._say, lambda: None)
        self._turns.begin(now_s)

    @property
    def due_s(self) -> float:
        """When it, or what it said, goes on."""
        return min(self.outbox.due_s, self._turns.due_s, self.inbox.due_s)

    def turn(self, now_s: float) -> None:
        """Take a turn, if one is due."""
        if min(self._turns.due_s, self.inbox.due_s) <= now_s:
            self._turns.turn(now_s, self.inbox.take(now_s))

    def _say(self, data: EventData, now_s: float, causation: str | None) -> None:
        cause = Cause(f"/agents/{self.name}", self._bootid, self._sequence, now_s)
        self.outbox.put((cause, data), now_s)
        self._sequence += 1


class Cores:
    """Agents on a wire, as a field."""

    def __init__(self, agents: Sequence[Agent], wire: Wire | None = None) -> None:
        """Connect the agents; they are born when the field begins."""
        self.agents: Mapping[str, Agent] = {agent.name: agent for agent in agents}
        for agent in agents:
            agent.connect(wire or Wire())
        self._dedupe, self._contact = Dedupe(), Contact()
        self._driver: Driver
        self._asides = 0

    def begin(self, driver: Driver) -> None:
        """Let agents be born."""
        self._driver = driver
        for agent in self.agents.values():
            agent.begin(driver.now_s)

    @property
    def next_s(self) -> float:
        """When an agent goes on next."""
        return min(agent.due_s for agent in self.agents.values())

    def happen(self, now_s: float) -> None:
        """Let agents take their turns, hear what they say, and keep contact."""
        for agent in self.agents.values():
            agent.turn(now_s)
        spoke = [agent.name for agent in self.agents.values() if self._hear(agent, now_s)]
        engine, contact = self._driver.engine, self._contact
        contact.hear(spoke, now_s)
        for data in contact.changes(engine.state, now_s, engine.settings.silence_s, now_s):
            self._driver.say(data, "scheduler")
        settings = engine.settings
        for name, aside in contact.orders(engine.state, spoke, {}, self._dedupe, now_s, settings):
            self._asides += 1
            order = Command(f"aside-{self._asides}", name, aside, now_s + settings.lease_s)
            self.obey(order, now_s)

    def _hear(self, agent: Agent, now_s: float) -> bool:
        """Take what an agent said, each message once; say whether there was any."""
        spoke = False
        for cause, data in agent.outbox.take(now_s):
            verdict = self._dedupe.take(cause.source, cause.bootid, cause.sequence, now_s)
            if verdict is Verdict.DUPLICATE:
                continue
            spoke = True
            told = stimulus_of(self._driver.engine.state, data, now_s)
            if isinstance(told, NodeBorn):
                self._dedupe.forgive(cause.source, cause.bootid, cause.sequence)
            if told is not None:
                self._driver.say(told, cause)
        return spoke

    def obey(self, command: Command, now_s: float) -> None:
        """Send a command on its way; one to an agent that was never there is lost."""
        if command.agent not in self.agents:
            return
        epoch = self._driver.engine.state.leader.epoch
        order = Order(command.id, command.data, now_s, command.expires_s, epoch)
        self.agents[command.agent].inbox.put(order, now_s)

    def report(self, now_s: float) -> None:
        """Say nothing: agents report when it is time."""
