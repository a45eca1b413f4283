"""Strict JSON, and what is said of bytes that cannot be read.

Stricter than most parsers: no NaN, no BOM, no repeated keys. Two readers that disagree about a
repeated key would disagree about the message.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from reprlib import Repr
from typing import Any, Literal

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from schemas.values import PATTERNS_SAY

RejectedKind = Literal[
    "malformed", "oversized", "unknown_type", "newer_version", "invalid_field", "misplaced"
]


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why bytes are not a message that may be used here."""

    kind: RejectedKind
    #: Dotted path such as `data.gpu_power_w[3]`; empty for the whole message.
    field: str
    #: What is wrong, in words.
    reason: str


def parse_object(value: bytes, limit_bytes: int) -> dict[str, Any] | Rejected:
    """Parse one JSON object of at most `limit_bytes`."""
    if len(value) > limit_bytes:
        reason = f"is {len(value)} bytes long, the limit is {limit_bytes}"
        return Rejected("oversized", "", reason)
    if not value:
        return Rejected("malformed", "", "is empty")
    try:
        raw = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        return Rejected("malformed", "", f"is not JSON: {error}")
    if not isinstance(raw, dict):
        return Rejected("malformed", "", f"must be a JSON object, is a {type(raw).__name__}")
    return raw


def repeated_key(value: bytes, raw: dict[str, Any]) -> Rejected | None:
    """Find a key that occurs twice in one object; `raw` is `value` parsed.

    Every key but those before white space is followed by `":`. So, where no colon follows white
    space, as many `":` as parsed keys means that no key was dropped. Counting is a hundred times
    cheaper than parsing again, which is done only when the count leaves doubt.
    """
    count = value.count(b'":')
    data = raw.get("data")
    if count != len(raw) + (len(data) if isinstance(data, dict) else 0) and count != _keys(raw):
        return _search_repeated(value)
    for space in (b" ", b"\n", b"\t", b"\r"):
        if space in value and space + b":" in value:
            return _search_repeated(value)
    return None


def _keys(raw: dict[str, Any]) -> int:
    count = 0
    stack: list[Any] = [raw]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            count += len(node)
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return count


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written, repeated keys and all."""


def _search_repeated(value: bytes) -> Rejected | None:
    try:
        tree = json.loads(value.decode(), object_pairs_hook=_Pairs, parse_int=str)
    except (ValueError, RecursionError):
        return Rejected("malformed", "", "is nested too deeply")
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), tree)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, _Pairs):
            seen = set()
            for key, child in node:
                if key in seen:
                    return Rejected("malformed", dotted((*path, key)), "occurs twice")
                seen.add(key)
                stack.append(((*path, key), child))
        elif isinstance(node, list):
            stack.extend(((*path, index), child) for index, child in enumerate(node))
    return None


def dotted(path: tuple[str | int, ...]) -> str:
    """Write a path as `data.rates[2].gpus`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def first_error(error: ValidationError, *within: str) -> Rejected:
    """Say the first thing that is wrong with a field, and what was there.

    Args:
        error: What pydantic found.
        within: The path to the part that was validated; empty for the whole message.
    """
    return said_of(error.errors(include_url=False)[0], *within)


def said_of(detail: ErrorDetails, *within: str) -> Rejected:
    """Say one of the things that pydantic found."""
    path = (*within, *detail["loc"])
    if detail["type"] == "missing":
        return Rejected("invalid_field", dotted(path), "is missing")
    if detail["type"] == "value_error":
        # A check across fields names the field first: "gpus_max: must be at least gpus_min".
        text = str(detail["ctx"]["error"])
        named = _NAMED.match(text)
        if named:
            return Rejected("invalid_field", dotted((*path, named[1])), named[2])
        return Rejected("invalid_field", dotted(path), text)
    reason = detail["msg"].removeprefix("Input ")
    reason = PATTERNS_SAY.get(detail.get("ctx", {}).get("pattern", ""), reason)
    return Rejected("invalid_field", dotted(path), f"{reason}, got {shown(detail['input'])}")


_NAMED = re.compile(r"([a-z][a-z0-9_]*): (.+)", re.DOTALL)
_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 60
_REPR.maxlevel = 2
_REPR.maxlist = _REPR.maxdict = 3


def shown(value: object) -> str:
    """Show a value of any size in one short line."""
    return _REPR.repr(value)[:200]


_VERSIONED = re.compile(r"(?P<base>.+)\.v(?P<number>0|[1-9][0-9]{0,8})")


def wrong_type(raw: dict[str, Any], wanted: Collection[str], others: Collection[str]) -> Rejected:
    """Say why a message whose type is not one of `wanted` cannot be read here.

    Args:
        raw: The message.
        wanted: Types that this reader takes.
        others: Types that exist, but belong elsewhere.
    """
    if "type" not in raw:
        return Rejected("invalid_field", "type", "is missing")
    name = raw["type"]
    if not isinstance(name, str):
        return Rejected("invalid_field", "type", f"should be a string, got {shown(name)}")
    if name in others:
        return Rejected("misplaced", "type", f"{name} does not belong on this topic")
    match = _VERSIONED.fullmatch(name)
    if match:
        numbers = [
            int(known["number"])
            for known in map(_VERSIONED.fullmatch, (*wanted, *others))
            if known and known["base"] == match["base"]
        ]
        if numbers and int(match["number"]) > max(numbers):
            reason = f"{shown(name)} was written by a newer Tidegate; upgrade this one"
            return Rejected("newer_version", "type", reason)
    return Rejected("unknown_type", "type", f"{shown(name)} is not a type of Tidegate")
