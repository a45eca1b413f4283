"""The record of decisions on the bus: written by the service, folded to restart, read to replay."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from bus.contract import Bus, Record, Unreadable
from scheduler.core.evolve import apply
from scheduler.core.record import (
    UnknownRecord,
    decision_to_dict,
    facts_from_dict,
    stimulus_to_dict,
)
from scheduler.core.state import ClusterState, canonical, state_from_dict, state_hash
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.dedupe import Dedupe
from schemas.journal import (
    MAX_JOURNAL_BYTES,
    NO_DIGEST,
    RawEntry,
    SnapshotTaken,
    chain,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    follows,
    raw_entry,
)
from schemas.parse import Rejected
from schemas.topics import JOURNAL, SNAPSHOTS

_VERSION = 1


class TooLarge(Exception):
    """A decision takes more than an entry of the journal may hold: nobody could read it again."""


def write_entry(
    state: ClusterState, stimulus: Stimulus, decision: Decision, previous: str
) -> tuple[bytes, str]:
    """Give the record of a decision and its digest.

    Args:
        state: As the decision has left it.
        stimulus: What it was decided on.
        decision: What was decided.
        previous: The digest of the entry before.

    Raises:
        TooLarge: it could never be read again.
    """
    entry = chain(
        previous,
        state.number - 1,
        stimulus.at_s,
        stimulus_to_dict(stimulus),
        decision_to_dict(decision),
        policy=state.leader.policy,
    )
    value = encode_entry(entry, state.cell)
    if len(value) > MAX_JOURNAL_BYTES:
        raise TooLarge(
            f"its decision takes {len(value)} bytes, an entry of the journal {MAX_JOURNAL_BYTES}"
        )
    return value, entry.digest


def write_snapshot(
    state: ClusterState, digest: str, sources: dict[str, Any], journal_offset: int = 0
) -> bytes:
    """Give the record of a state.

    Args:
        state: The state.
        digest: Of the last entry that made it.
        sources: What was taken last from each, as `Dedupe.to_dict` has it.
        journal_offset: No later entry is before it.
    """
    document = orjson.loads(orjson.dumps(state))
    snapshot = SnapshotTaken(
        number=state.number,
        at_s=state.now_s,
        digest=digest,
        state_hash=hashlib.sha256(canonical(document)).hexdigest(),
        state=document,
        sources=sources,
        journal_offset=journal_offset,
    )
    return encode_snapshot(snapshot, state.cell)


class JournalReader:
    """Takes journal records one after the other, and checks that each follows the one before."""

    def __init__(self, cell: str | None = None, number: int = 0, digest: str = NO_DIGEST) -> None:
        """Read the journal of this cell from the entry of this number on.

        Args:
            cell: Which cell; the only one there is, if None.
            number: Entries before it are passed over.
            digest: That of the entry before.
        """
        self.cell = cell
        self.number = number  #: Of the next entry.
        self.digest = digest  #: Of the entry before it.
        self._begin = number
        self._only = cell is None

    def read(self, record: Record) -> RawEntry | None:
        """Give the entry of a record; None if it is not the cell's, or before the first wanted.

        Raises:
            Unreadable: the entry is damaged, out of place or of a newer version.
        """
        if record.value is None:
            return None
        if self.cell is None:
            self.cell = record.key
        elif record.key != self.cell:
            if self._only:
                raise Unreadable(
                    f"the log holds several cells, {self.cell} and {record.key} among them; "
                    "choose one with --cell"
                )
            return None
        entry = raw_entry(record.value, self.digest)
        if entry is None or entry.number != self.number:
            entry = self._read_slowly(record)
            if entry is None:
                return None
        self.digest = entry.digest
        self.number += 1
        return entry

    def _read_slowly(self, record: Record) -> RawEntry | None:
        """Read an entry that is not written as this version writes, or find what is wrong."""
        entry = decode_entry(record.value or b"")
        if isinstance(entry, Rejected):
            where = f"journal record {record.offset}"
            raise Unreadable(f"{where}: {entry.field} {entry.reason}".replace(":  ", ": "))
        if entry.version > _VERSION:
            raise Unreadable(
                f"journal entry {entry.number} has version {entry.version} and this release reads "
                f"up to {_VERSION}; use a newer release of Tidegate"
            )
        if entry.number < self._begin:
            return None
        if entry.number != self.number:
            if self.number == 0:
                raise Unreadable(
                    f"the journal begins at entry {entry.number}: what came before was pruned; "
                    "take a log or an export that has its beginning"
                )
            raise Unreadable(f"journal: entry {entry.number} where {self.number} should be")
        if not follows(entry, self.digest):
            raise Unreadable(
                f"journal entry {entry.number} was changed after it was written: "
                "it does not have its digest; restore the log from a copy"
            )
        return RawEntry(
            record.key,
            entry.number,
            entry.at_s,
            entry.policy,
            orjson.dumps(entry.stimulus),
            orjson.dumps(entry.decision),
            entry.digest,
        )


def fold(state: ClusterState, entry: RawEntry) -> None:
    """Fold one entry: its facts, not the decision again, so that any version may have decided.

    Raises:
        Unreadable: the entry is from a newer version.
        InvalidTransition: a fact cannot follow.
    """
    try:
        facts = facts_from_dict(orjson.loads(entry.decision))
    except (UnknownRecord, TypeError, KeyError, ValueError) as error:
        raise Unreadable(f"journal: entry {entry.number}: {error}") from error
    state.advance(entry.at_s)
    for fact in facts:
        apply(state, fact)
    state.number += 1


# --- snapshots ---------------------------------------------------------------------------------


def _read_snapshot(value: bytes) -> SnapshotTaken:
    snapshot = decode_snapshot(value)
    if isinstance(snapshot, Rejected):
        raise Unreadable(f"snapshot: {snapshot.field}: {snapshot.reason}")
    return snapshot


def _check_hash(snapshot: SnapshotTaken) -> None:
    # The hash is of what was written: this version may know more fields than the writer did.
    if hashlib.sha256(canonical(snapshot.state)).hexdigest() != snapshot.state_hash:
        raise Unreadable(f"snapshot {snapshot.number}: its state does not have its hash")


class Snapshots:
    """The snapshots that a log holds of a cell, held against the states that its journal makes."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = iter(records)
        self._next: SnapshotTaken | None = None
        self._number = 0  #: No snapshot that is still to come is known to be of fewer entries.

    def check(self, state: ClusterState, digest: str) -> bool:
        """Tell whether a snapshot was taken here; if so, it must hold this state.

        Args:
            state: The state after another entry of the journal.
            digest: The digest of this entry.

        Raises:
            Unreadable: this snapshot is damaged or holds another state, or the next is illegible.
        """
        while self._number < state.number:
            self._take(state.cell)
        taken = self._next
        if taken is None or taken.number != state.number:
            return False
        _check_hash(taken)
        same = taken.digest == digest
        if same and taken.state_hash != state_hash(state):
            try:
                # Another release wrote it if this one would write it otherwise.
                same = state_hash(state_from_dict(taken.state)) != taken.state_hash
            except (TypeError, KeyError, ValueError):
                same = True
        if not same:
            raise Unreadable(
                f"snapshot {taken.number}: it does not hold the state that the journal makes; "
                "restore the log from a copy"
            )
        return True

    def _take(self, cell: str) -> None:
        """Go on to the next snapshot of the cell."""
        for record in self._records:
            if record.key == cell and record.value is not None:
                self._next = _read_snapshot(record.value)
                self._number = self._next.number
                return
        self._next, self._number = None, 2**63


