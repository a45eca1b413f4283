"""The record of decisions on the bus: written by the service, folded to restart, read to replay."""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from bus.contract import Bus, Record, Unreadable
from scheduler import garbage
from scheduler.blame import blamed_on
from scheduler.core.evolve import apply
from scheduler.core.record import decision_to_dict, facts_from_dict, stimulus_to_dict
from scheduler.core.restore import state_in_steps
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.dedupe import Dedupe
from scheduler.snapshots import Reading, checking
from schemas.events import TELEMETRY
from schemas.journal import (
    ENTRY_VERSION,
    MAX_JOURNAL_BYTES,
    NO_DIGEST,
    RawEntry,
    brought_up,
    chain,
    decode_entry,
    decode_snapshot,
    encode_entry,
    follows,
    number_of,
    raw_entry,
)
from schemas.parse import Rejected
from schemas.topics import JOURNAL, SNAPSHOTS
from schemas.upcast import CannotUpcast

_VERSION = ENTRY_VERSION
_RESTORE = "restore the log from a copy"
#: So many entries are folded before others in the process have their turn.
_FOLDED = 20
#: And so many facts of one.
_FACTS = 1000
_ON_TELEMETRY = frozenset(kind.__name__ for kind in TELEMETRY)


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
        _written(stimulus_to_dict(stimulus)),
        _written(decision_to_dict(decision)),
        policy=state.leader.policy,
    )
    value = encode_entry(entry, state.cell)
    if len(value) > MAX_JOURNAL_BYTES:
        raise TooLarge(
            f"its decision takes {len(value)} bytes, an entry of the journal {MAX_JOURNAL_BYTES}"
        )
    return value, entry.digest


def _written(document: dict[str, Any]) -> dict[str, Any]:
    """Write each part once: the digest and the entry are both made of the same bytes."""
    return {name: orjson.Fragment(orjson.dumps(part)) for name, part in document.items()}


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
        if self.number == self._begin:
            number = number_of(record.value)
            if number is not None and number < self._begin:
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
            why = f"{where}: {entry.field} {entry.reason}".replace(":  ", ": ")
            raise Unreadable(f"{why}; if no newer release wrote it, {_RESTORE}")
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
            raise Unreadable(
                f"journal: entry {entry.number} where {self.number} should be, at record "
                f"{record.offset}; {_RESTORE}"
            )
        if not follows(entry, self.digest):
            raise Unreadable(
                f"journal entry {entry.number} was changed after it was written: "
                f"it does not have its digest; {_RESTORE}"
            )
        try:
            decision = brought_up(entry).decision
        except CannotUpcast as error:
            raise Unreadable(f"journal entry {entry.number}: {error}") from error
        return RawEntry(
            record.key,
            entry.number,
            entry.at_s,
            entry.policy,
            orjson.dumps(entry.stimulus),
            orjson.dumps(decision),
            entry.digest,
        )


def fold(state: ClusterState, entry: RawEntry, decision: dict[str, Any] | None = None) -> None:
    """Fold one entry: its facts, not the decision again, so that any version may have decided.

    Args:
        state: As the entry before has left it.
        entry: The next one.
        decision: The entry's, parsed, where the caller has it; its parts become the state's.

    Raises:
        Unreadable: the entry is of another release, or a fact cannot follow.
    """
    deque(folding(state, entry, decision), 0)


def folding(
    state: ClusterState, entry: RawEntry, decision: dict[str, Any] | None = None
) -> Iterator[None]:
    """Do as `fold`, in steps between which others may work: a cycle may have thousands of facts.

    Raises:
        Unreadable: the entry is of another release, or a fact cannot follow.
    """
    with blamed_on(entry.number):
        facts = facts_from_dict(orjson.loads(entry.decision) if decision is None else decision)
        state.advance(entry.at_s)
        for count, fact in enumerate(facts, 1):
            apply(state, fact)
            if count % _FACTS == 0:
                yield
        state.number += 1


# --- restart -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Recovered:
    """What a scheduler goes on from."""

    state: ClusterState
    digest: str = NO_DIGEST  #: Of the last entry folded in.
    dedupe: Dedupe = field(default_factory=Dedupe)
    #: By source, the highest boot and number of an event that was heard, or that entries are about.
    newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    entries: int = 0  #: Entries read, after the snapshot.
    bytes: int = 0  #: What they take.
    offset: int = 0  #: Of the journal's topic, after the last entry that was read.
    turn: int = 1  #: The set of keys that the newest snapshot is on; see `snapshots`.
    snapshot_problem: str = ""  #: Why the newest snapshot was of no use; empty if it was.


async def recover(bus: Bus, cell: str) -> Recovered:
    """Read the newest snapshot and fold the journal's tail.

    Raises:
        Unreadable: the journal is damaged or was written by a newer version.
    """
    found, offset = Recovered(ClusterState(cell=cell)), 0
    try:
        offset = await _go_on_from_snapshot(bus, found)
    except Unreadable as error:
        # The journal holds all that the snapshot did, and its digests prove it; it only takes
        # longer. If its beginning is gone, that is what cannot be read.
        found = Recovered(ClusterState(cell=cell), snapshot_problem=str(error))
    reader = JournalReader(cell, found.state.number, found.digest)
    found.offset = offset
    async for record in bus.read(JOURNAL.name, offset):
        entry = reader.read(record)
        if entry is None:
            continue
        found.offset = record.offset + 1
        for _ in folding(found.state, entry):
            await _give_way()
        if found.entries % _FOLDED == 0:
            await _give_way()
        with blamed_on(entry.number):
            stimulus = orjson.loads(entry.stimulus)
            source, bootid, sequence, *said_s = stimulus["cause"]
            if bootid >= 0:
                found.dedupe.take(source, bootid, sequence, *(said_s or [entry.at_s]))
                if stimulus["kind"] not in _ON_TELEMETRY:  # its topic has an order of its own
                    known = found.newest.get(source, (-1, -1))
                    found.newest[source] = max(known, (bootid, sequence))
        found.entries += 1
        found.bytes += len(record.value or b"")
    found.digest = reader.digest
    found.dedupe.excuse()
    return found


async def _give_way() -> None:
    """Let others in the process work; before that, look through what was made, a little each time.

    All at once it would be the whole state.
    """
    garbage.look_at_new()
    await asyncio.sleep(0)


async def _go_on_from_snapshot(bus: Bus, found: Recovered) -> int:
    """Take over the newest snapshot; give the offset of the journal to read on from."""
    newest = await bus.latest(SNAPSHOTS.name, found.state.cell)
    if newest is None:
        return 0
    begin = decode_snapshot(newest.value or b"")
    if isinstance(begin, Rejected):
        raise Unreadable(f"snapshot: {begin.field}: {begin.reason}")
    reading, taken = Reading(found.state.cell), None
    if begin.pieces:
        async for record in bus.read(SNAPSHOTS.name, begin.pieces_offset):
            await _give_way()  # there are many, and a process has more to do
            if record.offset < newest.offset:
                reading.take(record)
    taken = reading.take(newest)
    assert taken is not None
    for _ in checking(taken):
        await _give_way()
    try:
        for state in state_in_steps(taken.state):
            await _give_way()
            found.state = found.state if state is None else state
        found.dedupe.load(taken.sources)
        found.newest = {name: (boot, number) for name, (boot, number) in taken.newest.items()}
    except (TypeError, KeyError, ValueError) as error:
        raise Unreadable(f"snapshot {taken.number}: {error}") from error
    found.digest, found.turn = taken.digest, taken.turn
    return taken.journal_offset
