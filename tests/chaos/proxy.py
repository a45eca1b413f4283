"""A TCP proxy whose link can be cut, stalled, delayed or slowed: the bad network of an edge server.

It runs a loop of its own in a thread, so that nothing else in the process disturbs the link.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Self

_CHUNK = 16 * 1024


class Proxy:
    """Carries connections to one port of this machine, as well as it is told to."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._links: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._open = asyncio.Event()
        self._delay_s = 0.0
        self._bytes_per_s: float | None = None
        self.carried_bytes = 0
        #: The port that clients connect to.
        self.port = 0

    def start(self) -> Self:
        """Listen on a free port."""
        self._thread.start()
        self._do(self._listen())
        return self

    def close(self) -> None:
        """Break every connection and end."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- what can be wrong with a link ---

    def cut(self) -> None:
        """Break every connection; new ones are closed at once, until `heal`."""
        self._do(self._cut())

    def stall(self) -> None:
        """Keep connections open but carry nothing, until `heal`; no end notices."""
        self._do(self._set(is_open=False))

    def slow(self, delay_s: float, bytes_per_s: float | None = None) -> None:
        """Carry each piece this much later, and no more than so many bytes a second each way."""
        self._do(self._set(delay_s=delay_s, bytes_per_s=bytes_per_s))

    def heal(self) -> None:
        """Be a good link again; what was stalled goes on."""
        self._do(self._set())

    # --- within the thread ---

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _do(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _listen(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _set(
        self, *, is_open: bool = True, delay_s: float = 0.0, bytes_per_s: float | None = None
    ) -> None:
        self._is_cut, self._delay_s, self._bytes_per_s = False, delay_s, bytes_per_s
        if is_open:
            self._open.set()
        else:
            self._open.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # the broker is down: so is the link
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        ways = [
            asyncio.create_task(self._carry(reader, far_writer)),
            asyncio.create_task(self._carry(far_reader, writer)),
        ]
        self._links |= set(ways)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._links -= set(ways)
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(_CHUNK):
                await self._open.wait()
                await asyncio.sleep(self._delay_s)
                if self._bytes_per_s is not None:
                    await asyncio.sleep(len(piece) / self._bytes_per_s)
                writer.write(piece)
                await writer.drain()
                self.carried_bytes += len(piece)
