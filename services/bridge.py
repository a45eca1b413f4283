"""`tidegate bridge`: carries between MQTT and Kafka; any number of bridges share the work."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from bus.bridge import Bridge
from bus.clock import Clock, SystemClock
from bus.contract import BusError
from bus.kafka import KafkaBus
from bus.kafka_cells import KafkaCells
from bus.mqtt_client import MqttClient
from bus.mqtt_swift import SwiftConnection
from bus.options import KafkaOptions, MqttOptions
from bus.wire import Incoming
from services.backends import kafka_of
from services.config import Config
from services.logs import Log
from services.metrics import Sample
from services.probe import BusProbe
from services.process import serve
from services.refusals import Refusals

#: The consumer group in which all bridges of a cluster share the cells' commands.
GROUP = "tidegate-bridge"
#: How long the broker keeps the session, and share, of a killed bridge; agents send that again.
SESSION_S = 60


def main(config: Config) -> int:
    """Run a bridge until it is told to end; give the exit code."""
    kafka, mqtt, clock = kafka_of(config), config.mqtt.options(), SystemClock()
    if kafka is None:
        raise BusError("bus: a bridge carries to Kafka; write kafka:")

    def make(log: Log) -> "BridgeRole":
        return BridgeRole(config, kafka, mqtt, clock, log)

    return serve("bridge", config.bridge.name, config, make)


class BridgeRole:
    """Carries messages of all agents up, and commands of its assigned cells down."""

    def __init__(
        self,
        config: Config,
        kafka: KafkaOptions,
        mqtt: MqttOptions,
        clock: Clock,
        log: Log,
    ) -> None:
        name = config.bridge.name
        self._buses = {cell: KafkaBus.open(kafka, clock, cell) for cell in kafka.cells}

        def wire(subscriptions: Sequence[str], hear: Callable[[Incoming], None]) -> MqttClient:
            client = MqttClient(
                replace(mqtt, session_s=min(mqtt.session_s, SESSION_S)),
                f"{mqtt.namespace or 'tidegate'}-{name}",
                subscriptions=subscriptions,
                hear=hear,
                opened=lambda _: log.info("connected to the MQTT broker"),
                clock=clock,
                keep_session=False,
                carrier=SwiftConnection,
            )
            client.start()
            self._client = client
            return client

        self._bridge = Bridge(
            name=name,
            wire=wire,
            buses=self._buses,
            clock=clock,
            limits=config.bridge,
            group=config.bridge.group_name(),
        )
        self._refusals = Refusals(log, "message refused")
        self._kafka = BusProbe(next(iter(self._buses.values())), f"Kafka at {kafka.bootstrap}")
        self._group = KafkaCells(kafka, clock, group=GROUP, member=name)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run until `stop`, which ends first the commands down, then the messages up."""
        up = asyncio.create_task(self._bridge.run())
        down = asyncio.create_task(self._group.run(self._bridge.down))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({up, down, stopping}, return_when=asyncio.FIRST_COMPLETED)
        self._group.stop()
        await asyncio.wait({down})
        self._bridge.stop()
        await asyncio.wait({up})
        stopping.cancel()
        await asyncio.gather(*(bus.close() for bus in self._buses.values()))
        down.result()
        up.result()

    def stop(self) -> None:
        self._stopping.set()

    async def refresh(self) -> None:
        """Log refusals. Probe Kafka: without messages nobody would notice that it is down."""
        refused = self._bridge.refused
        told = [refusal._asdict() for refusal in refused]
        refused.clear()
        self._refusals.tell(told, self._bridge.counters.refused.total())
        await self._kafka.ask()

    def problems(self) -> list[str]:
        found = [self._kafka.problem] if self._kafka.problem else []
        if not self._client.connected:
            where, why = self._client.where, self._client.problem
            found.append(f"no connection to the MQTT broker at {where}: {why}")
        elif self._bridge.problem:
            found.append(self._bridge.problem)
        if not self._group.joined:
            found.append("not yet a member of the bridges' group")
            found += [self._group.trouble] if self._group.trouble else []
        return found

    def details(self) -> dict[str, object]:
        return {"carries_down": list(self._group.owned), "unacked": self._bridge.unacked}

    def samples(self) -> Iterable[Sample]:
        bridge, counters = self._bridge, self._bridge.counters
        yield Sample("tidegate_dead_letters_total", counters.dead_letters, ("", "bridge"))
        yield Sample("tidegate_oldest_unacked_seconds", bridge.oldest_unacked_s())
        yield Sample("tidegate_link_up", float(self._client.connected))
        yield Sample("tidegate_reconnects_total", self._client.reconnects)
        yield Sample("tidegate_bridge_forwarded_total", counters.forwarded_up, ("up",))
        yield Sample("tidegate_bridge_forwarded_total", counters.forwarded_down, ("down",))
        for reason, count in counters.refused.copy().items():
            yield Sample("tidegate_bridge_refused_total", count, (reason,))
        yield Sample("tidegate_bridge_unacked", bridge.unacked)
