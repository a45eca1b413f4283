"""The one table of topics: names, keys, retention, compaction."""

from dataclasses import dataclass
from typing import Literal

from schemas.journal import MAX_JOURNAL_BYTES
from schemas.values import MAX_MESSAGE_BYTES

#: For headers, keys, and the frame that a broker puts around a record.
HEADROOM_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Topic:
    """A named log of records."""

    name: str
    key: Literal["node", "cell", "agent", "job"]
    #: How long records are kept; None keeps them until compacted or for good.
    retention_s: float | None
    #: Keep only the newest record of each key; a record without value removes the key.
    compacted: bool = False
    #: No record is larger; a broker may refuse more.
    record_max_bytes: int = MAX_MESSAGE_BYTES + HEADROOM_BYTES


_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S

TELEMETRY = Topic("tidegate.telemetry.v1", "node", 6 * _HOUR_S)
EVENTS = Topic("tidegate.events.v1", "cell", 14 * _DAY_S)
#: What people ask for, by gateways (`schemas.requests`).
REQUESTS = Topic("tidegate.requests.v1", "cell", 14 * _DAY_S)
COMMANDS = Topic("tidegate.commands.v1", "agent", 7 * _DAY_S)
#: What agents send of jobs' logs to whoever reads them (`schemas.logs`).
LOGS = Topic("tidegate.logs.v1", "job", 6 * _HOUR_S)
#: The record of decisions: the only topic that is never pruned by time.
JOURNAL = Topic(
    "tidegate.journal.v1", "cell", None, record_max_bytes=MAX_JOURNAL_BYTES + HEADROOM_BYTES
)
SNAPSHOTS = Topic(
    "tidegate.snapshots.v1",
    "cell",
    None,
    compacted=True,
    record_max_bytes=MAX_JOURNAL_BYTES + HEADROOM_BYTES,
)
#: Is a scheduler alive, and which one leads: the newest word of each cell.
CELLS = Topic("tidegate.cells.v1", "cell", None, compacted=True)

_DLQ_RETENTION_S = 30 * _DAY_S


def dead_letters(topic: Topic) -> Topic:
    """Where records of `topic` go that could not be read."""
    return Topic(f"{topic.name}.dlq", topic.key, _DLQ_RETENTION_S)


TOPICS: tuple[Topic, ...] = (
    TELEMETRY,
    EVENTS,
    REQUESTS,
    COMMANDS,
    LOGS,
    JOURNAL,
    SNAPSHOTS,
    CELLS,
)
#: What nobody decodes to act on it, or what only its writer reads.
_WITHOUT_LETTERS = (LOGS, JOURNAL, SNAPSHOTS, CELLS)
ALL_TOPICS: dict[str, Topic] = {
    topic.name: topic
    for base in TOPICS
    for topic in ((base,) if base in _WITHOUT_LETTERS else (base, dead_letters(base)))
}

#: The MQTT addresses, below an optional namespace. `birth` and `death` (the Will) are retained and
#: carry the same session number: of two of one session, death is the later. `dlq` carries commands
#: that the agent could not read, and what of its own the broker has no room for; `log` pieces of
#: jobs' logs. `_state` is retained.
MQTT_UP = "tidegate/v1/{node}/up/{kind}"
MQTT_UP_KINDS = ("birth", "death", "telemetry", "event", "ack", "log", "dlq")
MQTT_DOWN = "tidegate/v1/{node}/down/{kind}"
MQTT_DOWN_KINDS = ("command", "horizon")
MQTT_STATE = "tidegate/v1/_state/{cell}"
