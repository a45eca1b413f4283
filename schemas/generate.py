"""Writes the published form of the schemas: JSON Schema 2020-12 per message, and AsyncAPI 3.

python -m schemas.generate            write schemas/jsonschema/ and schemas/asyncapi.json
python -m schemas.generate --check    exit 1 if they are not what the models say
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from schemas import topics
from schemas.codec import MESSAGES
from schemas.commands import COMMANDS
from schemas.envelope import CONTENT_TYPE
from schemas.events import EVENTS, TELEMETRY
from schemas.horizon import HorizonReached
from schemas.journal import CellState, JournalEntry, SnapshotPiece, SnapshotTaken
from schemas.logs import LogChunk
from schemas.pages import keep
from schemas.requests import Request
from schemas.values import Strict

HERE = Path(__file__).parent

#: By the end of a field's name, its unit; the first that fits counts.
UNITS: Mapping[str, str] = {
    "_mib_per_s": "MiB/s",
    "_per_s": "1/s",
    "_gpu_s": "GPU s",
    "_mib": "MiB",
    "_s": "s",
    "_c": "°C",
    "_w": "W",
}
_WRITTEN: tuple[type[Strict], ...] = (
    JournalEntry,
    SnapshotTaken,
    SnapshotPiece,
    CellState,
    HorizonReached,
)
_DOWN: tuple[type[Strict], ...] = (*COMMANDS, HorizonReached)
_SAID: tuple[type[Strict], ...] = (*EVENTS, *COMMANDS, Request, LogChunk, *_WRITTEN)
_PAYLOADS = {payload.TYPE: payload for payload in _SAID}
#: What each topic carries.
_ON_TOPIC: Mapping[str, tuple[type[Strict], ...]] = {
    topics.TELEMETRY.name: TELEMETRY,
    topics.EVENTS.name: tuple(event for event in EVENTS if event not in TELEMETRY),
    topics.REQUESTS.name: (Request,),
    topics.COMMANDS.name: COMMANDS,
    topics.LOGS.name: (LogChunk,),
    topics.JOURNAL.name: (JournalEntry,),
    topics.SNAPSHOTS.name: (SnapshotTaken, SnapshotPiece),
    topics.CELLS.name: (CellState,),
}
#: By topic, what the scheduler does there: an AsyncAPI document speaks for one application.
_SCHEDULER_RECEIVES = (topics.TELEMETRY.name, topics.EVENTS.name, topics.REQUESTS.name)


def documents() -> dict[Path, str]:
    """Give every generated file, and its text."""
    pages: dict[Path, Any] = {
        HERE / "jsonschema" / f"{name}.json": _json_schema(name) for name in MESSAGES
    }
    pages[HERE / "asyncapi.json"] = _asyncapi()
    return {
        path: json.dumps(page, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for path, page in sorted(pages.items())
    }


def _json_schema(name: str) -> dict[str, Any]:
    schema = MESSAGES[name].model_json_schema(mode="validation")
    _tidy(schema)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = f"urn:tidegate:schema:{name}"
    schema["title"] = name
    schema["description"] = _summary(_PAYLOADS[name])
    return schema


def _tidy(node: object) -> None:
    """Take out pydantic's made-up titles and name the units."""
    if isinstance(node, list):
        for part in node:
            _tidy(part)
    if not isinstance(node, dict):
        return
    for name, field in node.get("properties", {}).items():
        field.pop("title", None)
        unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), None)
        if unit is not None:
            field["x-unit"] = unit
    for part in node.values():
        _tidy(part)


def _summary(payload: type[Strict]) -> str:
    return " ".join((payload.__doc__ or "").split())


