"""How quickly the gateway answers of any moment: index, seeks, and reads beside many streams.

`python -m benchmarks gateway` measures a small log. Of a large one:
`python -m benchmarks.gateway --entries 1000000 --streams 1000`. Of a large cell:
`python -m benchmarks.gateway --cell 10000x50000`.
"""

import asyncio
import contextlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import httpx
import numpy as np
import uvicorn

from benchmarks import gateway_cell
from benchmarks.figures import parser_of, write
from benchmarks.replay import journal
from bus.clock import SystemClock
from bus.contract import Bus, Message, Record
from bus.sqlite import SqliteBus
from bus.sqlite_file import INSERT, encode
from gateway.app import make_app
from gateway.branches import Branches
from gateway.cells import Cells
from gateway.limits import Limits
from gateway.log import ServedLog
from gateway.past import Past
from gateway.request_context import Gateway
from gateway.subjects import LocalToken, Role
from gateway.verifying import Verifying
from schemas.journal import JournalEntry, chain, decode_entry, encode_entry
from schemas.parse import Rejected
from schemas.topics import JOURNAL

#: Facts that may be told again of the same state: what the journal is extended by.
_AGAIN = {"CycleRan", "JobExplained", "LoadObserved"}
_SEEKS = 100
_ROWS = 5000


def extend(path: Path, records: list[Record], entries: int) -> None:
    """Let a day's journal go on with entries of its own kinds that change no life cycle."""
    read = [decode_entry(record.value or b"") for record in records]
    known = [entry for entry in read if not isinstance(entry, Rejected)]
    again = [
        entry
        for entry in known
        if {kind for kind, _ in entry.decision.get("facts", ())} <= _AGAIN and entry.number
    ]

    def go_on() -> Iterator[JournalEntry]:
        digest, at_s = known[-1].digest, known[-1].at_s
        for number in range(len(known), entries):
            like, at_s = again[number % len(again)], at_s + 7.0
            entry = chain(digest, number, at_s, like.stimulus, like.decision, policy=like.policy)
            digest = entry.digest
            yield entry

    append(path, go_on())


