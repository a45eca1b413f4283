"""The bridge's way down: the commands of one cell from Kafka to the agents' MQTT addresses.

Positions are committed when the broker has confirmed every command of a batch, so a crash sends
some twice (agents know a command by its id) and loses none. Commands to agents that live on Kafka
go out too: nobody subscribed, so the broker confirms and forgets them.
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bus.bridge_check import is_name
from bus.bridge_limits import BridgeCounters, BridgeLimits
from bus.bridge_stop import Stop
from bus.clock import Clock, side_by_side
from bus.contract import Bus, BusError, Consumer, Message, Record
from bus.letters import dead_letter, unfit
from bus.wire import LinkDown, Outgoing, Wire
from schemas.codec import Rejected, decode_cell, decode_command
from schemas.topics import CELLS, COMMANDS, MQTT_DOWN, MQTT_STATE

#: The lane of the word on who leads; no agent has that name.
_STATE = "_state"
#: MQTT counts the seconds of an expiry in 32 bits.
_EXPIRY_MAX_S = 2**32 - 1
#: What is read is old if its newest record is older than that, or our clock is ahead.
_OLD_S = 60.0


@dataclass(frozen=True, slots=True)
class _Order:
    """Something to send, and until when by our clock that makes sense."""

    record: Record
    outgoing: Outgoing
    expires_s: float = math.inf


class Down:
    """Takes the commands of one cell to the edge."""

    def __init__(
        self,
        cell: str,
        bus: Bus,
        wire: Wire,
        clock: Clock,
        limits: BridgeLimits,
        counters: BridgeCounters,
    ) -> None:
        self.problem = ""
        self.cell = cell
        self._bus, self._wire, self._clock = bus, wire, clock
        self._limits, self._counters = limits, counters
        self._group = f"bridge-{cell}"
        self._stop = Stop(clock)
        self._listening: asyncio.Task[list[Record]] | None = None

    async def run(self) -> None:
        """Carry commands down until `stop`, through every failure of Kafka or the connection."""
        self._clock.enter()
        try:
            await self._run()
        finally:
            self._clock.leave()
            self.problem = ""  # another bridge's now

    async def _run(self) -> None:
        while not self._stop.come:
            try:
                consumer = await self._bus.consumer(self._group, [COMMANDS.name, CELLS.name])
                try:
                    await self._carry(consumer)
                finally:
                    await consumer.close()
            except BusError as error:
                self.problem = f"cell {self.cell} gives no commands: {error}"
                self._counters.retries += 1
                await self._stop.within(self._limits.retry_s)

    def stop(self) -> None:
        """Finish what was read; `run` returns when it is sent, or at once without connection."""
        self._stop.now()
        if self._listening is not None:
            self._listening.cancel()

    async def _carry(self, consumer: Consumer) -> None:
        while records := await self._listen(consumer):
            if not await self._send_all(records):
                return
            await consumer.commit()
            self.problem = ""

    async def _listen(self, consumer: Consumer) -> list[Record]:
        """Wait for records; none when it is time to stop."""
        if self._stop.come:
            return []
        self._listening = asyncio.create_task(consumer.poll(self._limits.batch_max))
        try:
            return await self._listening
        except asyncio.CancelledError:
            runner = asyncio.current_task()
            if runner is None or runner.cancelling():
                raise
            return []  # `stop` cancelled the wait, not the runner
        finally:
            self._listening = None

    async def _send_all(self, records: Sequence[Record]) -> bool:
        """Return True when the broker has all; False if it is time to stop and it has not."""
        dead: list[Message] = []
        lanes: dict[str, deque[_Order]] = {}
        ahead_s = await self._ahead_s(records)
        for record in records:
            is_word = record.topic == CELLS.name
            read = self._word(record) if is_word else self._command(record, ahead_s)
            if not isinstance(read, _Order):
                self._refuse(record, *read, dead)
            elif is_word:
                lanes[_STATE] = deque([read])  # only the newest counts
            else:
                lanes.setdefault(record.key, deque()).append(read)
        left = list(lanes.values())
        while left:
            # Side by side; within a lane, that is for one agent, one after another.
            await side_by_side(self._clock, [self._send(lane, dead) for lane in left])
            left = [lane for lane in left if lane]
            if left:
                self.problem = "the MQTT broker does not take commands; trying again"
                self._counters.retries += 1
                if await self._stop.within(self._limits.retry_s):
                    return False
        if dead:
            await self._bus.publish(*dead)
            self._counters.dead_letters += len(dead)
        return True

    async def _ahead_s(self, records: Sequence[Record]) -> float:
        """Give how far our clock is ahead of the cell's newest record.

        After an outage all that is read may be old: then the end of what is stored tells.
        """
        now_s = self._clock.now_s()
        newest_s = max(record.time_s for record in records)
        if now_s - newest_s > _OLD_S:
            ends = [await self._bus.last(topic.name) for topic in (COMMANDS, CELLS)]
            newest_s = max(newest_s, *(record.time_s for record in ends if record is not None))
        return max(0.0, now_s - newest_s)

    async def _send(self, lane: deque[_Order], dead: list[Message]) -> None:
        """Send until the lane is empty or the connection is lost."""
        while lane:
            order = lane[0]
            left_s = order.expires_s - self._clock.now_s()
            if left_s <= 0.0:
                self._counters.refused["expired"] += 1
            else:
                outgoing = order.outgoing
                if left_s < math.inf:
                    expiry_s = min(math.ceil(left_s), _EXPIRY_MAX_S)
                    outgoing = replace(outgoing, expiry_s=expiry_s)
                try:
                    await self._wire.publish(outgoing)
                except LinkDown:
                    return
                except BusError as error:
                    # The broker will never take this one; those behind it must not wait for that.
                    self._refuse(order.record, "", str(error), dead)
                else:
                    self._counters.forwarded_down += 1
            lane.popleft()

    def _refuse(self, record: Record, field_name: str, reason: str, dead: list[Message]) -> None:
        if record.topic == CELLS.name:  # has no dead letters; the next word comes soon
            self._counters.refused["cell_state"] += 1
        else:
            self._counters.refused["command"] += 1
            dead.append(dead_letter(record, field_name, reason, self._group))

    def _command(self, record: Record, ahead_s: float) -> _Order | tuple[str, str]:
        """Make the message of a command; or say which field makes it none, and why.

        Our clock is `ahead_s` ahead of the cell's newest record: that record is so old, or our
        clock is wrong. Which of them nobody can tell here, so a command is too late only if it is
        by both. The agent looks at its own clock.
        """
        value = record.value or b""
        decoded = decode_command(value)
        if isinstance(decoded, Rejected):
            return decoded.field, f"{decoded.kind}: {decoded.reason}"
        if decoded.subject != record.key:
            return "subject", f"is {decoded.subject}, but the key is {record.key}"
        if not is_name(record.key):
            return "subject", "cannot be part of an MQTT address: letters, digits and ._:- only"
        if (problem := unfit(record.headers)) is not None:
            return "headers", problem
        address = MQTT_DOWN.format(node=record.key, kind="command")
        outgoing = Outgoing(address, value, properties=dict(record.headers), correlation=decoded.id)
        expires = decoded.expirytime
        until_s = math.inf if expires is None else expires.timestamp() + ahead_s
        return _Order(record, outgoing, until_s)

    def _word(self, record: Record) -> _Order | tuple[str, str]:
        """Make the retained word on who leads the cell; without value, it clears that."""
        value = record.value or b""
        if record.key != self.cell:
            return "key", f"is {record.key}, but this is cell {self.cell}"
        if value and isinstance(decoded := decode_cell(value), Rejected):
            return decoded.field, decoded.reason
        return _Order(record, Outgoing(MQTT_STATE.format(cell=self.cell), value, retain=True))
