"""A device of a Tidegate fleet: `python device.py BROKER PORT NODE [NAMESPACE]`; mqtt-device.md."""

import json
import sys
from itertools import count
from threading import Event
from time import gmtime, sleep, strftime, time  # noqa: TID251 - a device has a clock of its own

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5

if len(sys.argv) < 4 or not sys.argv[2].isdigit():
    sys.exit("usage: python device.py BROKER PORT NODE [NAMESPACE]")
broker, port, node, *namespace = sys.argv[1:]
base, orders, gangs = "/".join([*namespace, "tidegate/v1", node]), {}, {}  # both by job
boot, numbers = int(time() / 60), count(int(time() % 60 * 100))
me = {"node": node, "agent": node, "pool": "edge", "pool_kind": "edge", "gpu_count": 1}
me |= {"gpu_type": "T4", "gpu_memory_mib": 16384}
idle = {"node": node, "pool": "edge", "gpus_needed": 0, "gpus_serving": 1}
idle |= {"requests_running": 0, "requests_waiting": 0, "request_rate_per_s": 0.0}


def event(kind, data, source="agents"):
    """Put what is said into its envelope."""
    said = {"specversion": "1.0", "type": f"tidegate.{kind}.v1", "source": f"/{source}/{node}"}
    said |= {"bootid": boot, "sequence": str(next(numbers)), "subject": node, "data": data}
    said |= {"id": f"{node}-{boot}-{said['sequence']}"}
    return json.dumps(said | {"time": strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())})


def say(kind, data, where="event"):
    """Publish it, now or on the next connection."""
    client.publish(f"{base}/up/{where}", event(kind, data), qos=1)


def heard(_client, _userdata, message):
    """Acknowledge a command, then obey it; the same once more changes nothing."""
    command = json.loads(message.payload)
    kind, data = command["type"].split(".", 1)[1], command["data"]
    outcome = "refused" if kind == "gang.scale.v1" else "done"
    say("command.acknowledged", {"command": command["id"], "outcome": outcome}, "ack")
    job = data.get("job")
    if kind == "agent.rebirth.v1":
        say("node.born", me | {"held": list(gangs.values())})
    elif kind == "gang.stop.v1" and (gang := gangs.pop(job, None)):
        say("worker.stopped", gang | {"node": node, "reason": data["reason"]})
    elif kind == "gang.start.v1" and orders.get(job) != data:
        orders[job] = data
        gangs[job] = {name: data[name] for name in ("job", "epoch", "step")} | {"gpus": [0]}
        say("worker.started", gangs[job] | {"node": node})


def refused(reason):
    """Say so if the broker does not take us, or not what we say."""
    if reason.is_failure:
        print(f"refused by the broker: {reason}", flush=True)  # noqa: T201 - for whoever runs it
    return reason.is_failure


client = Client(CallbackAPIVersion.VERSION2, "-".join([*namespace, node]), protocol=MQTTv5)
client.on_connect = lambda *a: refused(a[3]) or client.subscribe(f"{base}/down/command", qos=1)
client.on_message, taken = heard, Event()
client.on_publish = lambda *a: refused(a[3]) or taken.set()
lost = event("link.lost", {"agent": node, "session": int(time() * 1000)}, "links")
client.will_set(f"{base}/up/death", lost, qos=1, retain=True)
client.on_connect_fail = lambda *_: print(f"{broker}:{port} does not answer", flush=True)  # noqa: T201
client.connect_async(broker, int(port))
client.loop_start()
try:
    say("node.born", me)
    taken.wait()
    print(f"joined as {node}", flush=True)  # noqa: T201
    while True:
        say("inference.load", idle, "telemetry")
        sleep(20)  # a gang is done after that, whatever it had to do
        for job, order in list(orders.items()):
            if gang := gangs.pop(job, None):
                done = {
                    "node": node,
                    "reason": "completed",
                    "step": order["spec"].get("total_steps") or 0,
                }
                say("worker.stopped", gang | done)
except KeyboardInterrupt:
    sys.exit("stopped; the scheduler hears it from the broker")
