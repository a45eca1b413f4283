"""The async shell of an agent: hears commands, turns the core, publishes the spool.

A turn is: learn what the machine did, hear the commands, write everything down in one
transaction, then act. Only what is written down takes effect, and only then is the bus told that
the commands are read. Publishing runs beside the turns, so that work goes on while the link is
down; what waits is in the spool. All waiting is the clock's.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from bus.clock import Clock
from bus.contract import BusError, Closed, Consumer, Link, Message, Record
from bus.letters import dead_letter
from runtime.addresses import addressed
from runtime.core import (
    Action,
    AgentCore,
    Birth,
    CheckpointWorkers,
    Command,
    DrainNode,
    HandBackNode,
    Outputs,
    ScaleWorkers,
    StartWorkers,
    Stimulus,
    StopWorkers,
    Tick,
)
from runtime.executor import Machine
from runtime.gate import Gate, Refusal, Verifier
from runtime.publisher import Publisher
from runtime.spool import Limit, Loss, Spool, Waiting
from runtime.store import AgentStore
from schemas.codec import encode, event
from schemas.events import EventData
from schemas.topics import COMMANDS

_TICK = Tick()
#: Records taken in one turn.
_BATCH = 500
#: Freed rows are deleted with the next thing to write, or when they are this many.
_FREED_MAX = 2000


@dataclass(frozen=True, slots=True)
class Schedule:
    """When an agent speaks by itself. Periods are aligned, so that agents speak together."""

    telemetry_every_s: float = 60.0  #: What is measured of each node is said this often.
    load_every_s: float = 60.0  #: What the owner needs is said this often.
    progress_every_s: float = 60.0  #: How far each gang is, is said this often.
    #: After a failure of the bus, try again this much later.
    retry_s: float = 5.0
    #: Real seconds that a stop waits for the bus to take what is left.
    drain_s: float = 5.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be positive and finite")


@dataclass(slots=True)
class Counters:
    """What the service has done since it began."""

    turns: int = 0
    commands: int = 0
    dead_letters: int = 0
    listen_failures: int = 0
    #: What was not obeyed, by reason: `runtime.gate.Kind` and `runtime.core.Objection`.
    refused: Counter[str] = field(default_factory=Counter)


class AgentService:
    """Runs one agent. `run` takes part in the clock by itself; do not `enter` for it."""

    def __init__(
        self,
        core: AgentCore,
        store: AgentStore,
        machine: Machine,
        bus: Link,
        clock: Clock,
        *,
        cell: str = "default",
        schedule: Schedule | None = None,
        limit: Limit | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """Put the parts together; `core` holds what `store` had stored."""
        self.counters = Counters()
        self.core = core
        self._store = store
        self._executor = machine.executor
        self._meter = machine.meter
        self._owner = machine.owner
        self._bus = bus
        self._clock = clock
        self._cell = cell
        self._schedule = schedule or Schedule()
        self._source = f"/agents/{core.agent}"
        self._group = f"agent-{core.agent}"
        self._gate = Gate(core.agent, cell, verifier)
        self._consumer: Consumer | None = None
        self._spool = Spool(limit, store.load_spool())
        self._added: list[Waiting] = []
        self._actions: list[Action] = []
        self._publisher = Publisher(self._spool, bus, clock, self._schedule.retry_s)
        self._due_s: dict[str, float] = {}
        self._runner: asyncio.Task[None] | None = None
        self._listening = False
        self._stopping = False
        self._whole = True
        self._died: str | None = None
        self._stopped = asyncio.Event()

    @property
    def spool_length(self) -> int:
        """How many messages wait for the bus."""
        return len(self._spool)

    @property
    def spool_bytes(self) -> int:
        """How large they are together."""
        return self._spool.size_bytes

    @property
    def oldest_waiting(self) -> Message | None:
        """The message that has waited longest for the bus, if any does."""
        oldest = self._spool.next(1)
        return oldest[0].message if oldest else None

    @property
    def published(self) -> int:
        """How many messages the bus has confirmed."""
        return self._publisher.published

    @property
    def publish_failures(self) -> int:
        """How often the bus did not take a batch."""
        return self._publisher.failures

    @property
    def telemetry_dropped(self) -> int:
        """Messages dropped because the spool was full: telemetry, then what newer words replace."""
        return self._spool.dropped

    async def run(self) -> None:
        """Be the agent until `stop` or cancellation; then drain and close the store."""
        self._runner = asyncio.current_task()
        self._clock.enter()
        self._publisher.begin(self._source)
        try:
            self._begin()
            while not self._stopping:
                records = await self._listen()
                self._turn(records)
                if records:
                    await self._commit()
                if self._publisher.ended:
                    break
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            if self._runner is not None:
                self._runner.uncancel()  # `stop` cancelled the wait, not the agent
        finally:
            await self._end()

    async def stop(self, died: str | None = None) -> None:
        """End `run` in good order; with `died`, say that the nodes go for good, and why."""
        self._stopping, self._died = True, died
        if self._runner is None:
            return
        if self._listening:
            self._runner.cancel()
        await self._stopped.wait()

    # --- turns ---

    def _begin(self) -> None:
        now_s = self._clock.now_s()
        self._take(Birth(self._executor.running()), now_s)
        self._flush(now_s)
        for name, period_s in self._periods().items():
            self._due_s[name] = _next(now_s, period_s)

    def _turn(self, records: Sequence[Record]) -> None:
        now_s = self._clock.now_s()
        self.counters.turns += 1
        self._learn(now_s)
        for record in records:
            self._hear(record, now_s)
        self._take(_TICK, now_s)
        if self._actions:
            self._flush(now_s)
            self._learn(now_s)
        self._report(now_s)
        self._flush(now_s)

    def _learn(self, now_s: float) -> None:
        """Tell the core what executor and owner report, until they have no more to say."""
        while True:
            reports: list[Stimulus] = [*self._executor.advance(now_s)]
            if self._owner is not None:
                reports += self._owner.advance(now_s)
            if not reports:
                return
            for report in reports:
                self._take(report, now_s)
            if not self._actions:
                return
            self._flush(now_s)

    def _hear(self, record: Record, now_s: float) -> None:
        said = self._gate.read(record)
        if isinstance(said, Refusal):
            self.counters.refused[said.kind] += 1
            if self._gate.keeps_letter(now_s):
                self._bury(record, said)
            return
        self.counters.commands += 1
        expires_s = _seconds(said.expirytime)
        command = Command(said.id, said.data, said.time_s, expires_s, said.bootid)
        objection = self.core.objection(command, now_s)
        if objection is not None:
            self.counters.refused[objection] += 1
        self._take(command, now_s)

    def _bury(self, record: Record, refusal: Refusal) -> None:
        self.counters.dead_letters += 1
        message = dead_letter(record, refusal.field, refusal.reason, self._group)
        # Dropped like telemetry when the spool is full: what strangers send must not fill it.
        self._added.append(Waiting(self._store.next_row(), message, Loss.TELEMETRY))

    def _take(self, stimulus: Stimulus, now_s: float) -> None:
        self._collect(self.core.handle(stimulus, now_s), now_s)

    def _collect(self, outputs: Outputs, now_s: float) -> None:
        for ack in outputs.acks:
            self._say(ack.data, now_s, ack.causation)
        for said in outputs.events:
            self._say(said.data, now_s, said.causation)
        self._actions += outputs.actions

    def _say(self, data: EventData, now_s: float, causation: str | None = None) -> None:
        """Put an event at the end of what is to be written and published."""
        envelope = event(
            data,
            source=self._source,
            sequence=self._store.next_sequence(),
            bootid=self._store.bootid,
            time_s=now_s,
            cell=self._cell,
            causation=causation,
        )
        topic, key, loss = addressed(data, self._cell)
        message = Message(topic, key, encode(envelope))
        self._added.append(Waiting.of(self._store.next_row(), message, loss))

    def _flush(self, now_s: float) -> None:
        """Write down what the turn changed, then let it take effect."""
        changes = self.core.take_changes()
        if changes or self._added or self._spool.freed >= _FREED_MAX:
            self._whole = False
            self._store.write(changes, self._added, self._spool.take_freed())
            self._whole = True
            for waiting in self._added:
                self._spool.add(waiting)
            if self._added:
                self._added = []
                self._publisher.notify()
        actions, self._actions = self._actions, []
        for action in actions:
            self._act(action, now_s)

    def _act(self, action: Action, now_s: float) -> None:
        match action:
            case StartWorkers():
                self._executor.start(action, now_s)
            case ScaleWorkers():
                self._executor.scale(action, now_s)
            case CheckpointWorkers():
                self._executor.checkpoint(action, now_s)
            case StopWorkers():
                self._executor.stop(action, now_s)
            case DrainNode() if self._owner is not None:
                self._owner.drain(action.node, now_s)
            case HandBackNode() if self._owner is not None:
                self._owner.hand_back(action.node, now_s)
            case _:
                raise RuntimeError(f"node: {action.node} is lendable but the agent has no owner")

    # --- reports ---

    def _periods(self) -> dict[str, float]:
        schedule = self._schedule
        periods = {
            "telemetry": schedule.telemetry_every_s,
            "progress": schedule.progress_every_s,
        }
        if self._owner is not None:
            periods["load"] = schedule.load_every_s
        return periods

    def _report(self, now_s: float) -> None:
        for name, period_s in self._periods().items():
            if now_s < self._due_s[name]:
                continue
            self._due_s[name] = _next(now_s, period_s)
            if name == "progress":
                for progress in self._executor.progress(now_s):
                    self._take(progress, now_s)
            elif name == "load" and self._owner is not None:
                for load in self._owner.loads(now_s):
                    self._say(load, now_s)
            elif name == "telemetry":
                for measured in self._meter.measure(now_s, period_s):
                    self._say(measured, now_s)

    def _next_due_s(self) -> float:
        """When the next turn is due even if no command comes."""
        due_s = min(self._due_s.values())
        for source in (self._executor, self._owner, self.core):
            if source is not None and (other_s := source.next_due_s()) is not None:
                due_s = min(due_s, other_s)
        return due_s

    # --- the bus ---

    async def _listen(self) -> list[Record]:
        now_s, due_s = self._clock.now_s(), self._next_due_s()
        self._listening = True
        try:
            if self._consumer is None:
                self._consumer = await self._bus.consumer(
                    self._group, [COMMANDS.name], keys=[self.core.agent]
                )
            return await self._consumer.poll(_BATCH, max(0.0, due_s - now_s))
        except Closed:
            self._stopping = True
            return []
        except BusError:
            self.counters.listen_failures += 1
            if self._consumer is not None:
                await self._consumer.close()
                self._consumer = None  # it may never recover; what was not committed comes again
            await self._clock.sleep_until(min(due_s, now_s + self._schedule.retry_s))
            return []
        finally:
            self._listening = False

    async def _commit(self) -> None:
        if self._consumer is None:
            return
        try:
            await self._consumer.commit()
        except BusError:
            # The commands are in the store; read again, they are known by their ids.
            self.counters.listen_failures += 1

    async def _end(self) -> None:
        """Publish what is left as far as the bus takes it, and let go of everything."""
        try:
            if self._died is not None:
                now_s = self._clock.now_s()
                self._collect(self.core.farewell(self._died, now_s), now_s)
                self._flush(now_s)
            await self._publisher.finish(self._schedule.drain_s)
            if self._consumer is not None:
                await self._consumer.close()
            if self._whole:  # a turn that could not be written did not happen, nor its words
                self._store.write(self.core.take_changes(), self._added, self._spool.take_freed())
        finally:
            self._publisher.abandon()
            self._store.close()
            self._clock.leave()
            self._stopped.set()


def _next(now_s: float, period_s: float) -> float:
    """The next multiple of the period after now."""
    return (math.floor(now_s / period_s) + 1) * period_s


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
