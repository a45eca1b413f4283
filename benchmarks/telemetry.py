"""How many telemetry events a second one core decodes, judges and folds into columns."""

import time

from bus.contract import Record
from scheduler import garbage
from scheduler.core.evolve import apply
from scheduler.core.facts import NodeJoined
from scheduler.core.state import ClusterState
from scheduler.dedupe import Dedupe
from scheduler.intake import Intake
from schemas.codec import encode, event
from schemas.events import NodeMeasured
from schemas.topics import TELEMETRY

_NODES = 1000
_BATCH = 2000


def records(nodes: int, count: int) -> list[Record]:
    """Make telemetry of nodes of 8 GPUs, as it stands on the bus."""
    made = []
    for number in range(count):
        node = number % nodes
        data = NodeMeasured(
            node=f"node-{node:05d}",
            window_s=60.0,
            gpu_utilisation=[0.9, 0.85, 0.92, 0.11, 0.0, 0.5, 0.99, None],
            gpu_memory_used_mib=[70_000, 71_000, 69_500, 1000, 0, 40_000, 79_000, None],
            gpu_temperature_c=[61.0, 60.5, 63.0, 40.0, 38.5, 55.0, 66.0, None],
            gpu_power_w=[350.0, 345.5, 361.0, 90.0, 70.0, 250.0, 390.0, None],
        )
        envelope = event(
            data,
            source=f"/agents/agent-{node:05d}",
            sequence=number // nodes,
            bootid=1,
            time_s=1000.0 + number // nodes,
        )
        made.append(Record(TELEMETRY.name, number, data.node, encode(envelope), {}, 1000.0))
    return made


def run(seconds: float) -> dict[str, float]:
    """Measure for about so many seconds."""
    made = records(_NODES, 10 * _BATCH)
    garbage.put_off()  # as in the process that does this for a living
    state = ClusterState()
    for number in range(_NODES):
        name, agent = f"node-{number:05d}", f"agent-{number:05d}"
        apply(
            state, NodeJoined(name, agent, "training", "training", 8, "a100", 81_920, 1.0, 1e3, 1)
        )
    best = 0.0
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        intake = Intake("default", "bench", Dedupe())
        began = time.perf_counter()
        for start in range(0, len(made), _BATCH):
            intake.read(made[start : start + _BATCH], state, 2000.0)
            garbage.look_at_new()
        best = max(best, len(made) / (time.perf_counter() - began))
        if intake.telemetry.folded != len(made):
            raise RuntimeError("not every event was folded")
    return {"telemetry_events_per_s": best}
