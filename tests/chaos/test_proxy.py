"""The proxy really is the bad network that the matrix says it is."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.chaos.proxy import Proxy
from tests.patience import PATIENCE_S


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1000):
            writer.write(piece)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_a_good_link_carries_and_a_cut_one_refuses_until_it_is_healed(echo: int) -> None:
    with Proxy(echo) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        await asyncio.to_thread(proxy.cut)
        assert await _ends(reader)
        writer.transport.abort()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await _ends(reader)
        writer.transport.abort()
        await asyncio.to_thread(proxy.heal)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"two")
        assert await reader.readexactly(3) == b"two"
        writer.transport.abort()


async def test_a_stalled_link_keeps_the_connection_and_delivers_what_was_held(echo: int) -> None:
    with Proxy(echo) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await asyncio.to_thread(proxy.stall)
        writer.write(b"held")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(4), 0.2)
        await asyncio.to_thread(proxy.heal)
        assert await asyncio.wait_for(reader.readexactly(4), PATIENCE_S) == b"held"
        writer.transport.abort()


async def test_a_slow_link_takes_its_time(echo: int) -> None:
    with Proxy(echo) as proxy:
        await asyncio.to_thread(proxy.slow, 0.1, 10_000.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        began = time.monotonic()
        writer.write(b"x" * 1000)
        await reader.readexactly(1000)
        assert time.monotonic() - began >= 2 * (0.1 + 1000 / 10_000)
        writer.transport.abort()


async def _ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
    except ConnectionError:
        return True
