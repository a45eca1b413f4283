"""An upgrade of one process while others run the release before.

The newer release is this one, but for what releases change: entries of the journal have the next
version, which the release before refuses to read, and events have a field that it does not know.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

import orjson

from runtime import service
from scheduler import journal
from schemas.codec import encode
from schemas.journal import ENTRY_VERSION, JournalEntry, chain

NEWEST = ENTRY_VERSION + 1
#: What the running process is.
RELEASE: ContextVar[int] = ContextVar("release", default=ENTRY_VERSION)


class _Known(int):
    """The newest version of an entry that the running process reads."""

    def __lt__(self, version: int) -> bool:
        return RELEASE.get() < version


def _chained(*given: Any, **named: Any) -> JournalEntry:
    return chain(*given, version=RELEASE.get(), **named)


def _encoded(envelope: Any) -> bytes:
    value = encode(envelope)
    if RELEASE.get() < NEWEST:
        return value
    message = orjson.loads(value)
    message["data"]["of_a_newer_release"] = [1.5, None]
    return orjson.dumps(message)


@contextmanager
def releases() -> Iterator[None]:
    """Let each process write and read as its release does."""
    with (
        patch.object(journal, "_VERSION", _Known(ENTRY_VERSION)),
        patch.object(journal, "chain", _chained),
        patch.object(service, "encode", _encoded),
    ):
        yield
