"""Says the telemetry of many devices to an MQTT broker as fast as it takes it.

`python -m benchmarks.flood HOST PORT NAMESPACE COUNT DEVICES`, a process of its own beside what is
measured.
"""

import asyncio
import sys
import time

from benchmarks.device_fleet import measured
from bus.clock import SystemClock
from bus.mqtt_client import MqttClient
from bus.mqtt_swift import SwiftConnection
from bus.options import MqttOptions
from bus.wire import Outgoing
from schemas.codec import encode, event


def telemetry(count: int, devices: int = 1) -> list[tuple[str, bytes]]:
    """Make so many measurements of devices in turn, each with the device's name."""
    now_s, boot = time.time(), int(time.time() // 60)
    made = []
    for number in range(count):
        name = f"device-{number % devices}"
        source, sequence = f"/agents/{name}", number // devices
        said = event(measured(name), source=source, sequence=sequence, bootid=boot, time_s=now_s)
        made.append((name, encode(said)))
    return made


async def _flood(options: MqttOptions, count: int, devices: int) -> None:
    made = [
        Outgoing(f"tidegate/v1/{name}/up/telemetry", value)
        for name, value in telemetry(count, devices)
    ]
    client = MqttClient(
        options,
        "flood",
        subscriptions=(),
        hear=lambda _: None,
        clock=SystemClock(),
        carrier=SwiftConnection,
    )
    client.start()
    while not client.connected:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(client.send(message) for message in made))
    await client.close()


if __name__ == "__main__":
    host, port, namespace, count, devices = sys.argv[1:]
    asyncio.run(_flood(MqttOptions(host, int(port), namespace), int(count), int(devices)))
