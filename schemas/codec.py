"""Bytes to messages and back. Reading never raises: what cannot be read is `Rejected`, with why.

Parsing is strict JSON, then one pass of the pydantic model that the closed table has for `type`.
The models are the only definition of what is valid; nothing is checked twice.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast

import orjson
from pydantic import BaseModel, ValidationError

from schemas.commands import COMMANDS, AnyCommand
from schemas.envelope import Envelope, moment
from schemas.events import EVENTS, EventData
from schemas.horizon import HorizonReached
from schemas.journal import CellState, JournalEntry, SnapshotPiece, SnapshotTaken
from schemas.logs import LogChunk
from schemas.parse import Rejected, first_error, parse_object, repeated_key, shown, wrong_type
from schemas.requests import VERB_NAMES, Request
from schemas.values import MAX_MESSAGE_BYTES, Strict

__all__ = [
    "MESSAGES",
    "CellEnvelope",
    "CommandEnvelope",
    "Envelopes",
    "EventEnvelope",
    "HorizonEnvelope",
    "Rejected",
    "RequestEnvelope",
    "cell_state",
    "command",
    "decode",
    "decode_cell",
    "decode_command",
    "decode_event",
    "decode_horizon",
    "decode_request",
    "encode",
    "event",
    "horizon",
    "request",
    "wrap",
]

#: An event with its envelope; tell events apart by the class of `data`.
EventEnvelope: TypeAlias = Envelope[str, EventData]
#: A command with its envelope.
CommandEnvelope: TypeAlias = Envelope[str, AnyCommand]
#: The word on who leads a cell, with its envelope.
CellEnvelope: TypeAlias = Envelope[str, CellState]
#: What a bridge has stored of an agent, with its envelope.
HorizonEnvelope: TypeAlias = Envelope[str, HorizonReached]
#: What a person asks for, with its envelope.
RequestEnvelope: TypeAlias = Envelope[str, Request]


class Envelopes(Mapping[str, type[BaseModel]]):
    """By wire type, the model of the whole message, made when it is first asked for.

    To make all takes a quarter of a second and MiBs; a role reads and says a few of them.
    """

    def __init__(self, *payloads: type[Strict]) -> None:
        self._payloads = {payload.TYPE: payload for payload in payloads}
        self._made: dict[str, type[BaseModel]] = {}

    def __getitem__(self, name: str) -> type[BaseModel]:
        model = self._made.get(name)
        if model is None:
            payload, generic = self._payloads[name], cast("Any", Envelope)
            model = self._made[name] = generic[Literal[payload.TYPE], payload]
        return model

    def __contains__(self, name: object) -> bool:
        return name in self._payloads

    def __iter__(self) -> Iterator[str]:
        return iter(self._payloads)

    def __len__(self) -> int:
        return len(self._payloads)


_EVENTS = Envelopes(*EVENTS)
_COMMANDS = Envelopes(*COMMANDS)
_CELLS = Envelopes(CellState)
_HORIZONS = Envelopes(HorizonReached)
_REQUESTS = Envelopes(Request)
#: By wire type, the model of the whole message, envelope and data.
MESSAGES: Mapping[str, type[BaseModel]] = Envelopes(
    *EVENTS,
    *COMMANDS,
    Request,
    LogChunk,
    CellState,
    HorizonReached,
    JournalEntry,
    SnapshotTaken,
    SnapshotPiece,
)

#: RFC 3339, as CloudEvents has it; `fromisoformat` alone would also take other forms.
_is_rfc3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})"
).fullmatch


def decode_event(value: bytes) -> EventEnvelope | Rejected:
    """Read an event of an agent or a tenant (telemetry too); never raises."""
    return cast("EventEnvelope | Rejected", decode(value, _EVENTS))


def decode_command(value: bytes) -> CommandEnvelope | Rejected:
    """Read a command of the scheduler; never raises."""
    return cast("CommandEnvelope | Rejected", decode(value, _COMMANDS))


def decode_cell(value: bytes) -> CellEnvelope | Rejected:
    """Read the word on who leads a cell; never raises."""
    return cast("CellEnvelope | Rejected", decode(value, _CELLS))


def decode_horizon(value: bytes) -> HorizonEnvelope | Rejected:
    """Read which messages a bridge has stored; never raises."""
    return cast("HorizonEnvelope | Rejected", decode(value, _HORIZONS))


def decode_request(value: bytes) -> RequestEnvelope | Rejected:
    """Read what a person asks for; never raises. The envelope must say what the request says."""
    found = cast("RequestEnvelope | Rejected", decode(value, _REQUESTS))
    if isinstance(found, Rejected):
        return verb_left_out(found)
    for name in ("id", "cell"):
        outer, inner = getattr(found, name), getattr(found.data, name)
        if outer != inner:
            return Rejected("invalid_field", name, f"is {shown(outer)}, but data.{name} {inner}")
    return found


def verb_left_out(found: Rejected) -> Rejected:
    """Name the field of a request as it is written: pydantic puts the verb before its arguments."""
    within, _, rest = found.field.partition("data.args")
    if within or not found.field.startswith("data.args"):
        return found
    for verb in VERB_NAMES:
        if rest == f".{verb}" or rest.startswith(f".{verb}."):
            return Rejected(found.kind, "data.args" + rest.removeprefix(f".{verb}"), found.reason)
    if not rest and "discriminator" in found.reason:
        return Rejected(found.kind, "data.args.verb", "is missing")
    if not rest and "tag" in found.reason:
        named = ", ".join(VERB_NAMES)
        return Rejected(found.kind, "data.args.verb", f"is none of {named}")
    return found


def decode(value: bytes, models: Mapping[str, type[BaseModel]]) -> object:
    """Read a message that is one of `models`, or say why it is none; never raises."""
    raw = parse_object(value, MAX_MESSAGE_BYTES)
    if isinstance(raw, Rejected):
        return raw
    repeated = repeated_key(value, raw)
    if repeated is not None:
        return repeated
    name = raw.get("type")
    model = models.get(name) if isinstance(name, str) else None
    if model is None:
        return wrong_type(raw, models, MESSAGES)
    for attribute in ("time", "expirytime"):
        text = raw.get(attribute)
        if isinstance(text, str):
            try:
                if not _is_rfc3339(text):
                    raise ValueError
                raw[attribute] = datetime.fromisoformat(text)
            except ValueError:
                reason = f"should be a time such as 2026-01-31T12:00:00Z, got {shown(text)}"
                return Rejected("invalid_field", attribute, reason)
    try:
        return model.__pydantic_validator__.validate_python(raw)
    except ValidationError as error:
        return first_error(error)


def encode(envelope: Envelope[Any, Any]) -> bytes:
    """Write a message as structured CloudEvents JSON; null attributes are left out.

    Raises:
        ValueError: It is larger than any reader would take.
    """
    attributes = {name: part for name, part in envelope.__dict__.items() if part is not None}
    value = orjson.dumps(attributes, default=_plain, option=orjson.OPT_UTC_Z)
    if len(value) > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"{envelope.type}: {len(value)} bytes encoded, the limit is {MAX_MESSAGE_BYTES};"
            " shorten its lists"
        )
    return value


def _plain(part: object) -> object:
    if isinstance(part, BaseModel):
        return part.__dict__
    if isinstance(part, float):  # a subclass, such as numpy's
        return float(part)
    raise TypeError(f"a message cannot hold a {type(part).__name__}")


def event(
    data: EventData,
    *,
    source: str,
    sequence: int,
    bootid: int,
    time_s: float,
    subject: str | None = None,
    cell: str = "default",
    causation: str | None = None,
) -> EventEnvelope:
    """Put an event into its envelope; the id follows from source, bootid and sequence.

    Args:
        data: What happened.
        source: Who says it, such as `/agents/NAME`; the id takes what follows the last slash.
        sequence: Position among the source's messages of this bootid.
        bootid: How often the source has started.
        time_s: When it happened, in seconds since the Unix epoch.
        subject: What it is about; by default its node, job, pool or command, the first it has.
        cell: The cell it is for.
        causation: Id of the message that led to it.

    Raises:
        ValueError: An attribute is out of range, or `subject` is needed and missing.
    """
    name = source.rsplit("/", 1)[-1]
    attributes = {
        "id": f"{name}-{bootid}-{sequence}",
        "source": source,
        "time": moment(time_s),
        "subject": subject or _subject(data),
        "sequence": str(sequence),
        "bootid": bootid,
        "cell": cell,
        "causationid": causation,
    }
    return cast("EventEnvelope", wrap(_EVENTS, data, attributes))


def command(
    data: AnyCommand,
    *,
    id: str,
    source: str,
    sequence: int,
    bootid: int,
    time_s: float,
    subject: str | None = None,
    cell: str = "default",
    causation: str | None = None,
    expiry_s: float | None = None,
) -> CommandEnvelope:
    """Put a command into its envelope, as `event` does, under an id that the caller derived.

    Args:
        data: What shall hold.
        id: Derived from the journal, so that a repeated decision repeats its commands.
        source: The scheduler, `/schedulers/CELL`.
        sequence: Position among the source's messages of this bootid.
        bootid: How often the source has started, or its leader epoch.
        time_s: When it was decided, in seconds since the Unix epoch.
        subject: What it is about; by default its node or job. A command without needs one.
        cell: The cell it comes from.
        causation: Id of the message that led to it.
        expiry_s: From when on it must not be obeyed, in seconds since the Unix epoch.

    Raises:
        ValueError: An attribute is out of range, or `subject` is needed and missing.
    """
    attributes = {
        "id": id,
        "source": source,
        "time": moment(time_s),
        "subject": subject or _subject(data),
        "sequence": str(sequence),
        "bootid": bootid,
        "cell": cell,
        "causationid": causation,
        "expirytime": None if expiry_s is None else moment(expiry_s),
    }
    return cast("CommandEnvelope", wrap(_COMMANDS, data, attributes))


def cell_state(data: CellState, *, cell: str = "default") -> CellEnvelope:
    """Put the word on who leads a cell into its envelope.

    Raises:
        ValueError: An attribute is out of range.
    """
    microseconds = round(data.at_s * 1e6)
    attributes = {
        "id": f"{cell}-state-{data.leader_epoch}-{microseconds}",
        "source": f"/schedulers/{cell}",
        "time": moment(data.at_s),
        "subject": cell,
        "sequence": str(microseconds),
        "bootid": data.leader_epoch,
        "cell": cell,
    }
    return cast("CellEnvelope", wrap(_CELLS, data, attributes))


def horizon(data: HorizonReached, *, bridge: str, sequence: int, time_s: float) -> HorizonEnvelope:
    """Put what a bridge has stored of an agent into its envelope.

    Raises:
        ValueError: An attribute is out of range.
    """
    attributes = {
        "id": f"{bridge}-{sequence}",
        "source": f"/bridges/{bridge}",
        "time": moment(time_s),
        "subject": data.agent,
        "sequence": str(sequence),
        "bootid": data.boot,
    }
    return cast("HorizonEnvelope", wrap(_HORIZONS, data, attributes))


def request(data: Request, *, source: str) -> RequestEnvelope:
    """Put what a person asks for into its envelope.

    Args:
        data: What is asked for.
        source: Who says it: `/gateways/NAME`, or `/operators/NAME` on a log that is a file.

    Raises:
        ValueError: An attribute is out of range.
    """
    attributes = {
        "id": data.id,
        "source": source,
        "time": moment(data.asked_s),
        "subject": data.about,
        "sequence": "0",  # its id orders nothing, and is all that tells it from others
        "bootid": 0,
        "cell": data.cell,
        "expirytime": moment(data.expires_s),
    }
    return cast("RequestEnvelope", wrap(_REQUESTS, data, attributes))


def wrap(
    models: Mapping[str, type[BaseModel]], data: Strict, attributes: dict[str, object]
) -> BaseModel:
    """Put data into an envelope of its kind; a ValueError names what does not fit."""
    model = models.get(data.TYPE)
    if model is None:
        raise ValueError(f"data: {type(data).__name__} does not belong in this kind of message")
    return model.model_validate(
        {"specversion": "1.0", **attributes, "type": data.TYPE, "data": data}
    )


def _subject(data: EventData | AnyCommand) -> str:
    for name in ("node", "job", "pool", "command", "agent"):
        subject = getattr(data, name, None)
        if isinstance(subject, str):
            return subject
    raise ValueError(f"subject: {type(data).__name__} names nothing it is about; pass subject=")
