"""The process around the gateway: when it looks for garbage, and whom it lets go of."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from gateway import server, stream
from gateway.past import Past
from scheduler import garbage
from services.gateway_section import GatewaySection
from tests.gateway.conftest import TOKEN, Serving


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_a_gateway_looks_for_garbage_itself(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.set_threshold(700, 10, 10)  # as a process begins; the demo that made the log put looks off
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    looks: list[None] = []
    monkeypatch.setattr(garbage, "look", lambda: looks.append(None))
    monkeypatch.setattr(server, "_TIDY_S", 0.0)
    seen: list[int] = []

    def announce(_: str) -> None:
        seen.append(gc.get_threshold()[0])
        asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGINT)

    place = server.Place(
        str(log),
        lambda _: SqliteBus.open_readonly(log, SystemClock()),
        log,
        section=GatewaySection(port=0),
    )
    assert server.serve(place, announce) == 0
    assert seen == [500_000]
    assert looks


async def test_garbage_is_not_looked_for_while_a_moment_is_sought(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = Past()
    sought: list[bool] = []
    monkeypatch.setattr(garbage, "look", lambda: sought.append(past.seeking))
    monkeypatch.setattr(server, "_TIDY_S", 0.0)
    async with serving(log) as served:
        tidying = asyncio.create_task(server._tidy(past))
        await past.state(served.feed, 900)
        await served.until(lambda: sought)
        tidying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tidying
    assert not any(sought)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such limit")
async def test_who_never_reads_is_cut_off(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_STUCK_S", 1.0)
    monkeypatch.setattr(stream, "_APART_S", 0.0)
    monkeypatch.setattr(stream, "_SILENT_S", 0.0)
    monkeypatch.setattr(stream, "_event", lambda _: b":" * 10_000)
    async with serving(log) as served:
        listening = server._listening("127.0.0.1", 0)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        running = server._Server(uvicorn.Config(served.app, log_level="critical", lifespan="off"))
        task = asyncio.create_task(running.serve(sockets=[listening]))
        with listening, socket.socket() as viewer:
            viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
            viewer.connect(listening.getsockname())
            viewer.sendall(
                b"GET /api/v1/stream HTTP/1.1\r\nHost: 127.0.0.1:8321\r\n"
                b"Authorization: Bearer %s\r\n\r\n" % TOKEN.encode()
            )
            streams = served.gateway.limits
            await served.until(lambda: streams.streams == 1)
            await served.until(lambda: streams.streams == 0)
            running.should_exit = True
            await task


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_answers_are_sent_without_delay(host: str) -> None:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    def come(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer)

    async with await asyncio.start_server(come, sock=server._listening(host, 0)) as begun:
        _, writer = await asyncio.open_connection(*begun.sockets[0].getsockname()[:2])
        ours = await accepted
        sent = ours.get_extra_info("socket")
        assert sent.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for one in (ours, writer):
            one.close()
            await one.wait_closed()