def _asyncapi() -> dict[str, Any]:
    channels = {_id(topic.name): _topic(topic) for topic in topics.ALL_TOPICS.values()}
    operations = {
        f"{_action(topic)}_{_id(topic.name)}": {
            "action": _action(topic),
            "channel": {"$ref": f"#/channels/{_id(topic.name)}"},
            "summary": f"The scheduler {_action(topic)}s on `{topic.name}`.",
        }
        for topic in topics.ALL_TOPICS.values()
        if topic is not topics.LOGS  # agents send those, and people read them
    }
    mqtt: dict[str, tuple[str, str, tuple[str, ...], tuple[type[Strict], ...]]] = {
        "mqtt_up": ("receive", topics.MQTT_UP, topics.MQTT_UP_KINDS, (*EVENTS, LogChunk)),
        "mqtt_down": ("send", topics.MQTT_DOWN, topics.MQTT_DOWN_KINDS, _DOWN),
        "mqtt_state": ("send", topics.MQTT_STATE, (), (CellState,)),
    }
    for id_, (action, address, kinds, payloads) in mqtt.items():
        channels[id_] = _mqtt(address, kinds, payloads)
        operations[f"{action}_{id_}"] = {
            "action": action,
            "channel": {"$ref": f"#/channels/{id_}"},
            "bindings": {"mqtt": {"qos": 1, "retain": id_ == "mqtt_state"}},
            "summary": f"The bridge {action}s for the scheduler on `{address}`.",
        }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tidegate",
            "version": "1.0.0",
            "description": "What agents report and people ask for, and what the scheduler answers."
            " Every message is a CloudEvent 1.0 in structured JSON, the same bytes on every hop.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {
            "kafka": {"host": "localhost:9092", "protocol": "kafka"},
            "mqtt": {"host": "localhost:1883", "protocol": "mqtt", "protocolVersion": "5.0"},
        },
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": {
                name: {
                    "name": name,
                    "title": payload.__name__,
                    "summary": _summary(payload),
                    "contentType": CONTENT_TYPE,
                    "payload": {"$ref": f"./jsonschema/{name}.json"},
                }
                for name, payload in _PAYLOADS.items()
            }
        },
    }


def _id(name: str) -> str:
    return name.removeprefix("tidegate.").replace(".", "_")


def _action(topic: topics.Topic) -> str:
    return "receive" if topic.name in _SCHEDULER_RECEIVES else "send"


def _messages(payloads: Iterable[type[Strict]]) -> dict[str, Any]:
    return {p.TYPE: {"$ref": f"#/components/messages/{p.TYPE}"} for p in payloads}


def _topic(topic: topics.Topic) -> dict[str, Any]:
    base = topic.name.removesuffix(".dlq")
    settings: dict[str, Any] = {
        "cleanup.policy": ["compact" if topic.compacted else "delete"],
        "retention.ms": -1 if topic.retention_s is None else round(topic.retention_s * 1000),
    }
    text = f"Records keyed by {topic.key}."
    if topic.name != base:
        text = f"Records of `{base}` that could not be read, as they came; why is in the headers."
    return {
        "address": topic.name,
        "description": text,
        "servers": [{"$ref": "#/servers/kafka"}],
        "messages": _messages(_ON_TOPIC[base]),
        "bindings": {"kafka": {"topic": topic.name, "topicConfiguration": settings}},
    }


def _mqtt(address: str, kinds: tuple[str, ...], payloads: Iterable[type[Strict]]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if "{node}" in address:
        parameters["node"] = {"description": "Name of the node."}
    if "{cell}" in address:
        parameters["cell"] = {"description": "Name of the cell."}
    if kinds:
        parameters["kind"] = {"description": "What kind of message.", "enum": list(kinds)}
    return {
        "address": address,
        "servers": [{"$ref": "#/servers/mqtt"}],
        "messages": _messages(payloads),
        "parameters": parameters,
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say whether they are as they should be."""
    there = (HERE / "jsonschema").glob("*.json")
    return keep("schemas.generate", documents(), arguments, there=there)


if __name__ == "__main__":
    sys.exit(main())
