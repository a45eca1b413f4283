"""Bridges of the simulated system, and a device of another cell that speaks through them.

Nothing of a bridge outlives it: what it had not confirmed comes again from the devices. The other
cell has a Kafka of its own, so that it may be sick while this one is well.
"""

import asyncio
import contextlib

import numpy as np

from bus.bridge import Bridge
from bus.bridge_down import Down
from bus.bridge_limits import BridgeLimits
from bus.clock import PacedClock
from bus.contract import BusError, Link, Message
from bus.mqtt import MqttLink
from schemas.topics import EVENTS, TELEMETRY
from tests.post import progressed
from tests.whole.broker import Broker, Connection
from tests.whole.mosquitto import IN_FLIGHT_MAX, Mosquitto
from tests.whole.process import Process
from tests.whole.wires import MqttWire

#: The cell beside the one that is looked at.
OTHER = "other"
#: What the broker keeps of a bridge that went (`services.bridge.SESSION_S`).
SESSION_S = 60.0
#: The device of the other cell says so much, so often.
SPEAKS_S, WORDS = 120.0, 10
#: Small enough to be reached by a few devices; above what the broker sends unanswered.
LIMITS = BridgeLimits(in_flight_max=IN_FLIGHT_MAX + 10, batch_max=20)


class Bridging:
    """One bridge, and those that come after it under its name."""

    able = True  #: It keeps nothing that another release could not read.

    def __init__(
        self,
        name: str,
        broker: Broker,
        other: Broker,
        mosquitto: Mosquitto,
        world: PacedClock,
        rng: np.random.Generator,
    ) -> None:
        self.name = name
        self._broker, self._other, self._mosquitto = broker, other, mosquitto
        self._world, self._rng = world, rng
        self.heard_s = world.now_s()
        self.process = Process(name, world)
        self.sick_until_s = 0.0  #: Until when the other cell's Kafka answers nobody.
        self._down: Down | None = None
        self._tasks: list[asyncio.Task[None]] = []
        #: All that ever ran here; held, or Python would end it.
        self.lives: list[object] = []
        self._plug()

    def _plug(self) -> None:
        process = self.process
        self.link = Connection(self._broker, process, self._rng)
        self.other_link = Connection(self._other, process, self._rng)
        self.other_link.cut_until_s = self.sick_until_s
        self.wire = MqttWire(
            self._mosquitto, process, self._rng, self.name, SESSION_S, keep_session=False
        )

    def start(self) -> None:
        """Begin a process."""
        process = self.process = Process(self.name, self._world)
        process.clock.begin()
        self.heard_s = self._world.now_s()
        self._plug()
        self.bridge = Bridge(
            name=self.name,
            wire=self.wire.carry,
            buses={"default": self.link, OTHER: self.other_link},
            clock=process.clock,
            limits=LIMITS,
        )
        self._down = None
        self.lives.append((process, self.bridge, self.wire))
        self._tasks.append(asyncio.create_task(self._run(process), name=self.name))

    async def _run(self, process: Process) -> None:
        await self.bridge.run()
        process.kill()

    @property
    def heard(self) -> bool:
        """Whether Kafka's group hears it now."""
        paused = self._world.now_s() < self.process.paused_until_s
        return self.process.alive and not self.link.cut and not paused

    @property
    def hindered(self) -> bool:
        """Whether something is in its way, but for the other cell's Kafka."""
        link, wire = self.link, self.wire
        chances = (link.slow, link.lost_answers, link.deadly, wire.slow, wire.deadly)
        return not self.heard or wire.cut or wire.lost_answers > 0.0 or any(chances)

    def deal(self) -> None:
        """Let it take the cell's commands down."""
        if self._down is None and self.process.alive:
            self._down = self.bridge.down("default")
            self._tasks.append(asyncio.create_task(self._down.run(), name=f"{self.name} down"))

    def remove_fetched(self) -> None:
        """Let another do that."""
        if self._down is not None:
            self._down.stop()
            self._down = None

    def crash(self) -> None:
        """End at once."""
        self.process.kill()

    def heal(self) -> None:
        """Let everything through again."""
        self.sick_until_s = 0.0
        self.other_link.mend()
        self.wire.slow = self.wire.lost_answers = self.wire.deadly = 0.0
        self.wire.mend()

    def leave(self) -> None:
        """End in good order: first no more commands down, then nothing more up."""
        if self.process.alive:
            self.remove_fetched()
            self.bridge.stop()


class Told:
    """A link that notes what it was told is stored."""

    def __init__(self, link: Link, confirmed: list[bytes]) -> None:
        self._link, self.confirmed = link, confirmed
        self.close, self.drain, self.consumer = link.close, link.drain, link.consumer
        self._publishing: asyncio.Task[None] | None = None
        self._hurried = False

    async def publish(self, *messages: Message) -> None:
        self._publishing = asyncio.create_task(self._link.publish(*messages))
        try:
            await self._publishing
        except asyncio.CancelledError:
            if not self._hurried:
                raise
            raise BusError("there is no time for it now") from None
        said = [message for message in messages if message.topic in (EVENTS.name, TELEMETRY.name)]
        self.confirmed += [message.value or b"" for message in said]

    def hurry(self) -> None:
        """Wait no longer."""
        if self._publishing is not None and not self._publishing.done():
            self._hurried = True
            self._publishing.cancel()


class Device:
    """A device of the other cell, which says something now and then until it is stored."""

    def __init__(self, mosquitto: Mosquitto, world: PacedClock, rng: np.random.Generator) -> None:
        self.process = Process("a-other", world)
        self.wire = MqttWire(mosquitto, self.process, rng, "a-other")
        link = MqttLink(self.wire.make, self.process.clock, "a-other", OTHER)
        self.confirmed: list[bytes] = []
        self.link = Told(link, self.confirmed)
        self.said = 0

    def start(self) -> None:
        """Begin to speak."""
        self._task = asyncio.create_task(self._run(), name="a-other")

    async def _run(self) -> None:
        clock = self.process.clock
        clock.enter()
        try:
            while True:
                numbers = range(self.said, self.said + WORDS)
                said = [progressed(number, "a-other", cell=OTHER) for number in numbers]
                with contextlib.suppress(BusError):
                    await self.link.publish(*(Message(EVENTS.name, OTHER, one) for one in said))
                    self.said += WORDS
                await clock.sleep_until(clock.now_s() + SPEAKS_S)
        finally:
            clock.leave()
