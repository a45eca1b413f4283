"""The async shell of an agent: reads commands, runs the core, publishes the spool.

A turn (`runtime.turns`) stores everything in one transaction before it acts; only then are the
commands committed on the bus. Publishing runs concurrently with the turns, so that work goes on
while the link is down; the messages wait in the spool. All waiting goes by the clock.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic.dataclasses import dataclass as checked

from bus.clock import Clock
from bus.contract import BusError, Closed, Consumer, Link, Message, Record
from bus.letters import dead_letter
from runtime.addresses import addressed
from runtime.core import AgentCore, Command
from runtime.executor import Machine
from runtime.gate import UNVOUCHED, Gate, Refusal, Verifier
from runtime.logs import LogSender
from runtime.publisher import Publisher
from runtime.spool import DropPriority, Spool, SpooledMessage, SpoolLimit
from runtime.store import AgentStore
from runtime.turns import Report, Turns
from schemas.codec import encode, event
from schemas.commands import LendNode, RenewLease, ScaleGang, SendLog, StartGang
from schemas.events import EventData
from schemas.options import CHECKED, Seconds
from schemas.topics import COMMANDS

_log = logging.getLogger(__name__)
#: Records taken in one turn.
_BATCH = 500
#: What an older start of an agent leaves to the newer one. It may end and give back what it has.
_BEGINS = (StartGang, ScaleGang, LendNode)
#: Freed rows are deleted with the next thing to write, or when they are this many.
_FREED_MAX = 2000


@checked(frozen=True, slots=True, config=CHECKED)
class Schedule:
    """How often an agent reports. Periods are aligned, so that all agents report together."""

    telemetry_every_s: Seconds = 60.0  #: How often the telemetry of each node is published.
    #: How often the owner's load is published, first within a minute, or within 5 s where
    #: `agent.owner` is `"none"`. Policies believe it for 15 minutes (`loans.stale_s`); after 45 the
    #: scheduler calls back what was lent.
    load_every_s: Seconds = 60.0
    progress_every_s: Seconds = 60.0  #: How often the progress of each gang is published.
    #: How long after a failure of the bus it is tried again.
    retry_s: Seconds = 5.0
    #: How long a stop waits for the bus to take the rest of the spool.
    drain_s: Seconds = 5.0


@dataclass(slots=True)
class Counters:
    """What the service has done since it began."""

    turns: int = 0
    commands: int = 0
    dead_letters: int = 0
    listen_failures: int = 0
    #: Commands not carried out, by reason: `runtime.gate.Kind` and `runtime.core.Objection`.
    refused: Counter[str] = field(default_factory=Counter)
    #: Commands in a row, until now, that no trusted key has signed.
    unvouched: int = 0
    #: When the first of these came, and the last.
    unvouched_since_s: float = 0.0
    unvouched_at_s: float = 0.0


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
        limit: SpoolLimit | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """Put the parts together; `core` holds what `store` had stored."""
        self.counters = Counters()
        self.core = core
        self._store = store
        self._bus = bus
        self._clock = clock
        self._cell = cell
        self._schedule = schedule = schedule or Schedule()
        every_s: dict[Report, float] = {
            "telemetry": schedule.telemetry_every_s,
            "progress": schedule.progress_every_s,
            "load": schedule.load_every_s,
        }
        self._turns = Turns(core, machine, every_s, self._say, self._save)
        self._source = f"/agents/{core.agent}"
        self._group = f"agent-{core.agent}"
        self._gate = Gate(core.agent, cell, verifier)
        self._consumer: Consumer | None = None
        self._spool = Spool(limit, store.load_spool())
        self._added: list[SpooledMessage] = []
        self._publisher = Publisher(self._spool, bus, clock, self._schedule.retry_s)
        self._logs = LogSender(machine.logs, core.agent, bus, clock, cell)
        self._runner: asyncio.Task[None] | None = None
        self._listening = False
        self._stopping = False
        self._whole = True
        self._died: str | None = None
        #: The boot id of a newer start of this agent, if there is one: two agents share the name.
        self.newer_boot: int | None = None
        #: Whether a scheduler has renewed the lease of this start: it has taken a node of it.
        self.leased = False
        self._stopped = asyncio.Event()

    @property
    def bootid(self) -> int:
        """How often the agent has started before, or the moment of its start if that is more."""
        return self._store.bootid

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
    def unfit(self) -> int:
        """How many messages the bus will never take; each became a dead letter."""
        return self._publisher.unfit

    @property
    def publish_problem(self) -> str:
        """Why the bus takes nothing, once that has lasted; empty: it does, or fails at times."""
        return self._publisher.problem

    @property
    def publish_failures(self) -> int:
        """How often the bus did not take a batch."""
        return self._publisher.failures

    @property
    def telemetry_dropped(self) -> int:
        """Messages dropped because the spool was full."""
        return self._spool.dropped

    async def run(self) -> None:
        """Be the agent until `stop` or cancellation; then drain and close the store."""
        self._runner = asyncio.current_task()
        self._clock.enter()
        self._publisher.begin(self._source)
        self._logs.begin(self._store.bootid)
        try:
            self._turns.begin(self._clock.now_s())
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
        """End `run` in good order; with `died`, report that the nodes leave for good, and why."""
        self._stopping, self._died = True, died
        if self._runner is None:
            return
        if self._listening:
            self._runner.cancel()
        await self._stopped.wait()

    # --- turns ---

    def _turn(self, records: Sequence[Record]) -> None:
        now_s = self._clock.now_s()
        self.counters.turns += 1
        commands = (self._read(record, now_s) for record in records)
        self._turns.turn(now_s, (one for one in commands if one is not None))

    def _read(self, record: Record, now_s: float) -> Command | None:
        said = self._gate.read(record)
        if isinstance(said, Refusal):
            self.counters.refused[said.kind] += 1
            self._count_unvouched(said, now_s)
            if self._gate.keeps_letter(now_s):
                _log.warning("refuses a command: %s", f"{said.field} {said.reason}".strip())
                self._dead_letter(record, said)
            return None
        self.counters.commands, self.counters.unvouched = self.counters.commands + 1, 0
        expires_s = None if said.expirytime is None else said.expirytime.timestamp()
        if isinstance(said.data, SendLog):
            if expires_s is None or now_s < expires_s:
                self._logs.ask(said.data)
            return None
        command = Command(said.id, said.data, said.time_s, expires_s, said.bootid)
        if isinstance(said.data, RenewLease) and said.data.boot is not None:
            self._note_boot(said.data.boot)
            if said.data.boot != self._store.bootid:
                # The lease is another start's of this agent. Ours will end, because the scheduler
                # accepts only the newest start while that reports.
                return None
        self.leased = self.leased or isinstance(said.data, RenewLease)
        if self.newer_boot is not None and isinstance(said.data, _BEGINS):
            # The newer start carries it out; a second gang of this epoch would write beside its.
            self.counters.refused["newer_start"] += 1
            return None
        objection = self.core.objection(command, now_s)
        if objection is not None:
            self.counters.refused[objection] += 1
        return command

    def _count_unvouched(self, refusal: Refusal, now_s: float) -> None:
        counters = self.counters
        if refusal.kind not in UNVOUCHED:
            counters.unvouched = 0
            return
        if not counters.unvouched:
            counters.unvouched_since_s = now_s
        counters.unvouched, counters.unvouched_at_s = counters.unvouched + 1, now_s

    def _note_boot(self, boot: int) -> None:
        if boot == self._store.bootid:
            self.newer_boot = None  # it is gone, or never was this agent
        elif boot > self._store.bootid and self.newer_boot is None:
            self.newer_boot = boot
            _log.error(
                "a newer start of %s is running (boot %d, this one is %d): reports of this one are "
                "ignored, it begins nothing, and its lease is not renewed; end one of the two",
                self.core.agent,
                boot,
                self._store.bootid,
            )

    def _dead_letter(self, record: Record, refusal: Refusal) -> None:
        self.counters.dead_letters += 1
        message = dead_letter(record, refusal.field, refusal.reason, self._group)
        # Dropped like telemetry when the spool is full: messages of strangers must not fill it.
        self._added.append(SpooledMessage(self._store.next_row(), message, DropPriority.TELEMETRY))

    def _say(self, data: EventData, now_s: float, causation: str | None = None) -> None:
        """Queue an event, to be stored and published."""
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
        self._added.append(SpooledMessage.of(self._store.next_row(), message, loss))

    def _save(self) -> None:
        """Store what was changed and queued since the last time."""
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

    # --- the bus ---

    async def _listen(self) -> list[Record]:
        now_s = self._clock.now_s()
        left_s = self._turns.left_s(now_s)
        self._listening = True
        try:
            if self._consumer is None:
                self._consumer = await self._bus.consumer(
                    self._group, [COMMANDS.name], keys=[self.core.agent]
                )
            return await self._consumer.poll(_BATCH, left_s)
        except Closed:
            self._stopping = True
            return []
        except BusError:
            self.counters.listen_failures += 1
            if self._consumer is not None:
                await self._consumer.close()
                self._consumer = None  # it may never recover; uncommitted commands come again
            await self._clock.sleep_until(now_s + min(left_s, self._schedule.retry_s))
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
        """Publish the rest of the spool as far as the bus takes it, and close everything."""
        self._logs.end()
        try:
            if self._died is not None:
                self._turns.farewell(self._died, self._clock.now_s())
            await self._publisher.finish(self._schedule.drain_s)
            if self._consumer is not None:
                await self._consumer.close()
            if self._whole:  # a turn that could not be stored did not happen, nor its messages
                self._store.write(self.core.take_changes(), self._added, self._spool.take_freed())
        finally:
            self._publisher.abandon()
            self._store.close()
            self._clock.leave()
            self._stopped.set()
