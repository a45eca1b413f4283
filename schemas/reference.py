"""Writes docs/events.md from the models and the table of topics.

python -m schemas.reference            write it
python -m schemas.reference --check    exit 1 if it is not what the models say
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from schemas import topics
from schemas.commands import COMMANDS
from schemas.events import EVENTS, TELEMETRY
from schemas.horizon import HorizonReached
from schemas.journal import CellState, JournalEntry, SnapshotPiece, SnapshotTaken
from schemas.logs import LogChunk
from schemas.pages import DOCS, keep
from schemas.requests import Request
from schemas.values import Name, Strict

PAGE = DOCS / "events.md"
_HEAD = """\
# Events, requests and commands

Made by `python -m schemas.reference` from the models in `schemas`; change them there. Agents
say what happened (events), people say what they want (requests), the scheduler says what shall be
(commands). Each message is one
CloudEvent in JSON, the same bytes on every hop: [the envelope](mqtt-device.md#the-envelope) says
which attributes; here is what its `data` holds. For programs there are a JSON Schema of each type
(`schemas/jsonschema`) and an AsyncAPI document (`schemas/asyncapi.json`).

The number at the end of a type is the version of its `data`. A new optional field keeps the
version, and readers pass over fields that they do not know. A field whose name ends in `_s` holds
seconds, in `_mib` MiB. Null is "not known", never zero. A *name* has letters, digits and `._:-`, at
most 128 in all, the first a letter or a digit. What is not required may be left out.
"""
_GROUPS: tuple[tuple[str, tuple[type[Strict], ...]], ...] = (
    ("Events", tuple(event for event in EVENTS if event not in TELEMETRY)),
    ("Telemetry", TELEMETRY),
    ("Requests", (Request,)),
    ("Commands", COMMANDS),
    ("Logs of jobs", (LogChunk,)),
    (
        "What the scheduler and bridges write down",
        (JournalEntry, SnapshotTaken, SnapshotPiece, CellState, HorizonReached),
    ),
)
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_NO_BOUND = 1e8  #: From here on a bound only keeps out what is no figure.
_NAME = TypeAdapter[str](Name).json_schema()
_TABLE = "| field | type | default | meaning |\n|---|---|---|---|\n"


def page() -> str:
    """Give the text of the page."""
    return "".join([_HEAD, *_topics(), *_messages()])


def _topics() -> Iterator[str]:
    yield "\n## Topics\n\n"
    yield "Over MQTT a bridge carries them: [addresses](mqtt-device.md#addresses).\n\n"
    yield "| topic | keyed by | kept |\n|---|---|---|\n"
    for topic in topics.ALL_TOPICS.values():
        days = None if topic.retention_s is None else topic.retention_s / 86_400
        kept = "for good" if days is None else f"{days:g} days" if days >= 1 else f"{days * 24:g} h"
        kept = "the newest of each key" if topic.compacted else kept
        yield f"| `{topic.name}` | {topic.key} | {kept} |\n"
    yield "\nA topic that ends in `.dlq` holds the dead letters of the one before the dot.\n"


def _messages() -> Iterator[str]:
    parts: dict[str, Any] = {}
    for title, payloads in _GROUPS:
        yield f"\n## {title}\n"
        for payload in payloads:
            schema = payload.model_json_schema()
            parts |= schema.pop("$defs", {})
            yield f"\n### `{payload.TYPE}`\n\n{_fields(schema)}"
    yield "\n## Parts\n"
    for name, schema in sorted(parts.items()):
        yield f"\n### `{name}`\n\n{_fields(schema)}"


def _fields(schema: Any) -> str:
    """Give what a model is, and the table of its fields."""
    about = schema.get("description", "").strip()
    rows = []
    for name, field in schema.get("properties", {}).items():
        default = field.get("default")
        blank = default is None or default in ("", [], {})
        needed = name in schema.get("required", ())
        shown = "required" if needed else "" if blank else f"`{json.dumps(default)}`"
        meaning = field.get("description", "")
        meaning = "" if meaning == _NAME["description"] else " ".join(meaning.split())
        cells = (f"`{name}`", _type(field), shown, meaning)
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n")
    return f"{about}\n" + ("".join(["\n", _TABLE, *rows]) if rows else "")


def _type(at: Any) -> str:
    """Say in words what a value must be."""
    if "$ref" in at:
        name = at["$ref"].rsplit("/", 1)[-1]
        return f"[`{name}`](#{name.lower()})"
    if "anyOf" in at:
        return " or ".join(_type(one) for one in at["anyOf"])
    if "enum" in at or "const" in at:
        return ", ".join(f"`{json.dumps(one)}`" for one in at.get("enum", [at.get("const")]))
    kind: str = at.get("type", "anything")
    if kind in ("integer", "number"):
        bounds = [f"{said} {at[key]:g}" for key, said in _BOUNDS.items() if key in at]
        return ", ".join([kind, *(one for one in bounds if float(one.split()[-1]) < _NO_BOUND)])
    if kind == "array":
        return f"list of {_type(at['items'])}" if at.get("items") else "list"
    if at.get("pattern") == _NAME["pattern"]:
        return "name"
    return {"object": "table", "boolean": "true or false"}.get(kind, kind)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or say whether it is as it should be."""
    return keep("schemas.reference", {PAGE: page()}, arguments)


if __name__ == "__main__":
    sys.exit(main())
