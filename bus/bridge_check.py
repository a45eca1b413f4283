"""What an edge node may say, and as whom: the check of all that comes over MQTT.

The broker lets a node publish below its own name only; this makes sure that what it publishes
there is said by that name and about that node.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import orjson

from bus.contract import Message, Record
from bus.letters import dead_letter, unfit
from bus.wire import Incoming
from schemas import events
from schemas.codec import EventEnvelope, Rejected, decode_event
from schemas.log_codec import LogEnvelope, decode_log
from schemas.topics import (
    COMMANDS,
    EVENTS,
    LOGS,
    MQTT_UP,
    MQTT_UP_KINDS,
    TELEMETRY,
    Topic,
    dead_letters,
)
from schemas.values import MAX_MESSAGE_BYTES, Strict

is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}").fullmatch
_SEQUENCE_MAX = 2**63 - 1
_BOOT_MAX = 2**31 - 1

_address = re.compile(MQTT_UP.format(node="([^/]*)", kind="([^/]*)")).fullmatch
#: By kind of address, what may be said there. Tenants submit and cancel jobs by Kafka alone.
SAID: Mapping[str, tuple[type[Strict], ...]] = {
    "birth": (events.LinkOpened,),
    "death": (events.LinkLost,),
    "telemetry": events.TELEMETRY,
    "ack": (events.CommandAcknowledged,),
    "event": (
        events.NodeBorn,
        events.NodeDied,
        events.JobProgressed,
        events.WorkerStarted,
        events.WorkerStopped,
        events.WorkerFailed,
        events.CheckpointCommitted,
        events.OutputsKept,
        events.CheckpointFailed,
    ),
}
_LINK_KINDS = ("birth", "death")
#: Of what an agent said itself, and the broker does not take; all other letters are of commands.
_LETTERS_OF: Mapping[str, Topic] = {topic.name: topic for topic in (EVENTS, TELEMETRY)}
#: Boot and sequence number: what a horizon names.
Place = tuple[int, int]


@dataclass(slots=True)
class Accepted:
    """A message for Kafka, byte for byte."""

    cell: str
    message: Message
    #: None if no agent waits to hear that it is stored.
    place: Place | None
    #: It is a dead letter that an agent wrote.
    letter: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that must not reach the scheduler."""

    #: For counting; of few words.
    kind: str
    field: str
    reason: str
    topic: Topic = EVENTS
    #: Known if it is the agent's own: it need not send it again once the dead letter is stored.
    place: Place | None = None


def node_of(address: str) -> str:
    """Give the node that an address belongs to; empty if it is no address of a node."""
    found = _address(address)
    return found[1] if found and is_name(found[1]) and found[2] in MQTT_UP_KINDS else ""


def check(
    incoming: Incoming, node: str, cells: Container[str], default: str
) -> Accepted | Refused | None:
    """Judge a message; None if there is nothing to it (a retained one was cleared).

    Args:
        incoming: What came.
        node: Whose address it came to, by `node_of`.
        cells: The cells there are.
        default: The cell for dead letters, which name none.
    """
    value = incoming.value
    if not node:
        reason = "is none of an agent: tidegate/v1/NODE/up/KIND, and NODE a name"
        return Refused("address", "address", reason)
    kind = incoming.address.rpartition("/")[2]
    if kind in _LINK_KINDS and not value:
        return None
    topic = {"telemetry": TELEMETRY, "dlq": COMMANDS}.get(kind, EVENTS)
    if (problem := unfit(incoming.properties)) is not None:
        return Refused("properties", "properties", problem, topic, _peek(value, node))
    headers = dict(incoming.properties)
    if kind == "dlq":
        if len(value) > MAX_MESSAGE_BYTES:
            problem = f"is {len(value)} bytes long, the limit is {MAX_MESSAGE_BYTES}"
            return Refused("oversized", "", problem, topic)
        of = _LETTERS_OF.get(headers.get("dlq_origin_topic", ""), COMMANDS)
        message = Message(dead_letters(of).name, node, value, headers)
        return Accepted(default, message, None, letter=True)
    if kind == "log":
        return _log_piece(decode_log(value), node, cells, Message(LOGS.name, "", value, headers))
    envelope = decode_event(value)
    if isinstance(envelope, Rejected):
        reason = f"{envelope.kind}: {envelope.reason}"
        place = _peek(value, node)
        return Refused(envelope.kind, envelope.field, reason, topic, place)
    source = f"/links/{node}" if kind in _LINK_KINDS else f"/agents/{node}"
    if envelope.source != source:
        reason = f"is {envelope.source}, but {source} speaks at {incoming.address}"
        return Refused("source", "source", reason, topic)
    sequence = int(envelope.sequence)
    if sequence > _SEQUENCE_MAX:
        reason = f"{sequence} is above {_SEQUENCE_MAX}"
        return Refused("sequence", "sequence", reason, topic)
    place = None if kind in _LINK_KINDS else (envelope.bootid, sequence)
    if (wrong := _misplaced(envelope, node, kind)) is not None:
        return Refused(wrong[0].rpartition(".")[2], *wrong, topic, place)
    if envelope.cell not in cells:
        reason = f"{envelope.cell} is not among the cells of this bridge"
        return Refused("cell", "cell", reason, topic, place)
    key = node if topic is TELEMETRY else envelope.cell
    return Accepted(envelope.cell, Message(topic.name, key, value, headers), place)


