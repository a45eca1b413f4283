"""Checkers of what went through Kafka: nothing lost, nothing taken twice, every job accounted for.

They read the records as JSON, not with the code that wrote them: a mistake of that code must not
hide itself.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

#: Who said it: source, boot and sequence.
Cause = tuple[str, int, int]

#: Events that the engine is always told of.
ALWAYS_STIMULI = frozenset(
    f"tidegate.{name}.v1"
    for name in (
        "node.born",
        "node.died",
        "job.submitted",
        "job.cancelled",
        "worker.started",
        "worker.stopped",
        "worker.failed",
    )
)
BORN = "tidegate.node.born.v1"
SUBMITTED = "tidegate.job.submitted.v1"
ACKNOWLEDGED = "tidegate.command.acknowledged.v1"


@dataclass(frozen=True, slots=True)
class Said:
    """One record of the events or the telemetry topic."""

    cause: Cause
    type: str
    at_s: float
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One journal entry; `cause` is None where no message caused it."""

    number: int
    at_s: float
    kind: str
    cause: Cause | None
    data: Mapping[str, Any]
    facts: Sequence[tuple[str, Mapping[str, Any]]]


def read_said(value: bytes) -> Said:
    """Read an event from its bytes."""
    message = orjson.loads(value)
    cause = message["source"], message["bootid"], int(message["sequence"])
    return Said(cause, message["type"], _seconds(message["time"]), message["data"])


def read_entry(value: bytes) -> Entry:
    """Read a journal entry from its bytes."""
    written = orjson.loads(value)["data"]
    stimulus = written["stimulus"]
    source, boot, sequence, _ = stimulus["cause"]
    cause = (source, boot, sequence) if boot >= 0 else None
    facts = [(name, fields) for name, fields in written["decision"]["facts"]]
    return Entry(
        written["number"], written["at_s"], stimulus["kind"], cause, stimulus["data"], facts
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# --- delivery -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Delivery:
    """What became of the events that were accepted."""

    accepted: int = 0  #: Events in Kafka or confirmed to their sender, each counted once.
    journalled: int = 0  #: Journal entries that an event caused.
    duplicates_removed: int = 0  #: Copies in Kafka that the journal did not repeat.
    births_overtaken: int = 0  #: Not told on purpose: a later message of the agent came first.
    vanished: list[str] = field(default_factory=list)  #: Confirmed, and not in Kafka.
    untold: list[str] = field(default_factory=list)  #: In Kafka, never told to the engine.
    retold: list[str] = field(default_factory=list)  #: Told to the engine more than once.
    invented: list[str] = field(default_factory=list)  #: In the journal, and never in Kafka.

    @property
    def lost(self) -> int:
        return len(self.vanished) + len(self.untold)


def delivery(
    said: Sequence[Said],
    journal: Sequence[Entry],
    *,
    confirmed: Collection[Cause] = (),
    buried: Collection[Cause] = (),
) -> Delivery:
    """Follow every event from its sender's confirmation into the journal.

    Args:
        said: The events topic and the telemetry topic, each in order.
        journal: All entries.
        confirmed: What senders were told is stored.
        buried: What became a dead letter, which is reported elsewhere.
    """
    copies = Counter(event.cause for event in said)
    told = Counter(entry.cause for entry in journal if entry.cause is not None)
    found = Delivery(len(copies.keys() | set(confirmed)), sum(told.values()))
    found.duplicates_removed = sum(copies.values()) - len(copies)
    found.vanished = [_name(cause) for cause in confirmed if cause not in copies]
    found.retold = [f"{_name(cause)}: {count} times" for cause, count in told.items() if count > 1]
    found.invented = [_name(cause) for cause in told if cause not in copies]
    overtaken = _overtaken_births(said)
    for event in {event.cause: event for event in said}.values():
        if event.type not in ALWAYS_STIMULI or event.cause in told or event.cause in buried:
            continue
        if event.cause in overtaken:
            found.births_overtaken += 1
        else:
            found.untold.append(f"{_name(event.cause)}: {event.type} {_about(event)}")
    return found


def _overtaken_births(said: Sequence[Said]) -> set[Cause]:
    """Find births that came after a later word of the same agent."""
    newest: dict[str, tuple[int, int]] = {}
    overtaken: set[Cause] = set()
    for event in said:
        source, *place = event.cause
        if event.type == BORN and tuple(place) < newest.get(source, (-1, -1)):
            overtaken.add(event.cause)
        newest[source] = max(newest.get(source, (-1, -1)), (place[0], place[1]))
    return overtaken


def acks_untold(said: Sequence[Said], journal: Sequence[Entry]) -> list[str]:
    """Find commands of the engine that were acknowledged, stayed open, and it never learnt so."""
    issued: set[str] = set()
    closed: set[str] = set()
    for entry in journal:
        for name, fields in entry.facts:
            if name == "CommandIssued":
                issued.add(fields["command"])
            elif name in ("CommandDone", "CommandRefused", "CommandExpired"):
                closed.add(fields["command"])
    acknowledged = {event.data["command"] for event in said if event.type == ACKNOWLEDGED}
    return sorted(acknowledged & issued - closed)


def gaps(said: Iterable[Said], dropped: Mapping[str, int] | None = None) -> list[str]:
    """Find numbers that a source must have said and Kafka does not have.

    A boot's numbers begin at 0; what it never got to say is at its end, where nothing shows.

    Args:
        said: The events and the telemetry topic.
        dropped: By source, how much telemetry its spool had no room for.
    """
    numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
    for event in said:
        source, boot, sequence = event.cause
        numbers[source, boot].add(sequence)
    found = []
    spare = dict(dropped or {})
    for (source, boot), seen in sorted(numbers.items()):
        missing = [number for number in range(max(seen) + 1) if number not in seen]
        excused = min(len(missing), spare.get(source, 0))
        spare[source] = spare.get(source, 0) - excused
        if len(missing) > excused:
            shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            found.append(f"{source} boot {boot}: {len(missing)} missing ({shown}), top {max(seen)}")
    return found


# --- jobs ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Jobs:
    """What became of the accepted jobs, by name."""

    completed: list[str] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)  #: Failed, cancelled or refused: why.
    unfinished: list[str] = field(default_factory=list)  #: Known, and not at an end.
    lost: list[str] = field(default_factory=list)  #: Accepted, and nobody knows of it.
    twice: list[str] = field(default_factory=list)  #: Completed more than once.


def jobs(accepted: Iterable[str], journal: Iterable[Entry]) -> Jobs:
    """Account for every accepted job by what the journal says."""
    known: set[str] = set()
    completed: Counter[str] = Counter()
    ended: dict[str, str] = {}
    for entry in journal:
        for name, fields in entry.facts:
            if name == "JobAccepted":
                known.add(fields["job"])
            elif name == "JobCompleted":
                completed[fields["job"]] += 1
            elif name in ("JobFailed", "JobCancelled", "JobDeclined", "SubmissionRefused"):
                ended[fields["job"]] = f"{name}: {fields.get('reason', '')}"
    found = Jobs(twice=[job for job, count in completed.items() if count > 1])
    for job in accepted:
        if completed[job]:
            found.completed.append(job)
        elif job in ended:
            found.ended[job] = ended[job]
        else:
            (found.unfinished if job in known else found.lost).append(job)
    return found


def _name(cause: Cause) -> str:
    source, boot, sequence = cause
    return f"{source} boot {boot} number {sequence}"


def _about(event: Said) -> str:
    return " ".join(
        f"{name}={event.data[name]}" for name in ("job", "epoch", "node") if name in event.data
    )
