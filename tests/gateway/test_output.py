"""What workers write, as a gateway shows it: it looks through others' pieces in turns."""

import asyncio
from pathlib import Path

from bus.contract import Message
from bus.sqlite import SqliteBus
from schemas.codec import encode
from schemas.log_codec import log_chunk
from schemas.logs import CHUNK_BYTES, LogChunk
from schemas.topics import LOGS
from tests.desk import Desk
from tests.gateway.conftest import Serving
from tests.gateway.working import working

_COUNT = 120
_CONTENT = "QUFB" * (CHUNK_BYTES // 3)


async def publish(desk: Desk, number: int, reader: str, content: str) -> None:
    piece = LogChunk(
        agent="a", reader=reader, job="j0", epoch=1, rank=0, offset=number, content=content
    )
    said = encode(log_chunk(piece, sequence=number, bootid=1, time_s=desk.clock.now_s()))
    await desk.bus.publish(Message(LOGS.name, "default", said))


async def test_one_answer_looks_through_few_megabytes_and_none_is_left_out(
    tmp_path: Path, serving: Serving
) -> None:
    """A tenant who asks from the log's beginning, 20 times a second, keeps nobody else waiting."""
    async with working(tmp_path) as (desk, log), serving(log) as served:
        for number in range(_COUNT):
            await publish(desk, number, "others", _CONTENT)
        await publish(desk, _COUNT, "mine", "QUFB")
        after, found, answers = 0, list[int](), 0
        while after <= _COUNT:
            turns = 0
            asked = asyncio.ensure_future(served.get("jobs/j0/output", reader="mine", after=after))
            while not asked.done():
                await asyncio.sleep(0)
                turns += 1
            answer = asked.result()
            assert 0 < answer["next"] - after <= 64, "64 KiB each, and no more than 4 MiB"
            assert turns > 3
            after, answers = answer["next"], answers + 1
            found += [piece["offset"] for piece in answer["pieces"]]
        assert (found, after) == ([_COUNT], _COUNT + 1)
        assert answers >= 2


async def test_large_records_of_a_file_are_read_few_at_a_time(tmp_path: Path) -> None:
    async with working(tmp_path) as (desk, _):
        assert isinstance(desk.bus, SqliteBus)
        for number in range(_COUNT):
            await publish(desk, number, "r", _CONTENT)
        pages: list[int] = []
        fetch = desk.bus.fetch

        def noting(*asked: object) -> object:
            records, offset = fetch(*asked)  # type: ignore[arg-type]
            pages.append(len(records))
            return records, offset

        desk.bus.fetch = noting  # type: ignore[method-assign, assignment]
        read = [record.offset async for record in desk.bus.read(LOGS.name)]
        assert read == [*range(_COUNT)]
        assert max(pages) <= 32
