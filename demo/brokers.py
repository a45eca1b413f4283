"""The brokers under a demo: a namespace of its own on Kafka, and over MQTT the edge and a bridge.

Time is the demo's own. Services stand still in it while they wait for a broker, so a broker that
is away stops the demo's time; what carries messages does not take part in time at all.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from bus.bridge import Bridge
from bus.clock import Clock, SystemClock, Waiter
from bus.contract import Bus, BusError, Link
from bus.kafka import KafkaBus
from bus.kafka_namespaces import remove_namespace
from bus.mqtt import MqttLink
from bus.mqtt_client import MqttClient
from bus.mqtt_swift import SwiftConnection
from bus.options import SILENT_HINT, KafkaOptions, MqttOptions
from bus.wire import Incoming, Outgoing
from console.kafka import demo_namespace, known_namespaces, numbered
from console.output import fail, say
from demo.paced_bus import ClockPause, PacedBus, PacedLink
from schemas.topics import JOURNAL, MQTT_STATE, MQTT_UP

#: The broker forgets who has not come back for so long: a demo's agents never come back.
_SESSION_S = 300
_CONNECT_S = 5.0
#: How often it is looked whether a broker is away.
_LOOK_S = 1.0
#: Retained messages come at once; after so long without one there are no more.
_QUIET_S = 0.3
_RETAINED = (
    MQTT_UP.format(node="+", kind="birth"),
    MQTT_UP.format(node="+", kind="death"),
    MQTT_STATE.format(cell="+"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demo runs."""

    kafka: KafkaOptions
    mqtt: MqttOptions | None  #: None: the edge is on Kafka too.


class Onlooker:
    """A clock with the time of another, in which waiting takes real time and holds nobody up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._real = SystemClock()

    def now_s(self) -> float:
        """Seconds since the Unix epoch, by the other clock."""
        return self._clock.now_s()

    def latest_s(self) -> float:
        """Give the latest that it may be, by the other clock."""
        return self._clock.latest_s()

    def waiter(self) -> Waiter:
        """Make a waiter."""
        return _Onlooking(self, self._real)

    async def sleep_until(self, moment_s: float) -> None:
        """Wait as many real seconds as the moment is away now."""
        await asyncio.sleep(max(0.0, moment_s - self.now_s()))

    def enter(self) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""


class _Onlooking:
    def __init__(self, clock: Onlooker, real: Clock) -> None:
        self._clock, self._real = clock, real
        self._waiter = real.waiter()

    def notify(self) -> None:
        self._waiter.notify()

    async def wait(self, until_s: float | None = None) -> bool:
        if until_s is None:
            return await self._waiter.wait()
        return await self._waiter.wait(self._real.now_s() + until_s - self._clock.now_s())


@dataclass(frozen=True, slots=True)
class Carriers:
    """What a demo's services speak through."""

    bus: Bus
    #: Makes the link of an edge agent.
    link: Callable[[str], Link]


async def begin(kafka: KafkaOptions, mqtt: MqttOptions | None) -> Place:
    """Take a new namespace: the one named, or the next number; of older demos the newest is kept.

    Raises:
        BusError: a broker does not answer.
    """
    there = await known_namespaces(kafka)
    if kafka.namespace in there and kafka.namespace:
        fail(f"--log: {kafka.address} holds a log already; give another, or leave --log out.")
    fresh = kafka.namespace
    if not fresh:
        demos = numbered(there)
        fresh = demo_namespace(demos[-1] + 1 if demos else 1)
        for old in demos[:-1]:
            await _remove(replace(kafka, namespace=demo_namespace(old)), mqtt)
        if demos:
            say(f"A new log begins; the last one is kept as kafka:/{demo_namespace(demos[-1])}.")
    taken = None if mqtt is None else replace(mqtt, namespace=fresh, session_s=_SESSION_S)
    if taken is not None:
        await clear(taken)
    return Place(replace(kafka, namespace=fresh), taken)


