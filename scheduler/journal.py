"""The record of decisions on the bus: written by the service, folded to restart, read to replay."""

import hashlib
from dataclasses import dataclass, field

from bus.contract import Bus, Unreadable
from scheduler.core.evolve import apply
from scheduler.core.record import UnknownRecord, facts_from_dict
from scheduler.core.state import ClusterState, canonical, state_from_dict
from scheduler.dedupe import Dedupe
from schemas.journal import (
    NO_DIGEST,
    JournalEntry,
    decode_entry,
    decode_snapshot,
    follows,
)
from schemas.parse import Rejected
from schemas.topics import JOURNAL, SNAPSHOTS


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
    async for record in bus.read(JOURNAL.name, offset):
        if record.key != cell or record.value is None:
            continue
        entry = decode_entry(record.value)
        if isinstance(entry, Rejected):
            raise Unreadable(f"journal record {record.offset}: {entry.field}: {entry.reason}")
        if entry.number < found.state.number:
            continue
        fold(found, entry)
    found.dedupe.excuse()
    return found


def _go_on_from(found: Recovered, value: bytes) -> int:
    """Take over a snapshot; give the offset of the journal to read on from."""
    snapshot = decode_snapshot(value)
    if isinstance(snapshot, Rejected):
        raise Unreadable(f"snapshot: {snapshot.field}: {snapshot.reason}")
    # The hash is of what was written: this version may know more fields than the writer did.
    if hashlib.sha256(canonical(snapshot.state)).hexdigest() != snapshot.state_hash:
        raise Unreadable(f"snapshot {snapshot.number}: its state does not have its hash")
    try:
        state = state_from_dict(snapshot.state)
        found.dedupe.load(snapshot.sources)
    except (TypeError, KeyError, ValueError) as error:
        raise Unreadable(f"snapshot {snapshot.number}: {error}") from error
    found.state, found.digest = state, snapshot.digest
    return snapshot.journal_offset


def fold(found: Recovered, entry: JournalEntry) -> None:
    """Fold one entry: its facts, not the decision again, so that any version may have decided.

    Raises:
        Unreadable: the entry is out of place, changed, or from a newer version.
    """
    state = found.state
    if entry.number != state.number:
        raise Unreadable(f"journal: entry {entry.number} where {state.number} should be")
    if not follows(entry, found.digest):
        raise Unreadable(f"journal: entry {entry.number} was changed after it was written")
    try:
        facts = facts_from_dict(entry.decision)
    except (UnknownRecord, TypeError, KeyError) as error:
        raise Unreadable(f"journal: entry {entry.number}: {error}") from error
    state.advance(entry.at_s)
    for fact in facts:
        apply(state, fact)
    state.number += 1
    source, bootid, sequence = entry.stimulus["cause"]
    if bootid >= 0:
        found.dedupe.take(source, bootid, sequence)
    found.digest = entry.digest
    found.entries += 1
