"""Follows what goes through Kafka while the fleet runs: for waiting, not for the final account."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from bus.clock import SystemClock
from bus.contract import BusError
from bus.kafka import KafkaBus
from bus.options import KafkaOptions
from schemas.topics import EVENTS, JOURNAL, TELEMETRY
from tests.chaos.ledger import Cause, Entry, read_entry, read_said

_ENDS = ("JobCompleted", "JobFailed", "JobCancelled", "SubmissionRefused")


class Watch:
    """Knows the leader, who was heard when, and which jobs and probes have come through."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.leader = ""
        self.leaders = 0
        #: By agent, the newest moment at which it said something that is in Kafka now.
        self.said_s: dict[str, float] = {}
        #: Probes in the journal.
        self.probes: set[Cause] = set()
        self.records: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        self._ended: set[str] = set()

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(lambda _: self._changed.set())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    def jobs_ended(self) -> int:
        """Count the tenant's jobs that are at an end."""
        return len(self._ended)

    def over(self, jobs: Iterable[str]) -> bool:
        """Tell whether all of these jobs are at an end."""
        return self._ended.issuperset(jobs)

    async def until(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Wait until it holds; False if it does not in time."""
        assert self._running is not None
        try:
            async with asyncio.timeout(patience_s):
                while not condition():
                    if self._running.done():
                        self._running.result()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def heard(self, agents: Sequence[str], since_s: float) -> bool:
        """Tell whether each of them said something after the moment that is in Kafka now."""
        return all(self.said_s.get(agent, 0.0) > since_s for agent in agents)

    async def _run(self) -> None:
        bus = KafkaBus.open(self._options, SystemClock())
        try:
            while True:
                try:
                    await self._follow(bus)
                except BusError:
                    await asyncio.sleep(0.5)
        finally:
            await bus.close()

    async def _follow(self, bus: KafkaBus) -> None:
        """Read on; of a group that commits nothing, all that was read before comes again."""
        topics = [JOURNAL.name, EVENTS.name, TELEMETRY.name]
        consumer = await bus.consumer(f"watch-{time.time_ns()}", topics)
        try:
            while True:
                for record in await consumer.poll(2000):
                    if record.offset < self._next.get(record.topic, 0) or record.value is None:
                        continue
                    self._next[record.topic] = record.offset + 1
                    self.records[record.topic] += 1
                    if record.topic == JOURNAL.name:
                        self._entry(read_entry(record.value))
                    else:
                        self._said(record.value)
                self._changed.set()
        finally:
            await consumer.close()

    def _entry(self, entry: Entry) -> None:
        if entry.kind == "LeaderStarted":
            self.leader = str(entry.data["leader"])
            self.leaders += 1
        if entry.cause is not None and entry.cause[0] == "/tenants/probe":
            self.probes.add(entry.cause)
        for name, fields in entry.facts:
            if name in _ENDS and str(fields["job"]).startswith("job-"):
                self._ended.add(fields["job"])

    def _said(self, value: bytes) -> None:
        said = read_said(value)
        agent = said.cause[0].removeprefix("/agents/")
        self.said_s[agent] = max(self.said_s.get(agent, 0.0), said.at_s)
