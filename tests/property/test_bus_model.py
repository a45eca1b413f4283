"""Memory and SQLite do the same, whatever is done with them."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from bus.clock import PacedClock
from bus.contract import Bus, Fenced, Message
from bus.sqlite import SqliteBus
from schemas.topics import CELLS, COMMANDS, EVENTS
from tests.effort import examples
from tests.memory_bus import MemoryBus

TOPICS = [EVENTS.name, COMMANDS.name, CELLS.name]
DAY_S = 24 * 3600.0

messages = st.builds(
    Message,
    st.sampled_from(TOPICS),
    st.sampled_from(["a", "b", "é"]),
    st.none() | st.binary(max_size=5),
    st.dictionaries(st.sampled_from(["h", "ï"]), st.text(max_size=3).map(lambda t: t.strip("\0"))),
).filter(lambda m: all("\0" not in v for v in m.headers.values()))

steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(messages, max_size=5)),
    st.tuples(st.just("poll"), st.integers(1, 4)),
    st.tuples(st.just("poll_keys"), st.integers(1, 4)),
    st.tuples(st.just("commit"), st.none()),
    st.tuples(st.just("reopen_consumer"), st.none()),
    st.tuples(st.just("transact"), st.lists(messages, max_size=3)),
    st.tuples(st.just("fence"), st.none()),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 2.0, 8.0])),
    st.tuples(st.just("prune"), st.none()),
)


async def story(bus: Bus, clock: PacedClock, script: list[tuple[str, object]]) -> list[object]:
    """Do the script; give all that could be seen."""
    seen: list[object] = []
    consumer = await bus.consumer("g", TOPICS)
    keyed = await bus.consumer("keyed", TOPICS, keys=["a", "é"])
    producer = old = await bus.producer("p")
    for what, given_ in script:
        if what == "publish":
            await bus.publish(*given_)  # type: ignore[misc]
        elif what in {"poll", "poll_keys"}:
            reader = keyed if what == "poll_keys" else consumer
            seen.append(await reader.poll(given_, timeout_s=0.0))  # type: ignore[arg-type]
            seen.append((dict(reader.positions), await reader.lag()))
        elif what == "commit":
            await consumer.commit()
        elif what == "reopen_consumer":
            await consumer.close()
            consumer = await bus.consumer("g", TOPICS)
            seen.append(dict(consumer.positions))
        elif what == "fence":
            old, producer = producer, await bus.producer("p")
        elif what == "transact":
            for one in (old, producer):
                try:
                    async with one.transaction() as transaction:
                        for message in given_:  # type: ignore[attr-defined]
                            transaction.send(message)
                        transaction.commit_positions(keyed)
                except Fenced:
                    seen.append("fenced")
        elif what == "pass":
            await clock.run_until(clock.now_s() + DAY_S * given_)  # type: ignore[operator]
        else:
            seen.append(await bus.prune(clock.now_s()))
    for topic in TOPICS:
        seen.append([record async for record in bus.read(topic)])
        seen.append(await bus.end(topic))
        seen += [await bus.latest(topic, key) for key in ("a", "b", "é")]
    return seen


@settings(max_examples=examples(40))
@given(st.lists(steps, max_size=25))
def test_memory_and_sqlite_agree(script: list[tuple[str, object]]) -> None:
    async def both() -> None:
        clock = PacedClock(0.0, None)
        memory = await story(MemoryBus(clock), clock, script)
        with tempfile.TemporaryDirectory() as folder:
            clock = PacedClock(0.0, None)
            bus = SqliteBus.open(Path(folder) / "log.db", clock, durability="process_crash")
            assert await story(bus, clock, script) == memory
            bus.verify()
            await bus.close()

    asyncio.run(both())
