"""Snapshots: the state of a cell in pieces that any log carries, the last of which tells of all.

A record of the state is written in its canonical form, a few thousand to a piece. What fits into
the last piece needs no other. It holds a hash of the whole state in its canonical form, so that
what was lost or damaged shows. Pieces take turns on two sets of keys: while one snapshot is being
written, compaction leaves the one before whole.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import orjson

from bus.contract import Record, Unreadable
from scheduler.core.canonical import canonical, document_of, recorded, state_hash
from scheduler.core.restore import state_from_dict
from scheduler.core.state import ClusterState
from schemas.journal import (
    SnapshotPiece,
    SnapshotTaken,
    decode_piece,
    decode_snapshot,
    encode_piece,
    encode_snapshot,
)
from schemas.parse import Rejected

#: What a piece holds, at least one record; many pieces a second are read and written.
PIECE_BYTES = 1024 * 1024
#: Of records that were read, so many are checked at a time.
_CHECKED = 1000
#: Parts of the state that hold a record for each job, node and so on.
_TABLES = ("commands", "jobs", "lenders", "nodes", "pools")


class Writing:
    """A snapshot as it is being written; the state must stay as it is until the last piece."""

    def __init__(
        self,
        state: ClusterState,
        digest: str,
        sources: dict[str, Any],
        *,
        newest: Mapping[str, tuple[int, int]] | None = None,
        journal_offset: int = 0,
        pieces_offset: int = 0,
        turn: int = 0,
    ) -> None:
        """Begin.

        Args:
            state: The state.
            digest: Of the last entry that made it.
            sources: What was taken last from each, as `Dedupe.to_dict` has it.
            newest: By agent, boot and number of the newest of its events.
            journal_offset: No later entry is before it.
            pieces_offset: No piece of it will be before it.
            turn: Of the two sets of keys, which it is on; not that of the snapshot before.
        """
        self._state, self._digest, self._sources = state, digest, sources
        self._newest = {name: list(place) for name, place in (newest or {}).items()}
        self._offsets, self._turn = (journal_offset, pieces_offset), turn % 2
        self._hash = hashlib.sha256()
        self._plain: dict[str, Any] = {}  # the state without its tables

    def pieces(self) -> Iterator[tuple[str, bytes]]:
        """Make the records, each with its key, one after the other: in between others may work."""
        state = self._state
        held: dict[str, dict[str, Any]] = {}
        size = index = 0
        last: dict[str, dict[str, Any]] | None = None
        for table, name, record in self._records():
            if size >= PIECE_BYTES:
                if last is None:
                    last = held
                else:
                    yield self._piece(index, held)
                    index += 1
                held, size = {}, 0
            held.setdefault(table, {})[name] = orjson.Fragment(record)
            size += len(name) + len(record)
        if last is not None:
            yield self._piece(index, held)
            index += 1
        found = held if last is None else last
        rest = {table: found.get(table, {}) for table in _TABLES}
        journal_offset, pieces_offset = self._offsets
        taken = SnapshotTaken(
            number=state.number,
            at_s=state.now_s,
            digest=self._digest,
            state_hash=self._hash.hexdigest(),
            state={**self._plain, **rest},
            sources=found.get("sources", {}),
            newest=self._newest,
            journal_offset=journal_offset,
            pieces=index,
            pieces_offset=pieces_offset,
            turn=self._turn,
        )
        yield state.cell, encode_snapshot(taken, state.cell)

    def _piece(self, index: int, held: dict[str, dict[str, Any]]) -> tuple[str, bytes]:
        state, sources = self._state, held.pop("sources", {})
        piece = SnapshotPiece(number=state.number, index=index, state=held, sources=sources)
        return f"{state.cell}/{self._turn}/{index}", encode_piece(piece, state.now_s, state.cell)

    def _records(self) -> Iterator[tuple[str, str, bytes]]:
        """Give (part, name, canonical form) of each record; hash the whole on the way."""
        state, update = self._state, self._hash.update
        for name in sorted(self._sources):
            yield "sources", name, orjson.dumps(self._sources[name])
        empty: dict[str, Any] = {table: {} for table in _TABLES}
        self._plain = document_of(replace(state, **empty))
        before = b"{"
        for key in sorted(self._plain):
            update(before + orjson.dumps(key) + b":")
            before = b","
            if key not in _TABLES:
                update(canonical(self._plain[key]))
                continue
            table, between = getattr(state, key), b"{"
            for name in sorted(table):
                record = canonical(recorded(table[name]))
                update(between + orjson.dumps(name) + b":" + record)
                between = b","
                yield key, name, record
            update(b"}" if table else b"{}")
        update(b"}")


class Reading:
    """Puts the records of one cell's snapshots together, in the order in which they are stored."""

    def __init__(self, cell: str) -> None:
        """Begin without a piece."""
        self.cell = cell
        self._pieces: list[SnapshotPiece] = []

    def take(self, record: Record) -> SnapshotTaken | None:
        """Give the snapshot that a record completes; None if it is a piece, or another cell's.

        Raises:
            Unreadable: it is damaged, or a piece of it is missing.
        """
        if record.value is None or record.key.partition("/")[0] != self.cell:
            return None
        if "/" in record.key:
            piece = decode_piece(record.value)
            if isinstance(piece, Rejected):
                raise Unreadable(f"piece of a snapshot: {piece.field}: {piece.reason}")
            if piece.index == 0:
                self._pieces = []
            self._pieces.append(piece)
            return None
        taken = decode_snapshot(record.value)
        if isinstance(taken, Rejected):
            raise Unreadable(f"snapshot: {taken.field}: {taken.reason}")
        pieces, self._pieces = self._pieces, []
        found = [piece for piece in pieces if piece.number == taken.number]
        if [piece.index for piece in found] != list(range(taken.pieces)):
            have = f"{len(found)} of {taken.pieces}"
            raise Unreadable(f"snapshot {taken.number}: {have} of its pieces are there, in order")
        for piece in found:
            for table, records in piece.state.items():
                taken.state[table] |= records
            taken.sources.update(piece.sources)
        return taken


def checking(taken: SnapshotTaken) -> Iterator[None]:
    """Find out whether a state is the one that was written, in steps between which others may work.

    Raises:
        Unreadable: it is not.
    """
    # The hash is of what was written: this version may know more fields than the writer did.
    found, before = hashlib.sha256(), b"{"
    for key, value in sorted(taken.state.items()):
        found.update(before + orjson.dumps(key) + b":")
        before, between, left = b",", b"{", iter(sorted(value.items())) if key in _TABLES else None
        if not left or not value:
            found.update(canonical(value))
            continue
        while part := dict(islice(left, _CHECKED)):
            found.update(between + canonical(part)[1:-1])
            between = b","
            yield
        found.update(b"}")
    found.update(b"}")
    if found.hexdigest() != taken.state_hash:
        raise Unreadable(f"snapshot {taken.number}: its state does not have its hash")


class Snapshots:
    """The snapshots that a log holds of a cell, held against the states that its journal makes."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = iter(records)
        self._reading: Reading | None = None
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
        deque(checking(taken), 0)
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
        if self._reading is None:
            self._reading = Reading(cell)
        for record in self._records:
            taken = self._reading.take(record)
            if taken is not None:
                self._next, self._number = taken, taken.number
                return
        self._next, self._number = None, 2**63
