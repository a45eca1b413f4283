"""What the scheduler writes for replay: journal entries, snapshots, and who leads a cell.

All three are CloudEvents like every other record. Entries and snapshots are many or large and
written by the scheduler alone, so only their own fields are checked: what is within (stimuli,
events, commands) was checked on its way in, and the rest of the envelope follows from them.
An entry's digest covers the digest before, so that a changed, lost or added entry shows.
"""

import hashlib
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import orjson
from pydantic import Field, ValidationError

from schemas.envelope import moment
from schemas.parse import Rejected, first_error, parse_object, wrong_type
from schemas.upcast import upcast_decision
from schemas.values import Epoch, MomentS, Name, Strict

#: What one decision may take at most; of a snapshot a piece is much smaller.
MAX_JOURNAL_BYTES = 64 * 1024 * 1024
#: The hash before the first entry.
NO_DIGEST = "0" * 64

#: Of the entries that this release writes. Before 2, facts called an allocation `cells`.
ENTRY_VERSION = 2

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=2**53)]
Version = Annotated[
    int, Field(ge=1, le=1_000_000, description="Version of the form of the dicts within.")
]


#: A name, and options if there are any. A pattern that counted to 4,096 would take 6 MiB.
PolicyLine = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][^\x00-\x1f]*$",
        max_length=4096,
        description="The policy that decided, with its options: NAME[:OPTION=VALUE]...",
    ),
]


class JournalEntry(Strict):
    """One stimulus and what was decided on it."""

    TYPE: ClassVar[str] = "tidegate.journal.entry.v1"
    number: Count = Field(description="Position in the journal of the cell, from 0.")
    at_s: MomentS = Field(description="The moment of the stimulus, in seconds.")
    policy: PolicyLine
    stimulus: dict[str, Any] = Field(description="What the engine was given.")
    decision: dict[str, Any] = Field(
        description="What it answered: events, commands, timers, reasons."
    )
    digest: Digest = Field(description="SHA-256 over the digest before and this entry, in hex.")
    version: Version = 1


class SnapshotTaken(Strict):
    """The state of a cell after the first `number` journal entries."""

    TYPE: ClassVar[str] = "tidegate.snapshot.taken.v1"
    number: Count = Field(description="Journal entries folded in.")
    at_s: MomentS = Field(description="The moment of the last of them, in seconds.")
    digest: Digest = Field(description="Digest of the last of them.")
    state_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{16,128}$")] = Field(
        description="Hash of the state, in hex."
    )
    state: dict[str, Any] = Field(description="The state of the engine.")
    sources: dict[str, Any] = Field(description="Which messages were taken, by source and boot.")
    newest: dict[
        str,
        Annotated[list[Annotated[int, Field(ge=0, lt=10**19)]], Field(min_length=2, max_length=2)],
    ] = Field(default={}, description="By agent, boot and number of the newest of its events.")
    journal_offset: Count = Field(
        default=0, description="No later entry is before this offset of the journal topic."
    )
    pieces: Count = Field(
        default=0, description="Pieces that go before it, with what of the state is not in it."
    )
    pieces_offset: Count = Field(
        default=0, description="No piece is before this offset of the topic of snapshots."
    )
    turn: Count = Field(default=0, description="Of the two sets of keys, that of its pieces.")
    version: Version = 1


class SnapshotPiece(Strict):
    """A piece of a snapshot that is too large for one record."""

    TYPE: ClassVar[str] = "tidegate.snapshot.piece.v1"
    number: Count = Field(description="That of the snapshot.")
    index: Count = Field(description="Position among its pieces, from 0.")
    state: dict[str, dict[str, Any]] = Field(description="Records of the state, by part and name.")
    sources: dict[str, Any] = Field(description="Which messages were taken, by source and boot.")


