"""Simulated edge devices that share one MQTT connection, and what they learn about latency.

Sharing is said in the figures' names ("multiplexed"): ten thousand sockets would measure this
machine's kernel. To the bridge and the scheduler they are ten thousand nodes.
"""

import asyncio
import time
from dataclasses import dataclass, field

import orjson

from bus.clock import SystemClock
from bus.mqtt_client import MqttClient
from bus.mqtt_swift import SwiftConnection
from bus.options import MqttOptions
from bus.wire import Incoming, LinkDown, Outgoing
from schemas.codec import decode_command, encode, event
from schemas.commands import Rebirth
from schemas.events import EventData, InferenceLoad, NodeBorn, NodeMeasured
from schemas.parse import Rejected

POOL = "edge"


@dataclass(slots=True)
class Samples:
    """Latencies, in seconds."""

    to_journal_s: list[float] = field(default_factory=list)
    to_command_s: list[float] = field(default_factory=list)


class DeviceFleet:
    """`count` devices with one GPU each."""

    def __init__(self, options: MqttOptions, count: int, name: str) -> None:
        self.names = [f"{name}-{i:05d}" for i in range(count)]
        self.samples = Samples()
        #: When each load report left, by (source, boot, sequence); the journal names it so.
        self.left: dict[tuple[str, int, int], float] = {}
        self.sent = 0
        self._boot = int(time.time() // 60)
        self._sequence = dict.fromkeys(self.names, 0)
        self._probed: dict[str, float] = {}
        #: The scheduler asks a node at most once in a while, so each is probed once.
        self._unprobed = list(self.names)
        self._needs = dict.fromkeys(self.names, 0)
        self._clock = SystemClock()
        self._client = MqttClient(
            options,
            f"bench-{name}",
            subscriptions=["tidegate/v1/+/down/command"],
            hear=self._hear,
            clock=self._clock,
            carrier=SwiftConnection,  # what is measured needs the cores
        )

    async def start(self) -> None:
        """Connect, and let every device be born."""
        self._client.start()
        while not self._client.connected:
            await asyncio.sleep(0.01)
        for start in range(0, len(self.names), 100):
            births = [
                self._say(
                    name,
                    "event",
                    NodeBorn(
                        node=name,
                        agent=name,
                        pool=POOL,
                        pool_kind="edge",
                        gpu_count=1,
                        gpu_type="L4",
                        gpu_memory_mib=24_576,
                    ),
                )
                for name in self.names[start : start + 100]
            ]
            await asyncio.gather(*births)

    def forget(self) -> None:
        """Begin to measure anew."""
        self.samples, self.sent = Samples(), 0
        self.left.clear()

    async def report(self, rate_per_s: float, seconds: float) -> None:
        """Report at a steady rate in all: telemetry, every tenth a load that changed.

        Every so often a device skips a number; the scheduler answers at once with the command to
        say all again, and that is the latency from event to command.
        """
        began, done, running = time.perf_counter(), 0, set[asyncio.Task[None]]()
        probe_every = max(1, int(rate_per_s * seconds / min(200, len(self.names) // 2)))
        self._probed.clear()
        while (spent := time.perf_counter() - began) < seconds:
            while done < spent * rate_per_s:
                name = self.names[done % len(self.names)]
                if done % probe_every == probe_every - 1 and self._unprobed:
                    name = self._unprobed.pop()
                    self._sequence[name] += 1
                    self._probed[name] = time.perf_counter()
                if done % 10 == 9:
                    self._needs[name] ^= 1
                    load = _load(name, self._needs[name])
                    saying = self._say(name, "telemetry", load, timed=True)
                else:
                    saying = self._say(name, "telemetry", measured(name))
                one = asyncio.create_task(saying)
                running.add(one)
                one.add_done_callback(running.discard)
                done += 1
            await asyncio.sleep(0.001)
        await asyncio.gather(*running)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.close()

    def journalled(self, cause: tuple[str, int, int], seen: float) -> None:
        """Note that the journal holds what this event led to."""
        left = self.left.pop(cause, None)
        if left is not None:
            self.samples.to_journal_s.append(seen - left)

    async def _say(self, name: str, kind: str, data: EventData, *, timed: bool = False) -> None:
        sequence = self._sequence[name]
        self._sequence[name] += 1
        source = f"/agents/{name}"
        envelope = event(
            data, source=source, sequence=sequence, bootid=self._boot, time_s=self._clock.now_s()
        )
        if timed:
            self.left[source, self._boot, sequence] = time.perf_counter()
        while True:
            try:
                await self._client.publish(
                    Outgoing(f"tidegate/v1/{name}/up/{kind}", encode(envelope))
                )
                self.sent += 1
                return
            except LinkDown:
                await asyncio.sleep(0.1)

    def _hear(self, message: Incoming) -> None:
        seen = time.perf_counter()
        self._client.ack(message)
        command = decode_command(message.value)
        if isinstance(command, Rejected) or not isinstance(command.data, Rebirth):
            return
        asked = self._probed.get(command.subject)
        if asked is not None and asked > 0.0:
            self._probed[command.subject] = -1.0
            self.samples.to_command_s.append(seen - asked)


def _load(name: str, gpus_needed: int) -> InferenceLoad:
    return InferenceLoad(
        pool=POOL,
        node=name,
        requests_running=0,
        requests_waiting=0,
        request_rate_per_s=0.0,
        gpus_needed=gpus_needed,
        gpus_serving=1,
    )


def measured(name: str) -> NodeMeasured:
    """Make what a device measures of its GPU."""
    return NodeMeasured(
        node=name,
        window_s=60.0,
        gpu_utilisation=[0.5],
        gpu_memory_used_mib=[1024],
        gpu_temperature_c=[50.0],
        gpu_power_w=[60.0],
    )


def cause_of(value: bytes) -> tuple[str, int, int]:
    """Read which message a journal entry is about, without checking the rest."""
    source, boot, sequence, _ = orjson.loads(value)["data"]["stimulus"]["cause"]
    return source, boot, sequence