def _log_piece(
    said: LogEnvelope | Rejected, node: str, cells: Container[str], message: Message
) -> Accepted | Refused:
    """Judge a piece of a job's log: it is its agent's own, and its cell's."""
    if isinstance(said, Rejected):
        return Refused(said.kind, said.field, f"{said.kind}: {said.reason}")
    if said.source != f"/agents/{node}":
        return Refused("source", "source", f"is {said.source}, but /agents/{node} says it")
    if said.data.agent != node:
        return Refused("agent", "data.agent", f"is {said.data.agent}, but {node} says it")
    if said.cell not in cells:
        return Refused("cell", "cell", f"{said.cell} is not among the cells of this bridge")
    return Accepted(said.cell, replace(message, key=said.data.job), None)


def letter_of(incoming: Incoming, refused: Refused, group: str, now_s: float) -> Message:
    """Write the dead letter of what came over MQTT."""
    # It never was in the topic, so it has no offset there.
    origin = Record(
        refused.topic.name,
        -1,
        node_of(incoming.address),
        incoming.value,
        incoming.properties,
        now_s,
    )
    letter = dead_letter(origin, refused.field, refused.reason, group)
    address = "".join(char if char.isprintable() else "?" for char in incoming.address)
    return replace(letter, headers={**letter.headers, "dlq_origin_address": address[:300]})


def _misplaced(envelope: EventEnvelope, node: str, kind: str) -> tuple[str, str] | None:
    """Find what in the payload is not this node's to say at this kind of address."""
    data = envelope.data
    if not isinstance(data, SAID[kind]):
        return "type", f"{envelope.type} is not said at .../up/{kind}"
    for name in ("node", "agent"):
        named = data.__dict__.get(name)  # pydantic's own way to say "none" is slow
        if named is not None and named != node:
            return f"data.{name}", f"is {named}, but {node} says it"
    if isinstance(data, events.NodeBorn) and data.pool_kind != "edge":
        return "data.pool_kind", f"is {data.pool_kind}; over MQTT come edge nodes only"
    return None


def _peek(value: bytes, node: str) -> Place | None:
    """Find which message of its agent this is, though it cannot be read.

    An agent newer than the bridge would otherwise send it again for ever, and nothing after it.
    """
    if len(value) > MAX_MESSAGE_BYTES:
        return None
    try:
        raw = orjson.loads(value)
        if raw["source"] != f"/agents/{node}":
            return None
        boot, sequence = raw["bootid"], raw["sequence"]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return None
    if type(boot) is not int or not 0 <= boot <= _BOOT_MAX or not isinstance(sequence, str):
        return None
    if re.fullmatch(r"0|[1-9][0-9]{0,18}", sequence, re.ASCII) is None:
        return None
    return (boot, int(sequence)) if int(sequence) <= _SEQUENCE_MAX else None