class CellState(Strict):
    """Whether a scheduler serves the cell, and which; the newest word counts."""

    TYPE: ClassVar[str] = "tidegate.cell.state.v1"
    online: bool
    leader: Name = Field(description="Name of the scheduler process that leads.")
    leader_epoch: Epoch = Field(description="Higher with every change of leader.")
    at_s: MomentS


WRITTEN_TYPES = (JournalEntry.TYPE, SnapshotTaken.TYPE, SnapshotPiece.TYPE, CellState.TYPE)


def chain(
    previous: str,
    number: int,
    at_s: float,
    stimulus: dict[str, Any],
    decision: dict[str, Any],
    *,
    policy: str,
    version: int = ENTRY_VERSION,
) -> JournalEntry:
    """Build the entry that follows the one whose digest is `previous` (the first: `NO_DIGEST`).

    Raises:
        ValueError: A field is out of range.
        TypeError: The stimulus or decision holds what JSON has no form for.
    """
    digest = _digest(previous, number, at_s, policy, version, stimulus, decision)
    return JournalEntry(
        number=number,
        at_s=at_s,
        policy=policy,
        version=version,
        stimulus=stimulus,
        decision=decision,
        digest=digest,
    )


def follows(entry: JournalEntry, previous: str) -> bool:
    """Tell whether the entry is unchanged and the next one after the digest `previous`."""
    return entry.digest == _digest(
        previous,
        entry.number,
        entry.at_s,
        entry.policy,
        entry.version,
        entry.stimulus,
        entry.decision,
    )


def _digest(
    previous: str,
    number: int,
    at_s: float,
    policy: str,
    version: int,
    stimulus: dict[str, Any],
    decision: dict[str, Any],
) -> str:
    # `float` because JSON does not tell 5 from 5.0.
    body = orjson.dumps([previous, number, float(at_s), policy, version, stimulus, decision])
    return hashlib.sha256(body).hexdigest()


#: How readers fail at an entry whose parts are missing, or of another form than schedulers write.
MISSHAPEN: tuple[type[Exception], ...] = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError,
)  # fmt: skip


class RawEntry(NamedTuple):
    """A journal entry as it was written, its parts still bytes; the chain vouches for them."""

    cell: str
    number: int
    at_s: float
    policy: str
    stimulus: bytes
    decision: bytes
    digest: str


#: The fields of each as they are written.
_ENTRY = ("number", "at_s", "policy", "version", "stimulus", "decision", "digest")
_SNAPSHOT = tuple(SnapshotTaken.model_fields)
_PIECE = tuple(SnapshotPiece.model_fields)
_DIGEST_KEY = b',"digest":"'
_TAIL = len(_DIGEST_KEY) + 64 + len(b'"}}')


