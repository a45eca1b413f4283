"""A scheduler that works on a file, beside a gateway that is asked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, TypeVar

import orjson

from explain.moments import DEMO_START_S
from schemas.topics import REQUESTS
from tests.builders import node_born, submitted
from tests.desk import Desk, open_desk
from tests.gateway.conftest import Served

CORDON = {"verb": "node.cordon", "node": "n0"}
_Found = TypeVar("_Found")


@contextlib.asynccontextmanager
async def working(folder: Path) -> AsyncIterator[tuple[Desk, Path]]:
    """A scheduler that has a node and a job, on a log that is a file."""
    async with open_desk("sqlite", folder, DEMO_START_S) as desk:
        desk.start(accept_unsigned=True)
        await desk.hears(desk.say(node_born("n0")), desk.say(submitted("j0", gpus_min=1)))
        yield desk, folder / "log.db"


async def during(desk: Desk, asked: Awaitable[_Found]) -> _Found:
    """Let the scheduler work until something is answered."""
    task = asyncio.ensure_future(asked)
    while not task.done():
        await desk.wait(0.2)
        await asyncio.sleep(0.02)
    return task.result()


async def stored(served: Served) -> list[dict[str, Any]]:
    log = served.gateway.cells.log
    return [orjson.loads(one.value or b"") async for one in log.read(REQUESTS.name)]
