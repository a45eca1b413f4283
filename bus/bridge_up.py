"""The bridge's way up: from MQTT to Kafka, answered only when Kafka has it.

Messages are judged as they come and stored in batches: while one batch is being stored the next
one gathers. The broker is answered, and the agent told, after that, in the order of arrival. What
cannot be stored now is kept and tried again; what must not be stored goes to the dead letters
beside the good ones, and delays none.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bus.allowance import Allowance
from bus.bridge_check import Place, Refused, check, letter_of, node_of
from bus.bridge_limits import BridgeCounters, BridgeLimits
from bus.clock import Clock
from bus.contract import Bus, BusError, Message
from bus.wire import Incoming, Outgoing, Wire
from schemas.codec import encode, horizon
from schemas.horizon import RANGES_MAX, HorizonReached, Range
from schemas.topics import MQTT_DOWN, MQTT_UP, dead_letters


def subscription(group: str) -> str:
    """Give what the bridges of a group hear, each its share."""
    return f"$share/{group}/" + MQTT_UP.format(node="+", kind="+")


#: Of what was refused, the newest so many are kept for whoever tells operators of it.
_REFUSED_KEPT = 20
#: While a connection is not ready, it is looked at so often in `BridgeLimits.retry_s`.
_LOOKS = 50


class Refusal(NamedTuple):
    """What was refused, in words for operators."""

    node: str  #: The address, where that is no node's.
    kind: str
    field: str = ""
    reason: str = ""
    dead_letter_in: str = ""


@dataclass(slots=True)
class _Held:
    """A message that waits for its answer; without `message`, for those before it only."""

    incoming: Incoming
    at_s: float
    cell: str = ""
    message: Message | None = None
    letter: bool = False
    node: str = ""
    place: Place | None = None  #: None also if there is nothing to store.


class Up:
    """Takes what comes from the edge to Kafka."""

    def __init__(
        self,
        name: str,
        buses: Mapping[str, Bus],
        clock: Clock,
        limits: BridgeLimits,
        counters: BridgeCounters,
    ) -> None:
        self.problem = ""
        self._name, self._buses, self._clock = name, buses, clock
        self._limits, self._counters = limits, counters
        self._default = "default" if "default" in buses else next(iter(buses))
        self._allowance = Allowance(limits.rates())
        #: What was refused of late, the same once; to be taken from here by who tells.
        self.refused: deque[Refusal] = deque(maxlen=_REFUSED_KEPT)
        self._waiting: deque[_Held] = deque()
        self._storing: list[_Held] = []
        self._heard, self._stopped = asyncio.Event(), asyncio.Event()
        self._sequence = 0
        self._wire: Wire | None = None
        #: With so many waiting while a batch is being stored, nothing more is read.
        self._ahead = (limits.in_flight_max - limits.batch_max + 1) // 2

    @property
    def unacked(self) -> int:
        """How many messages wait for their answer."""
        return len(self._storing) + len(self._waiting)

    def oldest_unacked_s(self) -> float:
        """How long the oldest of them has waited."""
        oldest = self._storing or self._waiting
        return self._clock.now_s() - oldest[0].at_s if oldest else 0.0

    def hear(self, incoming: Incoming) -> None:
        """Take a message in; after `stop`, leave it to the broker."""
        if self._stopped.is_set():
            return
        if self.unacked >= self._limits.in_flight_max:
            # Each connection is held back before that: the oldest are of a lost one, came or will
            # come again, and cannot be answered any more.
            self._waiting.popleft()
            self._counters.overflowed += 1
        self._waiting.append(self._judge(incoming))
        if self._wire is not None and len(self._waiting) >= self._ahead:
            self._wire.hold(True)
        self._heard.set()

    async def run(self, wire: Wire) -> None:
        """Store and answer what comes, until `stop`; then what came before it."""
        self._wire = wire
        while True:
            batch = self._storing = self._take()
            if len(self._waiting) < self._ahead:
                wire.hold(False)
            if batch:
                if not await self._store(batch):
                    return  # unanswered, so they come again
                await self._tell(wire, batch)
                for held in batch:
                    wire.ack(held.incoming)
            elif self._stopped.is_set():
                return
            else:
                self._heard.clear()
                await self._heard.wait()

    def stop(self) -> None:
        """Take no more; `run` returns when what came is stored, or at once while Kafka fails."""
        self._stopped.set()
        self._heard.set()

    # --- in ---

    def _judge(self, incoming: Incoming) -> _Held:
        now_s, node = self._clock.now_s(), node_of(incoming.address)
        who = node or incoming.address
        if not self._allowance.take(node, len(incoming.value), now_s):
            # Neither stored nor named by a horizon: an agent sends it again later.
            self._note(who, "rate", reason="more messages or bytes than a node may send")
            return _Held(incoming, now_s)
        found = check(incoming, node, self._buses, self._default)
        if found is None:
            return _Held(incoming, now_s)
        if isinstance(found, Refused):
            letters = dead_letters(found.topic).name
            self._note(who, found.kind, found.field, found.reason, letters)
            if not self._allowance.take_letter(node, now_s):
                return _Held(incoming, now_s)
            letter = letter_of(incoming, found, f"bridge-{self._name}", now_s)
            return _Held(incoming, now_s, self._default, letter, True, node, found.place)
        if found.letter and not self._allowance.take_letter(node, now_s):
            self._note(who, "letters", reason="more dead letters than are kept of a node")
            return _Held(incoming, now_s)
        return _Held(incoming, now_s, found.cell, found.message, found.letter, node, found.place)

    def _note(self, who: str, kind: str, *rest: str, **named: str) -> None:
        self._counters.refused[kind] += 1
        refusal = Refusal(who, kind, *rest, **named)
        if refusal not in self.refused:  # one node must not crowd out the others
            self.refused.append(refusal)

    def _take(self) -> list[_Held]:
        count = min(len(self._waiting), self._limits.batch_max)
        return [self._waiting.popleft() for _ in range(count)]

    # --- out ---

    async def _store(self, batch: Sequence[_Held]) -> bool:
        """Return True when all are durable; False if it is time to stop and they are not."""
        left: dict[str, list[Message]] = {}
        for held in batch:
            if held.message is not None:
                left.setdefault(held.cell, []).append(held.message)
        while left:
            done = await asyncio.gather(
                *(self._buses[cell].publish(*messages) for cell, messages in left.items()),
                return_exceptions=True,
            )
            for cell, error in zip(tuple(left), done, strict=True):
                if error is None:
                    del left[cell]
                elif isinstance(error, BusError):
                    self.problem = f"cell {cell} takes no messages: {error}"
                else:
                    raise error
            if left:
                self._counters.retries += 1
                if await pause(self._stopped, self._limits.retry_s):
                    return False
        self.problem = ""
        letters = sum(held.letter for held in batch)
        self._counters.dead_letters += letters
        self._counters.forwarded_up += sum(h.message is not None for h in batch) - letters
        return True

    async def _tell(self, wire: Wire, batch: Sequence[_Held]) -> None:
        """Name to each agent what is stored of it; one that does not hear it sends again."""
        stored: dict[tuple[str, int], list[int]] = {}
        for held in batch:
            if held.place is not None:
                boot, sequence = held.place
                stored.setdefault((held.node, boot), []).append(sequence)
        if stored and not await self._ready(wire):
            return
        for (node, boot), numbers in stored.items():
            ranges = list(_ranges(numbers))
            for start in range(0, len(ranges), RANGES_MAX):
                part = ranges[start : start + RANGES_MAX]
                reached = HorizonReached(agent=node, boot=boot, stored=part)
                try:
                    await wire.publish(self._horizon(reached))
                except BusError:
                    return
                self._counters.horizons += 1

    async def _ready(self, wire: Wire) -> bool:
        """Wait for the connection, but not long: the first messages come before it is in use."""
        for _ in range(_LOOKS):
            if wire.connected or await pause(self._stopped, self._limits.retry_s / _LOOKS):
                break
        return wire.connected

    def _horizon(self, reached: HorizonReached) -> Outgoing:
        self._sequence += 1
        envelope = horizon(
            reached, bridge=self._name, sequence=self._sequence, time_s=self._clock.now_s()
        )
        address = MQTT_DOWN.format(node=reached.agent, kind="horizon")
        return Outgoing(address, encode(envelope), qos=0)


async def pause(stopped: asyncio.Event, seconds: float) -> bool:
    """Wait before trying again; True at once when it is time to stop."""
    try:
        async with asyncio.timeout(seconds):
            await stopped.wait()
    except TimeoutError:
        return False
    return True


def _ranges(numbers: list[int]) -> Iterator[Range]:
    """Put numbers into as few ranges as hold exactly them."""
    numbers.sort()
    first = last = numbers[0]
    for number in numbers:
        if number > last + 1:
            yield Range(first=first, last=last)
            first = number
        last = number
    yield Range(first=first, last=last)
