"""What the size of the fleet costs: births, one event's tick, the look for silence, a snapshot.

Edge nodes of one GPU, each with its own agent and two days of its owner's history.
"""

import asyncio
import statistics
import time

from bus.clock import PacedClock
from bus.contract import Message
from scheduler.contact import LOOK_S, Contact
from scheduler.core.state import SLOTS, Lender
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, event
from schemas.events import EventData, JobSubmitted, NodeBorn, RatePoint
from schemas.topics import EVENTS
from tests.memory_bus import MemoryBus

_START_S = 1_000_000.0
_TICKS = 20


def _message(data: EventData, source: str, sequence: int = 0) -> Message:
    envelope = event(data, source=source, sequence=sequence, bootid=0, time_s=_START_S)
    return Message(EVENTS.name, "default", encode(envelope))


def _born(name: str) -> Message:
    born = NodeBorn(
        node=name,
        agent=name,
        pool="edge",
        pool_kind="edge",
        gpu_count=1,
        gpu_type="t4",
        gpu_memory_mib=16_384,
    )
    return _message(born, f"/agents/{name}")


def _job(number: int) -> JobSubmitted:
    return JobSubmitted(
        job=f"job-{number}",
        tenant="bench",
        model="m",
        gpus_min=1,
        gpus_max=1,
        total_steps=100,
        samples_per_step=1.0,
        rates=[RatePoint(gpus=1, samples_per_s=1.0)],
    )


async def _measure(nodes: int) -> dict[str, float]:
    clock = PacedClock(_START_S, None)
    bus = MemoryBus(clock)
    config = ServiceConfig(policy="fifo", validate_ticks=0, snapshot_entries=10**9)
    service = SchedulerService(bus, clock, config)
    await service.open()
    consumer = await bus.consumer("bench", [EVENTS.name])

    async def tick(*messages: Message) -> float:
        await bus.publish(*messages)
        records = await consumer.poll(len(messages), 0.0)
        began_s = time.perf_counter()
        await service.tick(records)
        return time.perf_counter() - began_s

    births_s = 0.0
    for first in range(0, nodes, 500):
        names = [f"edge-{number:05d}" for number in range(first, min(nodes, first + 500))]
        births_s += await tick(*(_born(name) for name in names))
    state = service.engine.state
    for name in state.nodes:
        history: list[float | None] = [float(slot % 4) for slot in range(SLOTS)]
        state.lenders[name] = Lender(name, 1.0, 1.0, _START_S, 5, history)
    ticks_s = [await tick(_message(_job(n), "/tenants/bench", n)) for n in range(_TICKS)]
    contact = Contact()
    contact.begin(state, _START_S)
    began_s = time.perf_counter()
    now_s = _START_S + LOOK_S
    contact.changes(state, now_s, service.engine.settings.silence_s, now_s)
    look_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    await service.snapshot()
    snapshot_s = time.perf_counter() - began_s
    await bus.close()
    return {
        f"birth_ms_at_{nodes}_nodes": 1e3 * births_s / nodes,
        f"tick_of_one_event_ms_at_{nodes}_nodes": 1e3 * statistics.median(ticks_s),
        f"look_for_silence_ms_at_{nodes}_nodes": 1e3 * look_s,
        f"snapshot_s_at_{nodes}_nodes": snapshot_s,
    }


def run(seconds: float) -> dict[str, float]:
    """Measure at 1,000 and at 10,000 nodes."""
    del seconds  # one pass of each size is the measure
    return {**asyncio.run(_measure(1_000)), **asyncio.run(_measure(10_000))}
