"""An answer that lasts keeps its allowance from when it is let in: none breaks off."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Message

from gateway import routes_journal
from gateway.limits import Limits
from gateway.subjects import Role, Subject
from tests.gateway.conftest import Served, Serving

WHO = Subject("local", Role.OPERATOR)
PLAIN = Request({"type": "http", "headers": []})


async def trace(served: Served) -> StreamingResponse:
    found = await routes_journal.perfetto(PLAIN, served.gateway, WHO)
    assert isinstance(found, StreamingResponse)
    return found


async def stream(served: Served) -> StreamingResponse:
    found = await routes_journal.stream(PLAIN, served.gateway, WHO)
    assert isinstance(found, StreamingResponse)
    return found


@pytest.mark.parametrize(
    ("begin", "held"),
    [(trace, lambda limits: limits._seeks.total()), (stream, lambda limits: limits.streams)],
)
async def test_it_is_held_until_the_answer_is_over(
    log: Path,
    serving: Serving,
    begin: Callable[[Served], Awaitable[StreamingResponse]],
    held: Callable[[Limits], int],
) -> None:
    async with serving(log) as served:
        limits = served.gateway.limits
        answer = await begin(served)
        assert held(limits) == 1, "others may come before it is begun"

        async def leave() -> Message:
            return {"type": "http.disconnect"}

        async def send(_: Message) -> None:
            assert held(limits) == 1

        await answer({"type": "http", "asgi": {"spec_version": "2.3"}}, leave, send)
        assert held(limits) == 0
        assert (await served.raw("perfetto", since="2200-01-01T00:00:00Z")).status_code == 404
        assert held(limits) == 0, "nor does one that is refused hold it"
