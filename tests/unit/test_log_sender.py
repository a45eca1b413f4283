"""An agent sends logs to whoever asks: in pieces, at its rate, until the end; and nothing else."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from bus.clock import PacedClock
from explain.reading import pieces_for
from runtime.build import Options, build
from runtime.core import NodeSpec
from runtime.executor import Machine
from runtime.logs import (
    RATE_BYTES_PER_S,
    READERS_MAX,
    LogPiece,
    LogSender,
    LogSource,
    NoLog,
    NoLogs,
)
from runtime.meters import GpuMeter
from runtime.service import AgentService
from runtime.simulated import SimulatedExecutor
from schemas.codec import Rejected
from schemas.commands import SendLog
from schemas.log_codec import decode_log
from schemas.logs import CHUNK_BYTES, LogChunk
from schemas.topics import LOGS
from tests.cluster_desk import NoMeter
from tests.heard import Step, Timed
from tests.memory_bus import MemoryBus

START_S = 1_000_000.0 - 1_000_000.0 % 60
SPEC = NodeSpec("n1", "train", "training", 1, "cpu", 0)


class Growing:
    """A log that a test writes."""

    def __init__(self) -> None:
        self.content, self.ended, self.epoch = b"", False, 1

    def read(
        self, job: str, epoch: int, rank: int, offset: int, size: int, first_epoch: int = 0
    ) -> LogPiece | NoLog:
        begin = max(0, offset if offset >= 0 else len(self.content) + offset)
        piece = self.content[begin : begin + size]
        return LogPiece(self.epoch, begin, piece, 0, len(self.content), self.ended)


class World(Timed):
    """One agent with a log."""

    def __init__(self, folder: Path) -> None:
        super().__init__(START_S)
        self.log, self.folder = Growing(), folder

    def agent(self, logs: LogSource | None = None) -> AgentService:
        meter: GpuMeter = NoMeter()
        machine = Machine(SimulatedExecutor({"n1": 1.0}), meter, logs=logs or self.log)
        file = self.folder / "a.db"
        return build("a", [SPEC], Options(), self.bus, self.clock, file, lambda *_: machine)

    def wants(self, reader: str = "r", **over: object) -> Step:
        fields = {
            "job": "j", "epoch": 1, "rank": 0, "reader": reader, "from_byte": 0,
            "max_bytes": 2**30, "follow": False, "until_s": START_S + 60.0, **over,
        }  # fmt: skip
        return partial(self.order, "a", SendLog.model_validate(fields))

    async def pieces(self, reader: str = "r") -> list[LogChunk]:
        said = [decode_log(record.value or b"") async for record in self.bus.read(LOGS.name)]
        chunks = [one.data for one in said if not isinstance(one, Rejected)]
        return [chunk for chunk in chunks if chunk.reader == reader]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def nothing() -> None:
    """Just let time pass until here."""


async def test_a_log_comes_in_pieces_in_order_and_the_last_says_so(world: World) -> None:
    world.log.content = bytes(range(256)) * 1024 + b"\xff\x00 end"
    await world.during(world.agent(), (1.0, world.wants()), (10.0, nothing))
    pieces = await world.pieces()
    assert b"".join(one.written for one in pieces) == world.log.content
    assert [one.offset for one in pieces] == [n * CHUNK_BYTES for n in range(5)]
    assert [one.end for one in pieces] == [None] * 4 + ["complete"]


async def test_whoever_follows_a_log_without_a_word_in_it_hears_that_it_is_there(
    world: World,
) -> None:
    await world.during(world.agent(), (1.0, world.wants(follow=True)), (10.0, nothing))
    assert [(one.epoch, one.written, one.end) for one in await world.pieces()] == [(1, b"", None)]


async def test_a_log_that_is_followed_goes_on_until_its_run_ends(world: World) -> None:
    async def more() -> None:
        world.log.content += b"more"

    async def ends() -> None:
        world.log.content, world.log.ended = world.log.content + b" last", True

    world.log.content = b"1 "
    await world.during(
        world.agent(), (1.0, world.wants(follow=True)), (5.0, more), (9.0, ends), (12.0, nothing)
    )
    assert [(one.written, one.end) for one in await world.pieces()] == [
        (b"1 ", None),
        (b"more", None),
        (b" last", "complete"),
    ]


async def test_whoever_does_not_ask_again_hears_no_more(world: World) -> None:
    async def more() -> None:
        world.log.content += b"more"

    asks = world.wants(follow=True, until_s=START_S + 20.0)
    again = world.wants(follow=True, until_s=START_S + 40.0)
    await world.during(world.agent(), (1.0, asks), (15.0, again), (30.0, more), (50.0, more))
    assert [(one.written, one.end) for one in await world.pieces()] == [
        (b"", None),
        (b"more", None),
        (b"", "expired"),
    ]


async def test_another_job_under_the_name_of_a_reader_is_another_reading(world: World) -> None:
    async def more() -> None:
        world.log.content += b"more"

    world.log.content = b"1 "
    mine = world.wants(follow=True)
    theirs = world.wants(job="k", rank=1, from_byte=-1, until_s=START_S + 5.0)
    await world.during(world.agent(), (1.0, mine), (3.0, theirs), (10.0, more), (12.0, nothing))
    pieces = await world.pieces()
    assert [one.written for one in pieces if one.job == "j"] == [b"1 ", b"more"]
    assert [one.written for one in pieces if one.job == "k"] == [b" "]
    read = [one async for *_, one in pieces_for(world.bus, 0, "r", "j")]
    shown = [one for one in read if one is not None]
    assert {one.job for one in shown} == {"j"}, "who reads j is shown nothing of k"


async def test_all_readers_together_get_no_more_than_the_rate(world: World) -> None:
    world.log.content = b"x" * (64 * RATE_BYTES_PER_S)
    asks = [world.wants(f"r{n}") for n in range(4)]
    steps = [(1.0, one) for one in asks]
    await world.during(world.agent(), *steps, (11.0, nothing))
    sent = [sum(len(one.written) for one in await world.pieces(f"r{n}")) for n in range(4)]
    assert 9 * RATE_BYTES_PER_S <= sum(sent) <= 11 * RATE_BYTES_PER_S
    assert max(sent) - min(sent) <= 2 * CHUNK_BYTES


async def test_one_reader_too_many_is_told_so(world: World) -> None:
    steps = [(1.0, world.wants(f"r{n}", follow=True)) for n in range(READERS_MAX + 1)]
    await world.during(world.agent(), *steps, (5.0, nothing))
    (last,) = await world.pieces(f"r{READERS_MAX}")
    assert (last.end, last.note) == ("busy", "a sends 16 logs already; try again in a minute")


async def test_while_the_link_is_down_nothing_is_kept_and_nothing_lost(world: World) -> None:
    async def down() -> None:
        world.bus.down = True
        world.log.content += b" after"

    async def up() -> None:
        world.bus.down = False

    world.log.content = b"before"
    service = world.agent()
    asks = world.wants(follow=True)
    await world.during(service, (1.0, asks), (5.0, down), (20.0, up), (30.0, nothing))
    assert b"".join(one.written for one in await world.pieces()) == b"before after"


async def test_an_agent_without_logs_says_why_and_remembers_nothing(world: World) -> None:
    service = world.agent(NoLogs("its workers are simulated, and write nothing"))
    before = dict(service.core.to_dict())
    await world.during(service, (1.0, world.wants()), (5.0, nothing))
    (only,) = await world.pieces()
    assert (only.end, only.note) == ("missing", "its workers are simulated, and write nothing")
    assert service.core.to_dict().keys() == before.keys(), "it is no command to be remembered"
    assert "CommandAcknowledged" not in await world.kinds()


async def test_an_agent_that_ends_at_once_does_not_hold_the_clock() -> None:
    clock = PacedClock(START_S, None)
    sender = LogSender(Growing(), "a", MemoryBus(clock), clock, "default")
    sender.begin(1)
    sender.end()  # before its task has run a step
    await asyncio.wait_for(clock.run_until(START_S + 1.0), 5.0)
