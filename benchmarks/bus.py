"""How fast the bus is: publish, transactions and reading, on every backend."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import get_args

from benchmarks import brokers
from benchmarks.figures import parser_of, write
from bus.clock import SystemClock
from bus.contract import Bus, Message
from bus.sqlite import Durability, SqliteBus
from schemas.topics import COMMANDS, EVENTS, JOURNAL
from tests.memory_bus import MemoryBus

PAYLOAD = b"x" * 300
TICK_IN, TICK_OUT = 100, 20


async def _rate(seconds: float, once: Callable[[], Awaitable[int]]) -> float:
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        done += await once()
    return done / spent


async def _measure(bus: Bus, name: str, seconds: float) -> dict[str, float]:
    batch = [Message(EVENTS.name, "cell-a", PAYLOAD) for _ in range(TICK_IN)]
    out = [Message(COMMANDS.name, f"node-{i}", PAYLOAD) for i in range(TICK_OUT - 1)]
    out.append(Message(JOURNAL.name, "cell-a", PAYLOAD))
    producer = await bus.producer("scheduler")
    consumer = await bus.consumer("scheduler", [EVENTS.name])

    async def publish_one() -> int:
        await bus.publish(batch[0])
        return 1

    async def publish_batch() -> int:
        await bus.publish(*batch)
        return len(batch)

    async def publish_many_callers() -> int:
        await asyncio.gather(*(bus.publish(batch[0]) for _ in range(256)))
        return 256

    async def tick() -> int:
        records = await consumer.poll(TICK_IN, timeout_s=0.0)
        if len(records) < TICK_IN:
            await bus.publish(*batch)
        async with producer.transaction() as transaction:
            for message in out:
                transaction.send(message)
            transaction.commit_positions(consumer)
        return 1

    async def small_tick() -> int:
        async with producer.transaction() as transaction:
            transaction.send(out[0])
            transaction.send(out[-1])
        return 1

    async def read_all() -> int:
        number = 0
        async for _ in bus.read(EVENTS.name):
            number += 1
            if number == 20_000:
                break
        return number

    async def poll_all() -> int:
        reader = await bus.consumer("reader", [EVENTS.name])
        number = 0
        while number < 20_000 and (records := await reader.poll(1000, timeout_s=0.0)):
            number += len(records)
        await reader.close()
        return number

    rates = {}
    for what, once in {
        "publish_one_per_s": publish_one,
        "publish_256_callers_per_s": publish_many_callers,
        "publish_batch_of_100_per_s": publish_batch,
        "transactions_100_in_20_out_per_s": tick,
        "transactions_2_out_per_s": small_tick,
        "read_per_s": read_all,
        "poll_1000_per_s": poll_all,
    }.items():
        rates[f"bus_{name}_{what}"] = await _rate(seconds, once)
    return rates


async def _run(seconds: float) -> dict[str, float]:
    share = seconds / 21.0
    clock = SystemClock()
    memory = MemoryBus(clock)
    rates = await _measure(memory, "memory", share)
    await memory.close()
    for durability in get_args(Durability):
        with tempfile.TemporaryDirectory() as folder:
            log = SqliteBus.open(Path(folder) / "log.db", clock, durability=durability)
            rates |= await _measure(log, f"sqlite_{durability}", share)
            await log.close()
    return rates


def run(seconds: float) -> dict[str, float]:
    """Measure for about `seconds` in all; give rates per second."""
    return asyncio.run(_run(seconds))


def main() -> int:
    """Measure every backend, brokers too where they are named."""
    parser = parser_of("bus", __doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="scales each part (5)")
    options = parser.parse_args()
    figures = run(options.seconds)
    problem = brokers.missing()
    if problem is None:
        figures |= brokers.run(options.seconds)
    else:
        sys.stderr.write(f"Kafka and MQTT are NOT measured: {problem}\n")
    if options.json != "-":
        for name, value in figures.items():
            print(f"{name:60s} {value:12,{'.0f' if abs(value) >= 100 else '.3g'}}")
    write(options.json, figures=figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