def append(path: Path, entries: Iterator[JournalEntry]) -> None:
    """Write entries behind those of a log's journal, whose offsets are their numbers."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (topic,) = connection.execute(
            "SELECT id FROM topics WHERE name = ?", (JOURNAL.name,)
        ).fetchone()
        for some in batched(entries, _ROWS):
            connection.execute("BEGIN")
            for entry in some:
                message = Message(JOURNAL.name, "default", encode_entry(entry))
                row = encode(JOURNAL.name, topic, entry.number, message, entry.at_s, 0)
                connection.execute(INSERT + "(?, ?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute(
                "UPDATE topics SET next = ? WHERE id = ?", (some[-1].number + 1, topic)
            )
            connection.execute("COMMIT")


def batched(entries: Iterator[JournalEntry], size: int) -> Iterator[list[JournalEntry]]:
    """Give lists of so many, and what is left in a last one."""
    while some := list(islice(entries, size)):
        yield some


class Unlimited(Limits):
    """The one who measures is one subject, and stands for many."""

    def read(self, subject: str) -> None:
        """Let it."""

    @contextlib.contextmanager
    def stream(self, subject: str) -> Iterator[None]:
        """Let it."""
        yield


def _opened(path: Path, _: str) -> Bus:
    return SqliteBus.open_readonly(path, SystemClock())


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """Serve a log on a port, as `tidegate serve` does."""
    clock = SystemClock()
    log = ServedLog(str(path), lambda: SqliteBus.open_readonly(path, clock), path, path.parent)
    authority = LocalToken(Role.OPERATOR, 0)
    limits = Unlimited(clock)
    opening = partial(_opened, path)
    branches, verifying = Branches(opening), Verifying(opening)
    cells = Cells(log, clock)
    gateway = Gateway(cells, Past(), limits, authority, clock, "", branches, verifying)
    server = uvicorn.Server(
        uvicorn.Config(make_app(gateway), port=0, log_level="critical", timeout_graceful_shutdown=1)
    )
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    headers = {"Authorization": f"Bearer {authority.token}"}
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, timeout=60
        ) as client:
            yield gateway, client
    finally:
        server.should_exit = True
        await running


async def _follow(client: httpx.AsyncClient, seen: list[int]) -> None:
    async with client.stream("GET", "/stream", timeout=None) as events:
        async for line in events.aiter_lines():
            seen += [1] * line.startswith("event: head")


def _quantiles(name: str, times_s: list[float]) -> dict[str, float]:
    ms = np.array(times_s) * 1000
    return {f"{name}_{q}_ms": float(np.percentile(ms, int(q[1:]))) for q in ("p50", "p95")}


async def _measure(path: Path, streams: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    began_s = time.perf_counter()
    async with serving(path) as (gateway, client):
        cells = gateway.cells
        while not cells.feeds or (feed := cells.feed(None)).live is None or feed.building:
            await asyncio.sleep(0.01)
        figures["gateway_entries"] = feed.entries
        figures["gateway_index_build_s"] = time.perf_counter() - began_s
        figures["gateway_index_mib"] = feed.index.bytes / 2**20
        chance = np.random.default_rng(1)
        times_s = []
        for number in chance.integers(1, feed.entries, _SEEKS):
            began_s = time.perf_counter()
            await gateway.past.state(feed, int(number))
            times_s.append(time.perf_counter() - began_s)
        figures |= _quantiles("gateway_seek", times_s)
        seen: list[int] = []
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=client.base_url, headers=client.headers, limits=limits
        ) as followers:
            following = [asyncio.create_task(_follow(followers, seen)) for _ in range(streams)]
            while len(seen) < streams:
                await asyncio.sleep(0.05)
            times_s = []
            for number in chance.integers(1, feed.entries, _SEEKS):
                began_s = time.perf_counter()
                answer = await client.get("/overview", params={"entry": int(number)})
                times_s.append(time.perf_counter() - began_s)
                answer.raise_for_status()
            figures |= _quantiles(f"gateway_past_overview_{streams}_streams", times_s)
            times_s = []
            for _ in range(_SEEKS):
                began_s = time.perf_counter()
                (await client.get("/overview")).raise_for_status()
                times_s.append(time.perf_counter() - began_s)
            figures |= _quantiles(f"gateway_overview_{streams}_streams", times_s)
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)
    began_s = time.perf_counter()
    async with serving(path) as (gateway, _):
        cells = gateway.cells
        while not cells.feeds or cells.feed(None).live is None or cells.feed(None).building:
            await asyncio.sleep(0.01)
        figures["gateway_begin_again_s"] = time.perf_counter() - began_s
    return figures


def run(seconds: float, entries: int = 20_000, streams: int = 50) -> dict[str, float]:
    """Measure a log of half a demo's day that goes on until it has so many entries."""
    del seconds  # the log is the measure
    with tempfile.TemporaryDirectory() as folder:
        records = journal(Path(folder), "tide")
        path = Path(folder) / "tide.db"
        extend(path, records, entries)
        return asyncio.run(_measure(path, streams))


def main() -> int:
    parser = parser_of("gateway", __doc__)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--cell", help="NODESxJOBS: instead, of a cell of this size")
    parser.add_argument("--minutes", type=int, default=30, help="of the cell's work (30)")
    parser.add_argument("--log", type=Path, help="of the cell whose log this is, written before")
    options = parser.parse_args()
    if options.cell is not None:
        nodes, _, jobs = options.cell.partition("x")
        figures = gateway_cell.run(int(nodes), int(jobs), options.minutes, options.log)
    else:
        figures = run(0.0, options.entries, options.streams)
    write(options.json or "-", **figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
