"""The published schemas: up to date, valid, and true of real messages."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from schemas import generate, topics
from schemas.codec import MESSAGES, cell_state, command, encode, event
from schemas.commands import COMMANDS
from schemas.events import EVENTS, TELEMETRY
from schemas.journal import (
    NO_DIGEST,
    CellState,
    JournalEntry,
    SnapshotTaken,
    chain,
    encode_entry,
    encode_snapshot,
)
from schemas.values import Strict

HERE = generate.HERE


def schema(name: str) -> dict[str, Any]:
    page: dict[str, Any] = json.loads((HERE / f"jsonschema/{name}.json").read_text("utf-8"))
    return page


def example(page: dict[str, Any], defs: dict[str, Any]) -> Any:
    """The smallest value that a schema of ours allows."""
    if "$ref" in page:
        return example(defs[page["$ref"].rsplit("/", 1)[-1]], defs)
    if "anyOf" in page:
        return example(page["anyOf"][0], defs)
    if "enum" in page:
        return page["enum"][0]
    match page["type"]:
        case "integer":
            return page["minimum"]
        case "number":
            return page.get("minimum", 1.0)
        case "boolean":
            return True
        case "string":
            return "ab" * 32 if "a-f" in page.get("pattern", "") else "x"
        case "array":
            return [example(page["items"], defs)] * page.get("minItems", 0)
        case _:
            fields = page.get("properties", {})
            return {name: example(fields[name], defs) for name in page.get("required", ())}


def encoded(payload: Any) -> bytes:
    page = payload.model_json_schema()
    data = payload.model_validate(example(page, page.get("$defs", {})))
    common: dict[str, Any] = {
        "source": "/s",
        "sequence": 1,
        "bootid": 2,
        "time_s": 1.76e9,
        "subject": "x",
    }
    if payload in EVENTS:
        return encode(event(data, **common, causation="c"))
    if payload in COMMANDS:
        return encode(command(data, id="c", **common, expiry_s=1.77e9))
    if payload is JournalEntry:
        return encode_entry(chain(NO_DIGEST, 0, 1.0, {}, {}, policy="afs"))
    return encode_snapshot(data) if payload is SnapshotTaken else encode(cell_state(data))


ALL: list[Any] = [*EVENTS, *COMMANDS, JournalEntry, SnapshotTaken, CellState]


def test_what_is_checked_in_is_what_the_models_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_check_names_what_drifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "HERE", tmp_path)
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "asyncapi.json").write_text("{}")
    (tmp_path / "jsonschema/left.over.json").write_text("{}")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert "asyncapi.json is out of date: run python -m schemas.generate" in said
    assert "jsonschema/left.over.json" in said
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    assert not (tmp_path / "jsonschema/left.over.json").exists()


@pytest.mark.parametrize("payload", ALL, ids=lambda p: p.TYPE)
def test_real_messages_are_valid_by_their_schema(payload: type[Strict]) -> None:
    page = schema(payload.TYPE)
    jsonschema.Draft202012Validator.check_schema(page)
    validator = jsonschema.Draft202012Validator(page)
    message = json.loads(encoded(payload))
    validator.validate(message)
    corruptions: list[dict[str, Any]] = [
        {"type": "other"},
        {"specversion": "0.3"},
        {"data": []},
        {"bootid": -1},
    ]
    for wrong in corruptions:
        assert not validator.is_valid({**message, **wrong}), wrong


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_numbers_have_a_range_and_names_of_units_a_unit(name: str) -> None:
    def walk(node: Any) -> None:
        if isinstance(node, list):
            for part in node:
                walk(part)
        if isinstance(node, dict):
            if node.get("type") in ("number", "integer"):
                assert {"minimum", "exclusiveMinimum"} & node.keys(), node
                assert {"maximum", "exclusiveMaximum"} & node.keys(), node
            for field, part in node.get("properties", {}).items():
                if field.endswith(("_s", "_mib", "_c", "_w")):
                    assert part["x-unit"], field
            for part in node.values():
                walk(part)

    page = schema(name)
    assert page["description"]
    walk(page)


# --- AsyncAPI 3.0.0: structure by hand, from the specification ------------------------------------

ASYNCAPI: dict[str, Any] = json.loads((HERE / "asyncapi.json").read_text("utf-8"))


def resolve(reference: str) -> Any:
    file, _, pointer = reference.partition("#")
    page = json.loads((HERE / file).read_text("utf-8")) if file else ASYNCAPI
    for part in filter(None, pointer.split("/")):
        page = page[part.replace("~1", "/").replace("~0", "~")]
    return page


def references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for part in node for found in references(part)]
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [found for part in node.values() for found in references(part)]
    return []


def test_asyncapi_has_what_the_specification_asks_for() -> None:
    assert ASYNCAPI["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= ASYNCAPI["info"].keys()
    allowed = {"asyncapi", "id", "info", "servers", "defaultContentType", "channels"}
    assert ASYNCAPI.keys() <= allowed | {"operations", "components"}
    for server in ASYNCAPI["servers"].values():
        assert {"host", "protocol"} <= server.keys()
    for operation in ASYNCAPI["operations"].values():
        assert operation["action"] in ("send", "receive")
        assert operation["channel"]["$ref"].startswith("#/channels/")
    for channel in ASYNCAPI["channels"].values():
        named = {part.split("}")[0] for part in channel["address"].split("{")[1:]}
        assert channel.get("parameters", {}).keys() == named
        assert channel["messages"]
    for message in ASYNCAPI["components"]["messages"].values():
        assert message["contentType"].startswith("application/cloudevents+json")


def test_every_reference_resolves() -> None:
    found = references(ASYNCAPI)
    assert len(found) > len(ALL)
    for reference in found:
        assert isinstance(resolve(reference), dict), reference


def test_every_topic_and_every_message_is_described() -> None:
    addresses = {channel["address"] for channel in ASYNCAPI["channels"].values()}
    mqtt = {topics.MQTT_UP, topics.MQTT_DOWN, topics.MQTT_STATE}
    assert addresses == topics.ALL_TOPICS.keys() | mqtt
    assert ASYNCAPI["components"]["messages"].keys() == MESSAGES.keys()
    used = {operation["channel"]["$ref"] for operation in ASYNCAPI["operations"].values()}
    # Agents send logs to whoever reads them: it is nothing that the scheduler does.
    assert used | {"#/channels/logs_v1"} == {f"#/channels/{name}" for name in ASYNCAPI["channels"]}
    telemetry = ASYNCAPI["channels"]["telemetry_v1"]["messages"]
    assert telemetry.keys() == {payload.TYPE for payload in TELEMETRY}
