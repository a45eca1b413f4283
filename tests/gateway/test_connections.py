"""Connections over which nothing is asked, and how many there may be."""

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway import connections
from gateway.connections import Connection
from tests.patience import PATIENCE_S

HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
#: Of a request's head, in this test.
HEAD_S = 0.5


async def slow(_: Scope, receive: Receive, send: Send) -> None:
    """Answer after longer than a head may take."""
    await receive()
    await asyncio.sleep(2 * HEAD_S)
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[int]:
    config = uvicorn.Config(slow, http=Connection, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    with socket.socket() as here:
        here.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([here]))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not server.started:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            yield here.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


@pytest.mark.parametrize("said", [b"", HEAD[:20], HEAD + HEAD[:20]])
async def test_who_does_not_say_what_it_wants_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", HEAD_S)
    async with listening() as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        answers = await reader.read()
        assert answers.count(b"200 OK") == said.count(HEAD)
        writer.close()


async def test_who_waits_for_an_answer_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", HEAD_S)
    async with listening() as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            for part in (HEAD[:20], HEAD[20:]):
                writer.write(part)
                await writer.drain()
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_of_too_many_the_newest_is_cut_off_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds thousands of them keeps the gateway from opening its log, else."""
    monkeypatch.setattr(Connection, "most", 3)
    async with listening() as port, asyncio.timeout(PATIENCE_S):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for one, _ in held:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.read(), 0.05)
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await asyncio.wait_for(reader.read(), 5.0) == b""
            writer.close()
        _, leaving = held.pop()
        leaving.close()
        answered = b""
        while not answered:  # it is noticed a moment later
            with contextlib.suppress(ConnectionError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(HEAD)
                answered = await reader.read(15)
                writer.close()
        assert answered == b"HTTP/1.1 200 OK"
        for _, leaving in held:
            leaving.close()


async def test_that_none_can_be_taken_is_said_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Asyncio said it, with a traceback, up to 2,048 times a second: a megabyte."""
    loop, shortage = asyncio.get_running_loop(), connections.Shortage()
    context = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(24, "Too many open files"),
    }
    for _ in range(2048):
        shortage(loop, context)
    (said,) = caplog.records
    assert "Too many open files" in said.getMessage()
    assert "ulimit -n" in said.getMessage()
    shortage(loop, {"message": "another thing"})
    assert "another thing" in caplog.records[-1].getMessage()


def test_a_process_may_have_more_open_than_a_shell_allows() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    says = (
        "import resource; from gateway.connections import allow_many;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}));"
        "allow_many(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    found = subprocess.run([sys.executable, "-c", says], check=True, capture_output=True, text=True)
    soft, kept = map(int, found.stdout.split())
    assert kept == hard
    assert soft >= 4096 or soft == hard
