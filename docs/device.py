"""An edge device in a Tidegate fleet, with paho-mqtt and nothing of Tidegate: see mqtt-device.md.

`python docs/device.py BROKER PORT NODE [NAMESPACE]`
"""

import json
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

now_s = time.time  # noqa: TID251 - a device has a clock of its own
Data = dict[str, Any]


class Device:
    """One node with one GPU; its gangs are only noted, where a real one starts processes."""

    def __init__(self, broker: str, port: int, node: str, namespace: str = "") -> None:
        self.node, self.base = node, f"{namespace}/tidegate/v1/{node}".removeprefix("/")
        self.boot, self.sequence = int(now_s()), 0  # a boot number never comes twice
        self.unconfirmed: dict[int, tuple[str, bytes]] = {}  # sequence -> kind and bytes
        self.answers: dict[str, Data] = {}  # command -> how it was acknowledged
        self.gangs: dict[str, Data] = {}  # job -> what runs here
        self.lock = threading.RLock()  # paho calls from a thread of its own
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2, f"{namespace}-{node}", protocol=mqtt.MQTTv5
        )
        self.client.on_pre_connect = self.before
        self.client.on_connect = self.connected
        self.client.on_message = self.heard
        session: Any = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 24 * 3600  # commands wait for us for a day
        self.client.connect_async(broker, port, clean_start=False, properties=session)
        self.say("node.born", self.inventory())

    # --- what it says ---

    def envelope(self, kind: str, data: Data, source: str, boot: int, sequence: int) -> bytes:
        said: Data = {"specversion": "1.0", "type": f"tidegate.{kind}.v1", "source": source}
        said |= {"id": f"{self.node}-{boot}-{sequence}", "subject": self.node, "data": data}
        said |= {"time": datetime.fromtimestamp(now_s(), UTC).isoformat()}
        return json.dumps(said | {"bootid": boot, "sequence": str(sequence)}).encode()

    def say(self, kind: str, data: Data, where: str = "event") -> None:
        with self.lock:
            number = self.sequence
            value = self.envelope(kind, data, f"/agents/{self.node}", self.boot, number)
            self.unconfirmed[number] = (where, value)
            self.sequence += 1
            if len(self.unconfirmed) <= 100:  # more wait their turn
                self.send(number)

    def send(self, number: int) -> None:
        where, value = self.unconfirmed[number]
        if self.client.is_connected():
            self.client.publish(f"{self.base}/up/{where}", value, qos=1)

    def repeat(self) -> None:
        """Send again what no bridge has confirmed: on each connection, and every 15 s."""
        with self.lock:
            for number in list(self.unconfirmed)[:100]:
                self.send(number)

    def inventory(self) -> Data:
        of_held = ("job", "epoch", "gpus", "step")
        held = [{name: gang[name] for name in of_held} for gang in self.gangs.values()]
        who = {"node": self.node, "agent": self.node, "pool": "edge", "pool_kind": "edge"}
        return who | {"gpu_count": 1, "gpu_type": "T4", "gpu_memory_mib": 16384, "held": held}

    def measure(self) -> None:
        """Say that we are here; a real device says how its GPU is doing."""
        unknown = ("gpu_utilisation", "gpu_memory_used_mib", "gpu_temperature_c", "gpu_power_w")
        data = {"node": self.node, "window_s": 60.0} | {name: [None] for name in unknown}
        self.say("node.measured", data, "telemetry")

    # --- the connection ---

    def link(self, word: str) -> bytes:
        data = {"agent": self.node, "session": self.session}
        return self.envelope(f"link.{word}", data, f"/links/{self.node}", 0, self.session)

    def before(self, client: mqtt.Client, _: object) -> None:
        self.session = int(now_s() * 1000)  # a new one for each connection; the Will names it
        late: Any = Properties(PacketTypes.WILLMESSAGE)
        late.WillDelayInterval = 5
        client.will_set(f"{self.base}/up/death", self.link("lost"), 1, True, late)

    def connected(self, client: mqtt.Client, *_: object) -> None:
        client.subscribe([(f"{self.base}/down/{kind}", 1) for kind in ("command", "horizon")])
        client.publish(f"{self.base}/up/birth", self.link("opened"), qos=1, retain=True)
        self.repeat()

    # --- what it hears ---

    def heard(self, _client: mqtt.Client, _: object, message: mqtt.MQTTMessage) -> None:
        said = json.loads(message.payload)
        with self.lock:
            if message.topic.endswith("/command"):
                self.command(said)
            elif said["data"]["boot"] == self.boot:
                for part in said["data"]["stored"]:
                    for number in list(self.unconfirmed):
                        if part["first"] <= number <= part["last"]:
                            del self.unconfirmed[number]

    def command(self, said: Data) -> None:
        name, fresh = said["id"], said["id"] not in self.answers
        if fresh:  # one that comes again is answered again and changes nothing
            answer = self.answers[name] = {"command": name, "outcome": "done"}
            if "expirytime" in said:
                if datetime.fromisoformat(said["expirytime"]).timestamp() < now_s():
                    answer |= {"outcome": "refused", "reason": "it came too late"}
        self.say("command.acknowledged", self.answers[name], "ack")
        if fresh and self.answers[name]["outcome"] == "done":
            self.obey(said["type"], said["data"])

    def obey(self, kind: str, data: Data) -> None:
        if kind == "tidegate.agent.rebirth.v1":
            self.say("node.born", self.inventory())
        elif kind == "tidegate.gang.start.v1":
            gpus = next(part["gpus"] for part in data["placement"] if part["node"] == self.node)
            gang = {name: data[name] for name in ("job", "epoch", "step")}
            self.gangs[data["job"]] = gang = gang | {"node": self.node, "gpus": gpus}
            self.say("worker.started", gang)
        elif kind == "tidegate.gang.stop.v1" and data["job"] in self.gangs:
            self.say("worker.stopped", self.gangs.pop(data["job"]) | {"reason": data["reason"]})


if __name__ == "__main__":
    device = Device(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5])
    device.client.loop_start()  # connects, and again for ever
    while True:
        device.measure()
        for _ in range(4):
            time.sleep(15)
            device.repeat()
