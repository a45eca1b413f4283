"""What is new, as server-sent events: `head` each time a cell has a new entry, with its number."""

import asyncio
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

import orjson
from starlette.datastructures import Headers

from gateway.cells import facts
from gateway.feed import Feed
from gateway.problems import Problem
from gateway.request_context import Gateway
from gateway.subjects import Subject, recognised

#: A stream says something at least so often, in seconds: who went away is noticed by that.
_SILENT_S = 15.0
#: At most one event in so many seconds.
_APART_S = 0.5
#: Of each cell, the newest event and what it was made of. It has no names: all see the same.
_NEWEST: WeakKeyDictionary[Feed, tuple[tuple[object, ...], bytes]] = WeakKeyDictionary()
#: How often it is asked again who is there, in seconds.
_CHECK_S = 60.0


async def heads(
    here: Gateway, feed: Feed, who: Subject, headers: Headers, last: str | None
) -> AsyncIterator[bytes]:
    """Give the events, each as it goes over the wire; `last` is the id of the last one seen."""
    yield b": follow this stream instead of polling\nretry: 2000\n\n"
    seen = last
    checked_s = here.clock.now_s()
    while not here.closing.is_set():
        current = _id(feed)
        if (feed.problem or current) != seen:
            seen = feed.problem or current
            yield _event(feed)
            await asyncio.sleep(_APART_S)
        elif not await here.cells.changed(feed.name, _SILENT_S):
            yield b": nothing new\n\n"
        if not 0.0 <= here.clock.now_s() - checked_s < _CHECK_S:
            checked_s = here.clock.now_s()
            if await _now(here, headers) != who:
                yield b"event: end\ndata: sign in again\n\n"
                return


def _id(feed: Feed) -> str:
    """Name what is told: the newest entry, and that nobody goes on from there if so."""
    return f"{feed.entries - 1}{'-nobody' if feed.nobody else ''}"


def _event(feed: Feed) -> bytes:
    """Give the event of where a cell is, written once for all who follow it."""
    known, event = _NEWEST.get(feed, (None, b""))
    if known != feed.told_by:
        data = orjson.dumps(facts(feed))
        event = b"id: %s\nevent: head\ndata: %s\n\n" % (_id(feed).encode(), data)
        _NEWEST[feed] = (feed.told_by, event)
    return event


async def _now(here: Gateway, headers: Headers) -> Subject | None:
    """Give who it is by now: a token ends, a robot is revoked, a binding is taken away."""
    try:
        return await recognised(here.authority, headers)
    except Problem:
        return None
