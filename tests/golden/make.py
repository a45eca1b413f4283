"""Record the golden logs anew: `python -m tests.golden.make POLICY ...`.

`brokers` was exported from Kafka, after a demo with agents over MQTT:

    tidegate demo --bus kafka --mqtt --hours 0.5 --seconds 25 --seed 12 --failures 0.05 --no-live
    tidegate journal export brokers.jsonl.zst --log kafka://HOST:PORT/demo-1

A log is golden because it replays identically with every later version. Make it anew only when a
change of decisions is meant, and say so in the changelog. That of `fifo` is of an earlier release,
and stays.
"""

import asyncio
import math
import sys
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory

from bus.clock import PacedClock
from bus.contract import Bus, Message, Record
from bus.logfile import Head, write_log
from cloud_agent.agent import CloudAgentConfig, build_agent
from runtime.build import Options
from runtime.service import AgentService, Schedule
from runtime.simulated import Physics
from runtime.simulated_owner import Demand, simulated
from scheduler.core.canonical import state_hash
from scheduler.core.settings import Settings
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, event
from schemas.events import EventData, JobCancelled, JobSubmitted, PoolKind, RatePoint
from schemas.topics import ALL_TOPICS, EVENTS
from tests.memory_bus import MemoryBus

FOLDER = Path(__file__).parent
START_S = 1_767_571_200.0  # 2026-01-05T00:00:00Z
HOURS = 6.0


def agent(
    bus: Bus, clock: PacedClock, folder: Path, pool: str, kind: PoolKind, demand: Demand | None
) -> AgentService:
    """Give a cluster of three nodes with simulated workers, some of which fail."""
    config = CloudAgentConfig(
        name=f"{pool}-agent",
        pool=pool,
        pool_kind=kind,
        nodes=tuple(f"{pool}-{index}" for index in range(3)),
        gpus_per_node=4,
        options=Options(schedule=Schedule(telemetry_every_s=900.0)),
    )
    make = simulated(demand, Physics(failures_per_gpu_hour=0.03))
    return build_agent(config, bus, clock, folder / f"{pool}.db", make)


def job(index: int, gpus: int, hours: float, deadline_s: float | None = None) -> JobSubmitted:
    rates = [RatePoint(gpus=n, samples_per_s=100.0 * n**0.9) for n in (1, 2, 4, 8) if n >= gpus]
    return JobSubmitted(
        job=f"job-{index:02d}",
        tenant=f"tenant-{index % 3}",
        model="resnet50",
        gpus_min=gpus,
        gpus_max=8,
        total_steps=round(hours * 3600 * rates[0].samples_per_s / 256),
        samples_per_step=256.0,
        rates=rates,
        deadline_s=deadline_s,
        checkpoint_cost_s=5.0,
        start_cost_s=20.0,
    )


class Tenants:
    """Submits jobs at fixed moments; cancels one, sends one twice, and one that is no event."""

    def __init__(self, bus: MemoryBus, clock: PacedClock) -> None:
        self.bus, self.clock, self.sequence = bus, clock, 0

    async def run(self) -> None:
        for index in range(18):
            await self.clock.sleep_until(START_S + 60.0 + 700.0 * index)
            deadline_s = START_S + HOURS * 3600.0 if index % 4 == 3 else None
            hours = (0.2, 0.9, 0.5)[index % 3]
            message = self.message(job(index, (1, 4, 2, 8)[index % 4], hours, deadline_s))
            copies = 2 if index == 5 else 1
            await self.bus.publish(*[message] * copies)
            if index == 7:
                await self.bus.publish(Message(EVENTS.name, "default", b'{"specversion": "1.0"'))
                await self.bus.publish(Message(EVENTS.name, "default", b"\xff\x00"))
            if index == 9:
                await self.bus.publish(self.message(JobCancelled(job="job-07", reason="enough")))

    def message(self, data: EventData) -> Message:
        envelope = event(
            data,
            source="/operators/golden",
            sequence=self.sequence,
            bootid=1,
            time_s=self.clock.now_s(),
        )
        self.sequence += 1
        return Message(EVENTS.name, "default", encode(envelope))


async def record(policy: str, folder: Path) -> tuple[list[Record], Head, str]:
    """Give the records of a run with one restart of the scheduler, and its state hash."""
    clock = PacedClock(START_S, None)
    bus = MemoryBus(clock)
    end_s = START_S + HOURS * 3600.0

    def tide(now_s: float) -> float:
        return 6.0 - 5.0 * math.cos((now_s - START_S) / (HOURS * 3600.0) * 2 * math.pi)

    config = ServiceConfig(policy=policy, settings=Settings(), snapshot_entries=400)
    services = [SchedulerService(bus, clock, config) for _ in range(2)]
    agents = [
        agent(bus, clock, folder, "train", "training", None),
        agent(bus, clock, folder, "serve", "inference", tide),
    ]

    async def lead() -> None:
        await services[0].run()
        await services[1].run()

    async def restart() -> None:
        await clock.sleep_until(START_S + 7000.0)
        services[0].stop()
        await clock.sleep_until(end_s - 60.0)
        for one in agents:
            await one.stop()
        await clock.sleep_until(end_s - 30.0)
        services[1].stop()

    async def take_part(work: Coroutine[None, None, None]) -> None:
        clock.enter()
        try:
            await work
        finally:
            clock.leave()

    tasks = [asyncio.create_task(lead())]  # services take part by themselves
    tasks += [asyncio.create_task(one.run()) for one in agents]
    works = [restart(), Tenants(bus, clock).run()]
    tasks += [asyncio.create_task(take_part(work)) for work in works]
    await asyncio.sleep(0)
    await clock.run_until(end_s + 120.0)
    await asyncio.gather(*tasks)
    found = [entry for name in sorted(ALL_TOPICS) async for entry in bus.read(name)]
    topics = {name: await bus.end(name) for name in sorted({entry.topic for entry in found})}
    await bus.close()
    return found, Head(topics), state_hash(services[1].engine.state)


def main(policies: list[str]) -> None:
    for policy in policies:
        path = FOLDER / f"{policy}.jsonl.zst"
        with TemporaryDirectory() as folder:
            records, head, state = asyncio.run(record(policy, Path(folder)))
        path.unlink(missing_ok=True)
        write_log(path, head, records)
        (FOLDER / f"{policy}.hash").write_text(state + "\n")
        print(f"{path.name}: {len(records)} records, {path.stat().st_size} bytes, state {state}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
