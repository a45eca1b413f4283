"""A stretch of a cell as a trace for Perfetto, written while the log is read."""

import asyncio
import contextlib
import math
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import orjson

from bus.contract import Unreadable
from explain.perfetto import HEAD, TAIL, Trace, line, lines
from gateway.feed import Feed, from_mark
from gateway.past import chained, guarded, last_before, reachable
from gateway.problems import Problem
from scheduler.core.state import ClusterState
from scheduler.journal import folding
from schemas.journal import RawEntry

#: The most entries of one trace: a day of a large cell. More would keep the gateway busy for long.
ENTRIES = 200_000
#: Entries after which the event loop runs others.
_TURN = 20
#: The least that is sent at once.
_PIECE_BYTES = 64 * 1024


async def stretch(feed: Feed, since_s: float | None, until_s: float | None) -> tuple[int, int]:
    """Find the numbers of the first entry of a stretch, and of the one after its last.

    Raises:
        Problem: there is nothing in between, or too much.
    """
    begin = 0
    if since_s is not None:
        begin = await last_before(feed, math.nextafter(since_s, -math.inf)) + 1
    begin = max(begin, feed.index.first)
    end = feed.entries if until_s is None else await last_before(feed, until_s) + 1
    if begin >= end:
        raise Problem(404, "there is no entry between since and until; leave one of the two out, "
                      "or both", parameter="since")  # fmt: skip
    if end - begin > ENTRIES:
        raise Problem(400, f"there are {end - begin:,} entries between since and until, and a "
                      f"trace has {ENTRIES:,} at most; name a shorter stretch. `tidegate journal "
                      "perfetto` has no bound", parameter="since")  # fmt: skip
    return begin, end


async def drawn(
    feed: Feed, begin: int, end: int, since_s: float | None, until_s: float | None
) -> AsyncGenerator[bytes, None]:
    """Write the trace of a stretch, piece by piece.

    Raises:
        Problem: the log cannot be read now. Before the first piece it is an answer; later the
            answer breaks off.
    """
    trace = Trace(feed.cell, feed.origin_s)
    goes_on = end < feed.entries
    piece, count, last_s = HEAD, 0, feed.origin_s
    entries = _folded(feed, begin, end)
    state, _, _ = await guarded(feed, lambda: anext(entries))
    async with contextlib.aclosing(entries):
        at_s = max(state.now_s if begin else feed.origin_s, since_s or 0.0)
        for number, event in enumerate(trace.begin(state, at_s)):
            piece += line(event, is_first=number == 0)
        async for state, entry, decision in entries:
            assert entry is not None
            stimulus, last_s = orjson.loads(entry.stimulus), entry.at_s
            piece += lines(trace.take(state, entry.number, entry.at_s, stimulus, decision))
            count += 1
            if len(piece) >= _PIECE_BYTES:
                yield piece
                piece = b""
            if count % _TURN == 0:
                await asyncio.sleep(0)
        until_s = last_s if until_s is None or not goes_on else until_s
        yield piece + lines(trace.end(state, until_s)) + TAIL


async def _folded(
    feed: Feed, begin: int, end: int
) -> AsyncGenerator[tuple[ClusterState, RawEntry | None, dict[str, Any]], None]:
    """Give the state before an entry, then after each, up to before that of number `end`.

    The state is the caller's alone, and goes on from one to the next.

    Raises:
        Unreadable: the log cannot be read so far any more.
    """
    mark = feed.index.mark_before(begin)
    reachable(feed, begin - (feed.index.entries if mark is None else mark.place.number))
    fold = await from_mark(feed.cell, mark)
    await fold.go_on(feed.log, feed.end, until=begin)
    state = fold.state
    if state.number != begin:
        raise Unreadable(f"it has no entry {state.number} any more")
    yield state, None, {}
    async with contextlib.aclosing(chained(feed, begin)) as entries:
        async for entry in entries:
            if entry.number >= end:
                return
            if entry.number >= begin:
                decision = orjson.loads(entry.decision)
                for _ in folding(state, entry, decision):
                    await asyncio.sleep(0)
                yield state, entry, decision


async def packed(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Write pieces as gzip does."""
    packing = zlib.compressobj(6, zlib.DEFLATED, 31)
    async for piece in pieces:
        if written := packing.compress(piece):
            yield written
    yield packing.flush()
