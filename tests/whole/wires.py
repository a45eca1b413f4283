"""The MQTT connection of one process of the simulated system; it comes back by itself.

It keeps what `bus.mqtt_client` promises, over the broker of `tests.whole.mosquitto`. What is sent
travels, in order; it may be slow, or be cut on its way up, down or both: then it waits, as in TCP,
until the cut ends or one of the ends has given the connection up.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from bus.mqtt_carrier import CONNECT_S
from bus.wire import Incoming, LinkDown, Outgoing
from tests.whole.mosquitto import KEEPALIVE_S, Mosquitto
from tests.whole.process import Process

#: Pauses before the next attempt to connect, as the real client makes them.
PAUSE_S, PAUSE_MAX_S = 0.2, 10.0


class Pipe:
    """One way of a connection: things that happen, in order, at its other end."""

    def __init__(self, wire: "MqttWire", up: bool) -> None:
        self.open = True
        self._wire, self._up = wire, up
        self._coming: deque[Callable[[], None]] = deque()
        self._waiter = wire.world.waiter()
        way = "up" if up else "down"
        self._task = asyncio.create_task(self._run(), name=f"mqtt {wire.name} {way}")

    def put(self, thing: Callable[[], None]) -> None:
        """Send something."""
        self._coming.append(thing)
        self._waiter.notify()

    def wake(self) -> None:
        """Look again whether it may go on."""
        self._waiter.notify()

    async def _run(self) -> None:
        wire, process = self._wire, self._wire.process
        world = wire.world
        process.clock.enter()
        try:
            while self.open:
                if not self._coming or (wire.held and not self._up):
                    await self._waiter.wait()
                elif (until_s := wire.cut_until(self._up)) > world.now_s():
                    await self._waiter.wait(until_s)
                else:
                    await self._travel()
                    self._deliver()
        finally:
            process.clock.leave()

    def _deliver(self) -> None:
        if self.open and self._wire.cut_until(self._up) <= self._wire.world.now_s():
            self._coming.popleft()()

    async def _travel(self) -> None:
        wire, process = self._wire, self._wire.process
        if wire.slow and wire.chance() < wire.slow:
            await wire.world.sleep_until(wire.world.now_s() + wire.rest_s())
        if not self._up:
            wire.perhaps_die()
            await process.go_on()


class MqttLine:
    """One connection. The numbers of its packets mean nothing to another."""

    def __init__(self, wire: "MqttWire", number: int) -> None:
        self.number, self.open = number, True
        self.up, self.down = Pipe(wire, True), Pipe(wire, False)
        self._wire = wire
        self.unanswered: dict[int, asyncio.Future[bool]] = {}

    @property
    def lives(self) -> bool:
        return self._wire.process.alive

    def give(self, packet: int, message: Outgoing) -> None:
        token = (self.number, packet, message.qos)
        props = dict(message.properties)
        incoming = Incoming(message.address, message.value, message.retain, props, token)
        self.down.put(lambda: self._wire.heard(incoming))

    def drop(self) -> None:
        """End at the broker; the client sees it unless it is cut off."""
        self.up.open = False
        self.up.wake()
        self.down.put(self.end)

    def end(self) -> None:
        """End here; whoever waits for an answer is told that none comes."""
        self.open = self.up.open = self.down.open = False
        self.up.wake()
        self.down.wake()
        waiting, self.unanswered = self.unanswered, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(LinkDown("the connection broke; send it again"))
                future.exception()  # of the dead nobody asks
        self._wire.wake()


class MqttWire:
    """A `Client`, and the network of its process."""

    where = "mqtt://whole:1883"

    def __init__(
        self,
        broker: Mosquitto,
        process: Process,
        rng: np.random.Generator,
        name: str,
        session_s: float = 24 * 3600.0,
        *,
        keep_session: bool = True,
    ) -> None:
        self.name, self.process, self.world = name, process, process.world
        self.problem = "not connected yet"
        self.session = self.reconnects = self.received = self.published = 0
        self.connected = self.held = False
        self.cut_until_s = self.up_cut_until_s = self.down_cut_until_s = 0.0
        #: The chance that an answer is lost with the connection, that something takes long, and
        #: that the process dies when something comes.
        self.lost_answers = self.slow = self.deadly = 0.0
        self._broker, self._rng, self._session_s = broker, rng, session_s
        self._keep = keep_session
        self._line: MqttLine | None = None
        self._lines = self._sent = 0
        self._ending = False
        self._runner: asyncio.Task[None] | None = None
        self._wake = process.world.waiter()

    def make(
        self,
        subscriptions: Sequence[str],
        hear: Callable[[Incoming], None],
        opened: Callable[[int], None] | None = None,
        will: Callable[[int], Outgoing] | None = None,
    ) -> "MqttWire":
        """Be the client of a link."""
        self._subscriptions, self._hear = list(subscriptions), hear
        self._opened, self._will = opened, will
        return self

    def carry(self, subscriptions: Sequence[str], hear: Callable[[Incoming], None]) -> "MqttWire":
        """Be the connection of a bridge, which connects at once."""
        self.make(subscriptions, hear).start()
        return self

    # --- the network ---

    def cut_until(self, up: bool) -> float:
        """Until when nothing goes this way."""
        return max(self.cut_until_s, self.up_cut_until_s if up else self.down_cut_until_s)

    @property
    def cut(self) -> bool:
        """Whether nothing goes through now, one way or both."""
        return max(self.cut_until(True), self.cut_until(False)) > self.world.now_s()

    def mend(self) -> None:
        """Let everything through again."""
        self.cut_until_s = self.up_cut_until_s = self.down_cut_until_s = 0.0
        if self._line is not None:
            self._line.up.wake()
            self._line.down.wake()

    def snap(self) -> None:
        """Break the connection, seen at both ends."""
        if self._line is not None:
            self._broker.lose(self.name, self._line)
            self._line.end()

    def chance(self) -> float:
        """Draw."""
        return float(self._rng.random())

    def rest_s(self) -> float:
        """Draw how long something slow takes."""
        return float(self._rng.exponential(2.0))

    def perhaps_die(self) -> None:
        """End the process, if it is so to be."""
        if self.deadly and self.process.alive and self.chance() < self.deadly:
            self.process.kill()
            if self.process.died is not None:
                self.process.died(self.process)

    # --- what a client does ---

    def start(self) -> None:
        self._runner = asyncio.create_task(self._run(), name=f"mqtt {self.name}")

    async def publish(self, message: Outgoing) -> None:
        future = self.send(message)
        if future.done():
            future.result()
            return
        ended = self.process.clock.waiter()
        future.add_done_callback(lambda _: ended.notify())
        await ended.wait()
        future.result()

    def send(self, message: Outgoing) -> "asyncio.Future[bool]":
        line = self._line
        if line is None or not self.connected:
            raise LinkDown(f"no connection: {self.problem}; try again later")
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._sent += 1
        number = self._sent
        if message.qos:
            line.unanswered[number] = future
        else:
            future.set_result(True)
        line.up.put(lambda: self._arrived(line, number, message))
        return future

    def ack(self, message: Incoming) -> None:
        number, packet, quality = message.token
        line = self._line
        if line is not None and line.number == number and quality:
            line.up.put(lambda: self._broker.acknowledge(self.name, line, packet))

    def hold(self, held: bool) -> None:
        self.held = held
        if self._line is not None:
            self._line.down.wake()

    def renew(self) -> None:
        if self._line is not None:
            self._line.up.put(self.snap)  # after what was acknowledged

    async def close(self) -> None:
        self._ending = True
        line = self._line
        if line is not None:
            line.up.put(lambda: self._left(line))  # after what was acknowledged
        self.wake()
        if self._runner is not None:
            await self._runner

    def wake(self) -> None:
        """Let it look at its connection."""
        self._wake.notify()

    def heard(self, incoming: Incoming) -> None:
        """Take in what came."""
        self.received += 1
        self._hear(incoming)

    def _arrived(self, line: MqttLine, number: int, message: Outgoing) -> None:
        """Be at the broker with a message; its answer travels back."""
        known = self._broker.publish(self.name, line, message)
        if known is None or not message.qos:
            return
        if self.lost_answers and self.chance() < self.lost_answers:
            self.snap()
        else:
            line.down.put(lambda: self._answered(line, number, known))

    def _left(self, line: MqttLine) -> None:
        self._broker.farewell(self.name, line, self._keep)
        line.end()

    def _answered(self, line: MqttLine, number: int, known: bool) -> None:
        self.published += 1
        future = line.unanswered.pop(number, None)
        if future is not None and not future.done():
            future.set_result(known)

    # --- connecting ---

    async def _run(self) -> None:
        process, pause_s = self.process, PAUSE_S
        process.clock.enter()
        try:
            while not self._ending:
                began_s = self.world.now_s()
                await self._connect()
                if self.world.now_s() - began_s > PAUSE_MAX_S:
                    pause_s = PAUSE_S
                if not self._ending:
                    part = 0.5 + self.chance() / 2
                    await self.world.sleep_until(self.world.now_s() + pause_s * part)
                    await process.go_on()
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
            self.problem = "closed"
        finally:
            process.clock.leave()

    async def _connect(self) -> None:
        """Make one connection and keep it until it breaks or we end."""
        self.problem = "nobody answers"
        if self.cut:
            await self._wake.wait(self.world.now_s() + CONNECT_S)
            await self.process.go_on()
            return
        if not self._broker.up:
            return
        self.session = max(self.session + 1, round(self.process.clock.now_s() * 1000))
        self._lines += 1
        line = self._line = MqttLine(self, self._lines)
        self.held = False
        will = None if self._will is None else self._will(self.session)
        try:
            self._broker.connect(self.name, line, self._session_s, will)
            self._broker.subscribe(self.name, line, self._subscriptions)
            accepted = self.world.waiter()
            line.down.put(accepted.notify)  # after what the broker kept for us
            while line.open and not await accepted.wait(self.world.now_s() + CONNECT_S):
                if self.cut:
                    return
            await self.process.go_on()
            if not line.open:
                return
            self.connected, self.problem = True, ""
            self.reconnects = self._lines - 1
            if self._opened is not None:
                self._opened(self.session)
            await self._keep_alive(line)
        finally:
            self.connected = False
            self.problem = self.problem or "the connection ended"
            if line.open:
                line.end()
            self._line = None

    async def _keep_alive(self, line: MqttLine) -> None:
        """Return when it broke, or when the broker did not answer for a while."""
        missed = False
        while line.open:
            if self._ending:
                await self._wake.wait(self.world.now_s() + CONNECT_S)
                return
            if await self._wake.wait(self.world.now_s() + KEEPALIVE_S):
                await self.process.go_on()
                continue
            await self.process.go_on()
            if self.cut_until(True) <= self.world.now_s():
                self._broker.hear(self.name, line)
            if self.cut and missed:
                self.problem = "the broker does not answer"
                return
            missed = self.cut