async def _remove(kafka: KafkaOptions, mqtt: MqttOptions | None) -> None:
    await remove_namespace(kafka)
    if mqtt is not None:
        await clear(replace(mqtt, namespace=kafka.namespace))


@contextlib.asynccontextmanager
async def carriers(place: Place, clock: Clock) -> AsyncIterator[Carriers]:
    """Open the bus and the bridge, and links as they are asked for; close them in good order.

    Raises:
        BusError: a broker does not answer.
    """
    async with contextlib.AsyncExitStack() as stack:
        pause = ClockPause(clock)
        bus = PacedBus(KafkaBus.open(place.kafka, clock), pause)
        stack.push_async_callback(bus.close)
        await bus.end(JOURNAL.name)  # makes the topics
        mqtt = place.mqtt
        if mqtt is None:
            yield Carriers(bus, lambda _: bus)
            return
        stack.push_async_callback(_clear_at_last, mqtt)
        await stack.enter_async_context(_bridge(place.kafka, mqtt, clock))

        def link(name: str) -> Link:
            made = PacedLink(MqttLink.open(mqtt, clock, name, wire_clock=SystemClock()), pause)
            stack.push_async_callback(made.close)
            return made

        yield Carriers(bus, link)


@contextlib.asynccontextmanager
async def _bridge(kafka: KafkaOptions, mqtt: MqttOptions, clock: Clock) -> AsyncIterator[None]:
    onlooker = Onlooker(clock)

    def wire(subscriptions: Sequence[str], hear: Callable[[Incoming], None]) -> MqttClient:
        client = MqttClient(
            mqtt,
            f"{mqtt.namespace}-bridge",
            subscriptions=subscriptions,
            hear=hear,
            clock=SystemClock(),
            carrier=SwiftConnection,
        )
        client.start()
        return client

    bus = KafkaBus.open(kafka, onlooker)
    try:
        bridge = Bridge(name="demo", wire=wire, buses={"default": bus}, clock=onlooker)
        running = asyncio.create_task(bridge.run(["default"]), name="bridge")
        watching = asyncio.create_task(_tell_problems(bridge))
        try:
            yield
        finally:
            watching.cancel()
            bridge.stop()
            await running
    finally:
        await bus.close()


async def _tell_problems(bridge: Bridge) -> None:
    """Say once of each outage why nothing moves."""
    told = False
    while True:
        await asyncio.sleep(_LOOK_S)
        if bridge.problem and not told:
            say(f"The demo waits: {bridge.problem}.")
        told = bool(bridge.problem)


async def _clear_at_last(mqtt: MqttOptions) -> None:
    try:
        await clear(mqtt)
    except BusError as error:
        say(f"What the demo left on MQTT stays there: {error}.")


async def clear(mqtt: MqttOptions) -> None:
    """Remove the retained messages of a namespace, which nobody would ever remove.

    Raises:
        BusError: the broker does not answer.
    """
    heard: list[Incoming] = []
    connected, come = asyncio.Event(), asyncio.Event()

    def hear(incoming: Incoming) -> None:
        heard.append(incoming)
        come.set()

    client = MqttClient(
        replace(mqtt, session_s=0),
        f"{mqtt.namespace}-clear",
        subscriptions=_RETAINED,
        hear=hear,
        opened=lambda _: connected.set(),
        clock=SystemClock(),
    )
    client.start()
    try:
        try:
            async with asyncio.timeout(_CONNECT_S):
                await connected.wait()
        except TimeoutError:
            raise BusError(
                f"no MQTT broker answers at {mqtt.host}:{mqtt.port} ({client.problem}); "
                f"{SILENT_HINT}"
            ) from None
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(_QUIET_S):
                    await come.wait()
                come.clear()
                while heard:
                    incoming = heard.pop()
                    client.ack(incoming)
                    if incoming.retain and incoming.value:
                        await client.publish(Outgoing(incoming.address, b"", retain=True))
    finally:
        await client.close()
