"""The bridge's way up: from MQTT to Kafka, answered only when Kafka has it.

Messages are judged as they come and stored in batches, each cell's by itself: while one batch is
being stored the next one gathers. The agent is told after that, and the broker answered, in the
order of arrival. What cannot be stored now is kept and tried again; where other cells wait behind
it, not for long. What must not be stored goes to the dead letters beside the good ones, and delays
none.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bus.allowance import Allowance
from bus.bridge_check import Refused, check, letter_of, node_of
from bus.bridge_lane import Lane, PendingMessage
from bus.bridge_limits import BridgeCounters, BridgeLimits
from bus.bridge_stop import Stop
from bus.clock import Clock
from bus.contract import Bus, BusError
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
        self._name, self._buses, self._clock = name, buses, clock
        self._limits, self._counters = limits, counters
        self._default = "default" if "default" in buses else next(iter(buses))
        self._allowance = Allowance(limits.rates())
        #: What was refused of late, the same once; to be taken from here by who tells.
        self.refused: deque[Refusal] = deque(maxlen=_REFUSED_KEPT)
        self._order: deque[PendingMessage] = deque()  # as they came: so they are answered
        self._stop = Stop(clock)
        self._lanes = {
            cell: Lane(cell, bus, clock, limits, counters, self._stop)
            for cell, bus in buses.items()
        }
        self._sequence = 0
        self._wire: Wire | None = None
        #: With so many waiting while a batch is being stored, nothing more is read.
        self._ahead = (limits.in_flight_max - limits.batch_max + 1) // 2

    @property
    def problem(self) -> str:
        """Why something is not stored now; empty if all is."""
        return next((lane.problem for lane in self._lanes.values() if lane.problem), "")

    @property
    def unacked(self) -> int:
        """How many messages wait for their answer."""
        return len(self._order)

    def oldest_unacked_s(self) -> float:
        """How long the oldest of them has waited."""
        return self._clock.now_s() - self._order[0].at_s if self._order else 0.0

    def hear(self, incoming: Incoming) -> None:
        """Take a message in; after `stop`, leave it to the broker."""
        if self._stop.come:
            return
        pending = self._judge(incoming)
        if incoming.awaits_answer:
            self._make_room()
            self._order.append(pending)
        if pending.message is None:
            pending.done = True
            if self._wire is not None:
                self._answer(self._wire)
            return
        lane = self._lanes[pending.cell]
        if lane.stuck and len(self._lanes) > 1:
            self._let_go([pending], lane)
            return
        lane.hear(pending)
        if self._wire is not None and len(lane.waiting) >= self._ahead:
            self._wire.hold(True)

    def _make_room(self) -> None:
        # Each connection is held back before that: the oldest are of a lost one, came or will
        # come again, and cannot be answered any more.
        while self.unacked >= self._limits.in_flight_max:
            lane = max(self._lanes.values(), key=lambda lane: len(lane.waiting))
            if lane.waiting:
                gone = lane.waiting.popleft()
            else:  # all are stored, but for some before them that are just being
                stored = (pending for pending in self._order if pending.done)
                gone = next(stored, self._order[0])
            if gone.incoming.awaits_answer:
                self._order.remove(gone)
            self._counters.overflowed += 1

    async def run(self, wire: Wire) -> None:
        """Store and answer what comes, until `stop`; then what came before it."""
        self._wire = wire

        async def stored(batch: Sequence[PendingMessage]) -> None:
            await self._tell(wire, batch)
            for pending in batch:
                pending.done = True
            self._answer(wire)

        self._answer(wire)
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes.values():
                group.create_task(lane.run(stored, self._stuck), name=f"bridge up {lane.cell}")

    def stop(self) -> None:
        """Take no more; `run` returns when what came is stored, or at once while Kafka fails."""
        self._stop.now()
        for lane in self._lanes.values():
            lane.wake()

    # --- answers ---

    def _answer(self, wire: Wire) -> None:
        """Answer the oldest that are done: the broker wants answers in the order of arrival."""
        while self._order and self._order[0].done:
            wire.ack(self._order.popleft().incoming)
        wire.hold(any(len(lane.waiting) >= self._ahead for lane in self._lanes.values()))

    def _stuck(self, lane: Lane) -> None:
        """Let go of what a cell does not take, so that the others are heard.

        It is answered and not confirmed: its agents send it again until a horizon names it.
        """
        if len(self._lanes) > 1:
            self._let_go(lane.let_go(), lane)

    def _let_go(self, given: Sequence[PendingMessage], lane: Lane) -> None:
        for pending in given:
            if not pending.done:
                pending.done = True
                self._note(pending.node, "stuck", reason=f"cell {lane.cell} takes nothing now")
        if self._wire is not None:
            self._answer(self._wire)

    # --- in ---

    def _judge(self, incoming: Incoming) -> PendingMessage:
        now_s, node = self._clock.now_s(), node_of(incoming.address)
        who = node or incoming.address
        if not self._allowance.take(node, len(incoming.value), now_s):
            # Neither stored nor named by a horizon: an agent sends it again later.
            self._note(who, "rate", reason="more messages or bytes than a node may send")
            return PendingMessage(incoming, now_s)
        found = check(incoming, node, self._buses, self._default)
        if found is None:
            return PendingMessage(incoming, now_s)
        if isinstance(found, Refused):
            letters = dead_letters(found.topic).name
            self._note(who, found.kind, found.field, found.reason, letters)
            if not self._allowance.take_letter(node, now_s):
                return PendingMessage(incoming, now_s)
            letter = letter_of(incoming, found, f"bridge-{self._name}", now_s)
            return PendingMessage(incoming, now_s, self._default, letter, True, node, found.place)
        if found.letter and not self._allowance.take_letter(node, now_s):
            self._note(who, "letters", reason="more dead letters than are kept of a node")
            return PendingMessage(incoming, now_s)
        return PendingMessage(
            incoming, now_s, found.cell, found.message, found.letter, node, found.place
        )

    def _note(self, who: str, kind: str, *rest: str, **named: str) -> None:
        self._counters.refused[kind] += 1
        refusal = Refusal(who, kind, *rest, **named)
        if refusal not in self.refused:  # one node must not crowd out the others
            self.refused.append(refusal)

    # --- out ---

    async def _tell(self, wire: Wire, batch: Sequence[PendingMessage]) -> None:
        """Name to each agent what is stored of it; one that does not hear it sends again."""
        stored: dict[tuple[str, int], list[int]] = {}
        for pending in batch:
            if pending.place is not None:
                boot, sequence = pending.place
                stored.setdefault((pending.node, boot), []).append(sequence)
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
            if wire.connected or await self._stop.within(self._limits.retry_s / _LOOKS):
                break
        return wire.connected

    def _horizon(self, reached: HorizonReached) -> Outgoing:
        self._sequence += 1
        envelope = horizon(
            reached, bridge=self._name, sequence=self._sequence, time_s=self._clock.now_s()
        )
        address = MQTT_DOWN.format(node=reached.agent, kind="horizon")
        return Outgoing(address, encode(envelope), qos=0)


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
