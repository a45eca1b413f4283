"""Spreading cells over processes: a consumer group decides which process serves which cell.

A member that dies is missed after `SESSION_S`; its cells go to the others. Those who keep their
cells through a change are not disturbed, so for a moment the old and the new owner of a cell that
moves may both run: what they run must bear that, as a scheduler does, whose successor fences it.
A member that cannot read what a cell has stored, as an older release in an upgrade, says so to the
group, and the cell goes to one that can.

The heartbeats come from the event loop: whatever blocks it for `SESSION_S` loses all cells.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

from bus.clock import Clock
from bus.contract import BusError, Unreadable
from bus.kafka_client import client_settings, errors_named, learn_topic, start, stop
from bus.kafka_sharing import UNABLE_S, Sharing
from bus.kafka_topics import make_topics
from bus.options import KafkaOptions
from schemas.topics import ALL_TOPICS, EVENTS

SESSION_S = 6.0
_HEARTBEAT_S = 1.0
#: Before a run that failed, or the membership, is made anew.
PAUSE_S = 1.0
#: A run that was told to stop is cut off after this long.
STOP_S = 10.0
_LOOK_S = 1.0


class Run(Protocol):
    """What serves one cell."""

    async def run(self) -> None:
        """Serve until `stop`."""
        ...

    def stop(self) -> None:
        """Let `run` end soon, in good order."""
        ...


class KafkaCells:
    """A member of a group that shares the cells."""

    def __init__(
        self,
        options: KafkaOptions,
        clock: Clock,
        *,
        group: str,
        member: str,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Prepare to join; `member` is the name that the broker's logs show."""
        #: Why a run or the membership failed; None if none did since the group gave us cells.
        self.trouble: str | None = None
        #: Whether the group has said which cells are ours, even if none.
        self.joined = False
        #: How often a run failed and was made anew.
        self.remade = 0
        self._options = options
        self._clock = clock
        # Not the group in which the owners of cells commit: a group with members refuses
        # positions from others.
        self._group = options.topic(f"{group}.cells")
        self._member = member
        self._pause_s = pause_s
        self._given: tuple[str, ...] = ()
        self._since_s: dict[int, float] = {}
        self._unable: set[int] = set()  # partitions of cells that it cannot serve
        self._news = False  # that the group must hear
        self._served: dict[str, _Served] = {}
        self._changed = asyncio.Event()
        self._stopping = False

    @property
    def owned(self) -> tuple[str, ...]:
        """The cells that this member serves now, in the order of the configuration."""
        return self._given

    def stop(self) -> None:
        """Let `run` end: stop every cell, then leave the group, so that others go on at once."""
        self._stopping = True
        self._changed.set()

    async def run(self, make: Callable[[str], Run]) -> None:
        """Join the group, and run what `make` gives for each cell while the cell is ours.

        What fails with a `BusError` is made anew after a pause; so is the membership. Any other
        exception ends this, too.
        """
        membership = asyncio.create_task(self._belong())
        membership.add_done_callback(lambda _: self._changed.set())
        try:
            while not self._stopping:
                self._changed.clear()
                await self._follow(make)
                await self._changed.wait()
                for ended in [one.task for one in self._served.values() if one.task.done()]:
                    ended.result()
                if membership.done():
                    membership.result()
        finally:
            self._take(())
            await self._follow(make)
            membership.cancel()
            await asyncio.wait([membership])

    async def _follow(self, make: Callable[[str], Run]) -> None:
        """Stop what is not ours any more, start what is new."""
        lost = [self._served.pop(cell) for cell in list(self._served) if cell not in self._given]
        for one in lost:
            one.stop()
        for cell in self._given:
            if cell not in self._served:
                self._served[cell] = _Served(self, cell, make, self._pause_s, self._changed)
        if lost:
            _, late = await asyncio.wait([one.task for one in lost], timeout=STOP_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    # --- membership ---------------------------------------------------------------------------

    async def _belong(self) -> None:
        """Be a member; again and again if Kafka is away."""
        while True:
            try:
                await make_topics(self._options, self._clock, ALL_TOPICS)
                await self._belong_once()
            except BusError as error:
                self.trouble = str(error)
            self.joined = False
            await asyncio.sleep(self._pause_s)

    async def _belong_once(self) -> None:
        consumer = AIOKafkaConsumer(
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            session_timeout_ms=int(SESSION_S * 1000),
            heartbeat_interval_ms=int(_HEARTBEAT_S * 1000),
            partition_assignment_strategy=[Sharing(len(self._options.cells), self._held)],
            **{**client_settings(self._options), "client_id": self._member},
        )
        await start(consumer, self._options)
        try:
            with errors_named(f"stay in group {self._group!r}"):
                topic = self._options.topic(EVENTS.name)
                # As the group's leader it would share out only the partitions it knows.
                await learn_topic(consumer, topic)
                self._news = True
                while True:
                    if self._news:  # to subscribe again is to share out anew, and disturbs nobody
                        self._news = False
                        consumer.subscribe([topic], listener=_Listener(self, consumer))
                    # Nothing comes, the partitions are paused; but a member must keep asking.
                    await consumer.getmany(timeout_ms=int(_LOOK_S * 1000))
        finally:
            await stop(consumer)

    def _held(self) -> Mapping[int, float]:
        return {**self._since_s, **dict.fromkeys(self._unable, UNABLE_S)}

    def _tell(self, cell: str, *, able: bool) -> None:
        """Let the group know whether a cell can be served here, if that is news."""
        partition = self._options.cells.index(cell)
        if able:
            self._unable.discard(partition)
        elif partition not in self._unable:
            self._unable.add(partition)
            self._news = True

    def _take(self, partitions: tuple[int, ...]) -> None:
        now_s, count = self._clock.now_s(), len(self._options.cells)
        known = tuple(one for one in partitions if one < count)
        if foreign := set(partitions).difference(known):
            # The group's leader was told of a cell that was added; it is for those who were, too.
            self.trouble = f"the group has more cells, and kafka.cells names {count} here"
            self._news = self._news or not foreign <= self._unable
            self._unable |= foreign
        self._since_s = {one: self._since_s.get(one, now_s) for one in known}
        self._given = tuple(self._options.cells[one] for one in known)
        self._changed.set()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    """Hears what the group gives; that something is about to change needs no answer."""

    def __init__(self, cells: KafkaCells, consumer: AIOKafkaConsumer) -> None:
        self._cells = cells
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._consumer.pause(*assigned)
        self._cells.trouble, self._cells.joined = None, True
        self._cells._take(tuple(sorted(one.partition for one in assigned)))


class _Served:
    """One cell of ours: a run, and the next one if it fails."""

    def __init__(
        self,
        cells: KafkaCells,
        cell: str,
        make: Callable[[str], Run],
        pause_s: float,
        changed: asyncio.Event,
    ) -> None:
        self._cells = cells
        self._cell = cell
        self._make = make
        self._pause_s = pause_s
        self._run: Run | None = None
        self._stopped = asyncio.Event()
        self.task = asyncio.create_task(self._serve())
        # Only a failure that is no BusError ends it unasked.
        self.task.add_done_callback(lambda _: changed.set())

    async def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                self._run = self._make(self._cell)
                await self._run.run()
                self._cells._tell(self._cell, able=True)
            except BusError as error:
                self._cells._tell(self._cell, able=not isinstance(error, Unreadable))
                self._cells.trouble = f"cell {self._cell}: {error}"
            if not self._stopped.is_set():
                self._cells.remade += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s):
                        await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()
        if self._run is not None:
            self._run.stop()