# --- restart -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Recovered:
    """What a scheduler goes on from."""

    state: ClusterState
    digest: str = NO_DIGEST  #: Of the last entry folded in.
    dedupe: Dedupe = field(default_factory=Dedupe)
    entries: int = 0  #: Entries read, after the snapshot.
    snapshot_problem: str = ""  #: Why the newest snapshot was of no use; empty if it was.


async def recover(bus: Bus, cell: str) -> Recovered:
    """Read the newest snapshot and fold the journal's tail.

    Raises:
        Unreadable: the journal is damaged or was written by a newer version.
    """
    found = Recovered(ClusterState(cell=cell))
    offset = 0
    record = await bus.latest(SNAPSHOTS.name, cell)
    if record is not None and record.value is not None:
        try:
            offset = _go_on_from(found, record.value)
        except Unreadable as error:
            # The journal holds all that the snapshot did, and its digests prove it; it only takes
            # longer. If its beginning is gone, that is what cannot be read.
            found = Recovered(ClusterState(cell=cell), snapshot_problem=str(error))
    reader = JournalReader(cell, found.state.number, found.digest)
    async for record in bus.read(JOURNAL.name, offset):
        entry = reader.read(record)
        if entry is None:
            continue
        fold(found.state, entry)
        source, bootid, sequence = orjson.loads(entry.stimulus)["cause"]
        if bootid >= 0:
            found.dedupe.take(source, bootid, sequence)
        found.entries += 1
    found.digest = reader.digest
    found.dedupe.excuse()
    return found


def _go_on_from(found: Recovered, value: bytes) -> int:
    """Take over a snapshot; give the offset of the journal to read on from."""
    snapshot = _read_snapshot(value)
    _check_hash(snapshot)
    try:
        state = state_from_dict(snapshot.state)
        found.dedupe.load(snapshot.sources)
    except (TypeError, KeyError, ValueError) as error:
        raise Unreadable(f"snapshot {snapshot.number}: {error}") from error
    found.state, found.digest = state, snapshot.digest
    return snapshot.journal_offset
