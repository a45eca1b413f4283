"""Cursors: where the next page begins, and of which moment and question it is."""

import base64
import binascii
import hashlib
from dataclasses import astuple, dataclass

import orjson

from gateway.problems import Problem

_VERSION = 1
_CHECK = 6
_NEXT = "; leave cursor out, and begin again at the first page"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place between two pages."""

    question: str  #: What was asked; see `question`.
    entries: int  #: All pages are of the state after so many entries.
    log: str  #: Of which log: a part of the last entry's digest.
    position: int  #: Where the next page begins.

    def text(self) -> str:
        """Write it."""
        body = orjson.dumps([_VERSION, *astuple(self)])
        return base64.urlsafe_b64encode(_check(body) + body).decode().rstrip("=")


def question(route: str, *asked: object) -> str:
    """Name a question: its route, and all that tells which rows it has in which order."""
    return hashlib.blake2b(repr((route, asked)).encode(), digest_size=6).hexdigest()


def read(text: str, asked: str) -> Cursor:
    """Read a cursor.

    Raises:
        Problem: 400, it is torn, of another release, or of another question.
    """
    try:
        raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        body = raw[_CHECK:]
        if raw[:_CHECK] != _check(body):
            raise ValueError
        version, *fields = orjson.loads(body)
    except (ValueError, TypeError, binascii.Error, UnicodeEncodeError):
        raise changed() from None
    if version != _VERSION or len(fields) != 4:
        raise bad(f"the cursor is of another release of the gateway{_NEXT}")
    # Its check has no key, so that anybody can write one: what is in it may be anything.
    if not (_is_count(fields[1]) and isinstance(fields[2], str) and _is_count(fields[3])):
        raise changed()
    cursor = Cursor(*fields)
    if cursor.question != asked:
        raise bad(
            "the cursor is of another question; repeat the parameters that it was given for, or "
            "leave it out"
        )
    return cursor


def bad(detail: str) -> Problem:
    """Refuse a cursor."""
    return Problem(400, detail, parameter="cursor")


def changed() -> Problem:
    """Refuse a cursor that is not as it was given."""
    return bad(f"the cursor is torn or was changed{_NEXT}")


def foreign() -> Problem:
    """Refuse a cursor of another log."""
    return bad(f"the cursor is of another log{_NEXT}")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= 2**53


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK).digest()