def raw_entry(value: bytes, previous: str) -> RawEntry | None:
    """Take an entry apart without parsing what it holds, if it follows the digest `previous`.

    None, also of an earlier version, says nothing against the entry: `decode_entry` and `follows`
    give the full answer. The
    cuts need no proof that they are right: at wrong places the digest would not fit.
    """
    stimulus_at = value.find(b',"stimulus":')
    decision_at = value.find(b',"decision":', stimulus_at)
    tail = value[-_TAIL:]
    if stimulus_at < 0 or decision_at < 0 or not tail.startswith(_DIGEST_KEY):
        return None
    try:
        head = orjson.loads(value[:stimulus_at] + b"}}")
        data = head["data"]
        number, at_s = data["number"], data["at_s"]
        if head["type"] != JournalEntry.TYPE or head["specversion"] != "1.0":
            return None
        if type(number) is not int or type(at_s) is not float or data["version"] != ENTRY_VERSION:
            return None
        known = orjson.dumps([previous, number, at_s, data["policy"], ENTRY_VERSION])
        stimulus = value[stimulus_at + 12 : decision_at]
        decision = value[decision_at + 12 : -_TAIL]
        digest = tail[len(_DIGEST_KEY) : -3].decode()
        body = b"".join((known[:-1], b",", stimulus, b",", decision, b"]"))
        if hashlib.sha256(body).hexdigest() != digest:
            return None
        return RawEntry(head["cell"], number, at_s, data["policy"], stimulus, decision, digest)
    except (orjson.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        return None


def number_of(value: bytes) -> int | None:
    """Give the number that an entry has, its parts not parsed; None if that cannot be told so."""
    try:
        number = orjson.loads(value[: value.find(b',"stimulus":')] + b"}}")["data"]["number"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return number if type(number) is int else None


def encode_entry(entry: JournalEntry, cell: str = "default") -> bytes:
    """Write an entry as a CloudEvent.

    Raises:
        TypeError: The stimulus or decision holds what JSON has no form for.
    """
    return _encode(entry, _ENTRY, f"{cell}-{entry.number}", cell, entry.at_s)


def encode_snapshot(snapshot: SnapshotTaken, cell: str = "default") -> bytes:
    """Write a snapshot as a CloudEvent.

    Raises:
        TypeError: The state holds what JSON has no form for.
    """
    return _encode(snapshot, _SNAPSHOT, f"{cell}-snapshot-{snapshot.number}", cell, snapshot.at_s)


def encode_piece(piece: SnapshotPiece, at_s: float, cell: str = "default") -> bytes:
    """Write a piece of the snapshot that was taken at a moment as a CloudEvent.

    Raises:
        TypeError: The state holds what JSON has no form for.
    """
    name = f"{cell}-snapshot-{piece.number}-{piece.index}"
    return _encode(piece, _PIECE, name, cell, at_s)


def _encode(
    data: JournalEntry | SnapshotTaken | SnapshotPiece,
    fields: tuple[str, ...],
    id_: str,
    cell: str,
    at_s: float,
) -> bytes:
    # Sequence and ids are the journal's numbers, which go on over restarts: bootid stays 0.
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": id_,
            "source": f"/schedulers/{cell}",
            "type": data.TYPE,
            "time": moment(at_s),
            "subject": cell,
            "datacontenttype": "application/json",
            "sequence": str(data.number),
            "bootid": 0,
            "cell": cell,
            "data": {name: getattr(data, name) for name in fields},
        },
        option=orjson.OPT_UTC_Z,
    )


def decode_entry(value: bytes) -> JournalEntry | Rejected:
    """Read a journal entry; never raises."""
    return cast("JournalEntry | Rejected", _decode(value, JournalEntry))


def brought_up(entry: JournalEntry) -> JournalEntry:
    """Give an entry whose decision is as this release writes it; it does not have its digest.

    Raises:
        CannotUpcast: its decision is not what a release of its version wrote.
    """
    decision = upcast_decision(entry.version, entry.decision)
    return entry.model_copy(update={"decision": decision})


def decode_snapshot(value: bytes) -> SnapshotTaken | Rejected:
    """Read a snapshot; never raises."""
    return cast("SnapshotTaken | Rejected", _decode(value, SnapshotTaken))


def decode_piece(value: bytes) -> SnapshotPiece | Rejected:
    """Read a piece of a snapshot; never raises."""
    return cast("SnapshotPiece | Rejected", _decode(value, SnapshotPiece))


def _decode(value: bytes, model: type[JournalEntry | SnapshotTaken | SnapshotPiece]) -> object:
    raw = parse_object(value, MAX_JOURNAL_BYTES)
    if isinstance(raw, Rejected):
        return raw
    if raw.get("type") != model.TYPE:
        return wrong_type(raw, (model.TYPE,), WRITTEN_TYPES)
    if raw.get("specversion") != "1.0":
        return Rejected("invalid_field", "specversion", "should be '1.0'")
    if "data" not in raw:
        return Rejected("invalid_field", "data", "is missing")
    try:
        return model.__pydantic_validator__.validate_python(raw["data"])
    except ValidationError as error:
        return first_error(error, "data")
