"""The async shell around the engine: consume, decide, and append in one transaction per tick.

A tick takes what has come, feeds the engine one stimulus after another, and commits the journal,
the commands, the dead letters and the consumed offsets together: a crash before the commit
repeats the tick, after it nothing is lost and nothing happens twice.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from bus.clock import Clock
from bus.contract import Bus, Consumer, Message, Producer, Record, Unreadable
from scheduler import garbage
from scheduler.batch import BatchDecider
from scheduler.celltime import CellTime
from scheduler.contact import Contact
from scheduler.core.engine import STAND_IN, Engine
from scheduler.core.stimuli import Decision, Stimulus, TimePassed, next_epoch
from scheduler.core.validate import violations
from scheduler.cycle_runner import CycleRunner, in_turns
from scheduler.estimator.guard import Learning
from scheduler.intake import Intake
from scheduler.journal import Recovered, TooLarge, recover, write_entry
from scheduler.log_readers import LogReaders
from scheduler.outgoing import Outgoing, Signs
from scheduler.policies.interface import Policy
from scheduler.policies.registry import make_policy
from scheduler.service_config import ServiceConfig, intake_of, started
from scheduler.snapshot_writer import SnapshotWriter
from schemas.commands import AnyCommand
from schemas.topics import EVENTS, JOURNAL, REQUESTS, TELEMETRY

#: Is shown how long, in real seconds, a decision took, or a tick's transaction.
Stopwatch = Callable[[Literal["decision", "transaction"], float], None]

#: What people ask for goes before what agents say.
_TOPICS = (REQUESTS.name, EVENTS.name, TELEMETRY.name)


class _Undone(Exception):
    """A tick that must not count. The argument: why its policy is not to be heard again at once."""

    @property
    def cut(self) -> str:
        return self.args[0] if self.args else ""


class SchedulerService:
    """Leads one cell."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        config: ServiceConfig,
        policies: Callable[[str], Policy] = make_policy,
        watch: Callable[[Stimulus, Decision], None] | None = None,
        *,
        signer: Signs | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Prepare; `watch` is shown every decision after it is committed."""
        self._bus, self._clock, self._config = bus, clock, config
        self._policies, self._watch = policies, watch
        self._stopwatch = stopwatch
        self.time = CellTime(clock)
        self._outgoing = Outgoing(config.cell, config.name, signer, self.time)
        self._stopping = self._listening = self._leads = False
        self._runner: asyncio.Task[None] | None = None
        self._poison: dict[tuple[str, int], str] = {}
        self._contact = Contact()
        self._log_readers = LogReaders()
        self.cycle_runner, self._cut = CycleRunner(config.cycle_budget_s), ""
        self.learning = Learning(on=config.learn)
        self._said_s = self._pruned_s = self._ticked_s = self._marked_s = float("-inf")
        self._read_s = float("-inf")  # up to when all that was stored has been read
        self._ticks = 0
        self.invariant_violations = self.recovered_entries = 0

    engine: Engine
    intake: Intake
    _consumer: Consumer
    _producer: Producer
    _digest: str

    async def open(self) -> None:
        """Take the cell over: fence the former leader, recover, say so.

        Raises:
            Unreadable: the record on the bus is damaged or was written by a newer version, or the
                policy that somebody chose is not known to this one.
        """
        config = self._config
        self._producer = await self._bus.producer(f"scheduler-{config.cell}")
        self._consumer = await self._bus.consumer(f"scheduler-{config.cell}", _TOPICS)
        found = await recover(self._bus, config.cell)
        self.recovered_entries = found.entries
        self._snapshots = SnapshotWriter(self._bus, config, self._producer, found)
        self._go_on_from(found)
        self.time.begin(self.engine.state.now_s)
        now_s = self._now_s()
        silent = self._contact.begin(self.engine.state, now_s)
        self._read_s = now_s
        await self.cycle_runner.in_thread(partial(self.learning.begin, self.engine.state))
        self._check_chosen_policy()
        epoch = next_epoch(self.engine.state.leader.epoch, self._clock.now_s())
        first = [Stimulus(now_s, data) for data in (started(config, epoch), *silent)]
        try:
            await self._begin(first)
        except _Undone as undone:  # of the first cycle, which another policy makes now
            await self._go_back()
            self._cut = undone.cut
            await self._begin(first)

    async def _begin(self, first: Sequence[Stimulus]) -> None:
        messages: list[Message] = []
        decided = [(one, self._decide(one, messages)) async for one in in_turns(first)]
        await self._commit(decided, messages, first[0].at_s)

    def _check_chosen_policy(self) -> None:
        """Leave the cell to a release that knows the policy which an administrator chose.

        Raises:
            Unreadable: this one does not, and is to go on with it.
        """
        state = self.engine.state
        chosen = state.standing.policy
        if chosen is None or self._config.policy_pinned:
            return
        try:
            self._policies(state.leader.policy)
        except ValueError as error:
            raise Unreadable(
                f"{chosen.by} chose what this release does not know: {error}; use a release that "
                "does, or set scheduler.policy_pinned and the configured policy decides"
            ) from error

    def _go_on_from(self, found: Recovered) -> None:
        self.engine = Engine(found.state, self._policies)
        if hasattr(self, "intake"):
            self.intake.go_back(found.dedupe)
        else:
            behind_s = self._clock.now_s() - found.state.now_s if found.state.number else 0.0
            self.intake = intake_of(self._config, found.dedupe, max(0.0, behind_s))
        self.intake.heard_before(found.newest)
        self._digest = found.digest

    @property
    def leads(self) -> bool:
        """Whether it has taken the cell over and still ticks, as far as it knows."""
        return self._leads

    async def lag(self) -> int:
        """How many stored records it has not yet taken."""
        return await self._consumer.lag()

    async def run(self) -> None:
        """Open, then tick until `stop`. Takes part in the clock by itself."""
        self._runner = asyncio.current_task()
        self._clock.enter()
        try:
            await self.open()
            self._leads = True
            while not self._stopping:
                records = await self._listen()
                if not self._stopping:
                    await self.tick(records)
            await self.snapshot()
            async with self._producer.transaction() as transaction:
                transaction.send(self._cell_state(self._now_s(), online=False))
            await self._consumer.close()
        finally:
            self._leads = False
            self._runner = None  # it holds, with its fault, this: nobody would look for that cycle
            self._clock.leave()

    def stop(self) -> None:
        """Finish the present tick, write a snapshot, say goodbye; `run` returns then."""
        self._stopping = True
        if self._listening and self._runner is not None:
            self._runner.cancel()

    async def _listen(self) -> list[Record]:
        """Wait for records or until something is due; gather what comes right after."""
        config = self._config
        self._listening = True
        try:
            records = await self._consumer.poll(config.records_max, self._patience_s())
            now_s = self._clock.now_s()
            until_s = max(now_s + config.gather_s, min(now_s, self._ticked_s) + config.spacing_s)
            if records and until_s > now_s and len(records) < config.records_max:
                await self._clock.sleep_until(until_s)
                records += await self._consumer.poll(config.records_max - len(records), 0.0)
            if not self._consumer.behind:
                self._read_s = self._now_s()
            return records
        except asyncio.CancelledError:
            if not self._stopping or self._runner is None:
                raise
            self._runner.uncancel()  # `stop` cancelled the wait, not the service
            return []
        finally:
            self._listening = False

    def _patience_s(self) -> float:
        wake_s = self.engine.wake_s
        heartbeat_s = self._said_s + self._config.heartbeat_s
        until_s = heartbeat_s if wake_s is None else min(wake_s, heartbeat_s)
        return max(0.0, until_s - self._now_s())

    async def tick(self, records: Sequence[Record]) -> None:
        """Decide on a batch and commit."""
        now_s = self._now_s()
        before, cycle = self.intake.noted(), self.engine.state.cycle_number
        try:
            await self._tick(records, now_s)
        except _Undone as undone:
            self.intake.note_again(before)
            await self._go_back()
            self._cut = undone.cut
        else:  # what was decided is freed by now: a look for garbage need not go through it
            await self.cycle_runner.in_thread(partial(self._catch_up, now_s, cycle))

    async def _tick(self, records: Sequence[Record], now_s: float) -> None:
        state, clock = self.engine.state, self._clock
        batch = self.intake.read(records, state, clock.now_s(), clock.latest_s())
        messages = batch.dead
        decider = BatchDecider(
            self._config,
            clock,
            self.intake,
            self.learning,
            state,
            now_s,
            self.time.ahead_s,
            self._decide,
            messages,
            self._poison,
            self._log_readers,
            self._aside,
        )
        decided = decider.decided
        self._contact.hear(self.intake.spoke, now_s)
        self._contact.links([*batch.opened, *batch.lost.values()])
        contact = self._contact.changes(state, now_s, self.engine.settings.silence_s, self._read_s)
        asked = [partial(decider.request, *one) for one in batch.requests]
        async for take in in_turns(
            [*asked, *(partial(decider.event, *c) for c in batch.candidates)]
        ):
            try:
                take()
            except Exception as error:  # one record must not stop all
                record: Record = take.args[0]
                self._poison[record.topic, record.offset] = f"{type(error).__name__}: {error}"
                raise _Undone from error
        async for data in in_turns((*contact, *self.learning.news())):
            stimulus = Stimulus(now_s, data)
            decided.append((stimulus, self._decide(stimulus, messages)))
        await self._commit(decided, messages, now_s)

    def _catch_up(self, now_s: float, cycle: int) -> None:
        state = self.engine.state
        self.learning.learn(state, now_s)
        self.engine.catch_up()
        # Each plan gives thousands of jobs another reason in the place of the last one.
        garbage.look_at_new(surely=state.cycle_number > cycle)

    async def _commit(
        self,
        decided: list[tuple[Stimulus, Decision]],
        messages: list[Message],
        at_s: float,
    ) -> None:
        """Let time pass, then store what was decided and is to be said in one transaction."""
        wake_s = self.engine.wake_s
        if wake_s is not None and wake_s <= at_s:
            decided.append(await self._cycle(at_s, messages))
        # A lease goes first: who has none starts no gang.
        messages[:0] = self._courtesies(at_s)
        if not decided and not messages and at_s < self._marked_s + self._config.mark_s:
            return  # read again after a crash, it says no more than it did
        self._marked_s = at_s
        began_s = self._real_s()
        async with self._producer.transaction() as transaction:
            for message in messages:
                transaction.send(message)
            transaction.commit_positions(self._consumer)
        self._took("transaction", began_s)
        self._ticked_s = self._clock.now_s()
        self._ticks += 1
        config = self._config
        if config.validate_ticks and self._ticks % config.validate_ticks == 0:
            found = await self.cycle_runner.in_thread(partial(violations, self.engine.state))
            self.invariant_violations += len(found)
        if self._watch is not None:
            for stimulus, decision in decided:
                self._watch(stimulus, decision)
        if self._snapshots.due(self.engine.state):
            await self.snapshot()
        if at_s >= self._pruned_s + self._config.prune_s:
            self._pruned_s = at_s
            # By the clock that records were stored by: the cell's time may be far ahead of it.
            await self._bus.prune(self._clock.now_s())

    def _decide(self, stimulus: Stimulus, messages: list[Message]) -> Decision:
        began_s = self._real_s()
        decision = self.engine.handle(stimulus)
        self._took("decision", began_s)
        self._record(stimulus, decision, messages)
        return decision

    async def _cycle(self, at_s: float, messages: list[Message]) -> tuple[Stimulus, Decision]:
        """Let time pass; meanwhile the loop goes on, and nothing else is decided."""
        began_s, in_thread = self._real_s(), self.cycle_runner.in_thread
        stimulus = Stimulus(at_s, TimePassed(self._cut))
        question = await in_thread(partial(self.engine.begin, stimulus))
        answer = None if question is None else await self.cycle_runner.ask(question)
        decision = await in_thread(partial(self.engine.finish, answer))
        self._took("decision", began_s)
        cut = "" if answer is None else answer.cut
        stimulus = Stimulus(at_s, TimePassed(cut))
        try:
            await in_thread(partial(self._record, stimulus, decision, messages))
        except TooLarge as error:
            if cut or answer is None:
                raise
            raise _Undone(f"{error}; {STAND_IN} stood in") from error
        self._cut = self._cut if answer is None else ""
        return stimulus, decision

    def _record(self, stimulus: Stimulus, decision: Decision, messages: list[Message]) -> None:
        """Write down what was decided, and the commands."""
        engine, cell = self.engine, self._config.cell
        value, self._digest = write_entry(engine.state, stimulus, decision, self._digest)
        self._snapshots.saw(1, len(value))
        messages.append(Message(JOURNAL.name, cell, value))
        epoch = engine.state.leader.epoch
        messages += [self._outgoing.command(one, stimulus.at_s, epoch) for one in decision.commands]

    def _now_s(self) -> float:
        return self.time.now_s(self.engine.state.now_s)

    def _real_s(self) -> float:
        return 0.0 if self._stopwatch is None else asyncio.get_running_loop().time()

    def _took(self, what: Literal["decision", "transaction"], began_s: float) -> None:
        if self._stopwatch is not None:
            self._stopwatch(what, self._real_s() - began_s)

    async def _go_back(self) -> None:
        """Go back to before the tick, to read and decide again."""
        self._go_on_from(await recover(self._bus, self._config.cell))
        self._contact.look_again()  # what this tick found out does not count
        await self._consumer.close()
        self._consumer = await self._bus.consumer(f"scheduler-{self._config.cell}", _TOPICS)

    def _courtesies(self, now_s: float) -> list[Message]:
        """Say what contact calls for, and now and then who leads."""
        engine, intake = self.engine, self.intake
        orders = self._contact.orders(
            engine.state,
            intake.spoke,
            intake.successors,
            intake.dedupe,
            now_s,
            engine.settings,
        )
        messages = [self._aside(agent, data, now_s) for agent, data in orders]
        if now_s >= self._said_s + self._config.heartbeat_s:
            messages.append(self._cell_state(now_s, online=True))
        return messages

    def _aside(self, agent: str, data: AnyCommand, now_s: float) -> Message:
        epoch = self.engine.state.leader.epoch
        name = f"{self._config.cell}-aside-{epoch}-{self._outgoing.sequence}"
        expires_s = now_s + self.engine.settings.lease_s
        return self._outgoing.order(name, agent, data, expires_s, now_s, epoch)

    def _cell_state(self, now_s: float, *, online: bool) -> Message:
        self._said_s = now_s
        return self._outgoing.cell_state(now_s, self.engine.state.leader.epoch, online=online)

    async def snapshot(self) -> None:
        """Write the state down, so that a restart need not fold the whole journal."""
        sources = self.intake.dedupe.to_dict()
        await self._snapshots.write(self.engine.state, self._digest, sources, self.intake.newest)
