"""Replay: decide again on every recorded stimulus, and compare with what was recorded.

A journal entry holds all that its decision depended on, so that the same engine must decide the
same, byte for byte. What differs is either damage (then the chain of digests does not fit, and
nothing is compared) or another scheduler than the one that wrote the log.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import orjson
from pydantic import ValidationError

from bus.contract import Record, Unreadable
from scheduler.blame import blamed_on
from scheduler.core.canonical import state_hash
from scheduler.core.engine import Engine
from scheduler.core.facts import FACTS
from scheduler.core.record import (
    UnknownRecord,
    decision_bytes,
    decision_to_dict,
    stimulus_from_dict,
)
from scheduler.core.settings import settings_from
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Decision, LeaderStarted, Stimulus
from scheduler.journal import JournalReader
from scheduler.policies.interface import Policy
from scheduler.policies.registry import make_policy
from scheduler.snapshots import Snapshots
from scheduler.story import subject_of
from schemas.journal import RawEntry
from schemas.parse import first_error


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the replay decided otherwise; both decisions as the journal writes them."""

    number: int
    at_s: float
    stimulus: dict[str, Any]
    recorded: dict[str, Any]
    replayed: dict[str, Any]
    #: The job (or, if no job is concerned, the node) that the first unequal part is about.
    job: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a replay. Moments in seconds since the Unix epoch."""

    cell: str
    decisions: int
    first_difference: Difference | None
    state_hash: str
    begin_s: float
    end_s: float

    @property
    def identical(self) -> bool:
        """Whether every decision was the recorded one."""
        return self.first_difference is None


#: Entries read at a time.
_AT_ONCE = 250
#: Shown every entry and the decision on it, before the two are compared.
Watch = Callable[[RawEntry, Decision], None]


class Replay:
    """An engine that goes on from a state and is fed the entries that follow."""

    def __init__(
        self, state: ClusterState, policies: Callable[[str], Policy] = make_policy
    ) -> None:
        self.engine = Engine(state, policies)

    def decide(
        self, entry: RawEntry, stimulus: Stimulus, watch: Watch | None = None
    ) -> Difference | None:
        """Decide again on an entry; give the difference if there is one.

        Raises:
            Unreadable: the entry holds what this version does not know.
        """
        try:
            decision = self.engine.handle(stimulus)
            made = orjson.dumps(decision_to_dict(decision))
        except Exception as error:  # noqa: BLE001 - the recorded decision was none
            return _difference(entry, {"error": f"{type(error).__name__}: {error}"})
        if watch is not None:
            watch(entry, decision)
        if made != entry.decision:
            replayed = orjson.loads(made)
            if decision_bytes(orjson.loads(entry.decision)) != decision_bytes(replayed):
                return _difference(entry, replayed)
        if entry.policy != self.engine.state.leader.policy:
            raise Unreadable(
                f"journal entry {entry.number} says that {entry.policy!r} decided, "
                f"but its leader had named {self.engine.state.leader.policy!r}"
            )
        return None


def verify(
    records: Iterable[Record],
    *,
    cell: str | None = None,
    until_s: float | None = None,
    length_s: float | None = None,
    policies: Callable[[str], Policy] = make_policy,
    watch: Watch | None = None,
    snapshots: Iterable[Record] = (),
) -> Result:
    """Replay the journal until its end, a moment, or the first difference.

    Args:
        records: The records of the journal, in order.
        cell: Which cell; None if there is only one.
        until_s: Replay no entry after this moment, in seconds since the Unix epoch.
        length_s: The same, if `until_s` is None, in seconds after the first entry.
        policies: Makes the policies that the journal's leaders name.
        watch: Shown every decision.
        snapshots: The records of the snapshots; each must hold the state that is come to.

    Raises:
        Unreadable: the journal is missing, damaged, incomplete or of a newer version.
    """
    reader, taken = JournalReader(cell), Snapshots(snapshots)
    replay: Replay | None = None
    difference: Difference | None = None
    begin_s = end_s = 0.0
    decisions = 0
    for entry, stimulus in stimuli(entries(records, reader, until_s, length_s), policies):
        if replay is None:
            replay, begin_s = Replay(ClusterState(cell=reader.cell or ""), policies), entry.at_s
        decisions, end_s = entry.number + 1, entry.at_s
        difference = replay.decide(entry, stimulus, watch)
        if difference is not None:
            break
        taken.check(replay.engine.state, entry.digest)
    if replay is None:
        return nothing(reader)
    state = replay.engine.state
    return Result(state.cell, decisions, difference, state_hash(state), begin_s, end_s)


def entries(
    records: Iterable[Record], reader: JournalReader, until_s: float | None, length_s: float | None
) -> Iterator[RawEntry]:
    """Read a journal until a moment; see `verify`.

    Raises:
        Unreadable: the journal is damaged, incomplete or of a newer version.
    """
    for record in records:
        entry = reader.read(record)
        if entry is None:
            continue
        if until_s is None and length_s is not None:
            until_s = entry.at_s + length_s
        if until_s is not None and entry.at_s > until_s:
            return
        yield entry


def stimuli(
    found: Iterable[RawEntry], policies: Callable[[str], Policy] = make_policy
) -> Iterator[tuple[RawEntry, Stimulus]]:
    """Read entries and their stimuli, many at a time: after a decision the first is slow to read.

    Raises:
        Unreadable: one cannot be read; it is raised in its turn.
    """
    left, wrong = iter(found), None
    while wrong is None:
        batch: list[tuple[RawEntry, Stimulus]] = []
        try:
            batch.extend((entry, _stimulus(entry, policies)) for entry in islice(left, _AT_ONCE))
        except Exception as error:  # noqa: BLE001 - it may be of any kind, and must wait
            wrong = error
        yield from batch
        if not batch:
            break
    if wrong is not None:
        raise wrong


def _stimulus(entry: RawEntry, policies: Callable[[str], Policy]) -> Stimulus:
    where = f"journal entry {entry.number}"
    try:
        stimulus = stimulus_from_dict(orjson.loads(entry.stimulus))
    except UnknownRecord as error:
        raise Unreadable(f"{where}: {error}") from error
    except ValidationError as error:
        wrong = first_error(error, "stimulus", "data")
        raise Unreadable(f"{where}: {wrong.field}: {wrong.reason}") from error
    except (KeyError, TypeError, ValueError) as error:
        what = str(error).splitlines()[0]
        raise Unreadable(f"{where}: its stimulus cannot be read: {what}") from error
    if isinstance(stimulus.data, LeaderStarted):
        try:
            policies(stimulus.data.policy)
            settings_from(stimulus.data.settings)
        except (ValueError, TypeError, AttributeError) as error:
            raise Unreadable(f"{where}: {error}") from error
    return stimulus


def nothing(reader: JournalReader) -> Result:
    """Give the result of a replay whose journal has no entry before the moment to stop at.

    Raises:
        Unreadable: it has no entry at all.
    """
    if not reader.number:
        of = "" if reader.cell is None else f" of cell {reader.cell}"
        raise Unreadable(f"the log has no journal{of}: nothing was decided, nothing to replay")
    state = ClusterState(cell=reader.cell or "")
    return Result(state.cell, 0, None, state_hash(state), 0.0, 0.0)


# --- what differs ------------------------------------------------------------------------------


def _difference(entry: RawEntry, replayed: dict[str, Any]) -> Difference:
    recorded = orjson.loads(entry.decision)
    stimulus = orjson.loads(entry.stimulus)
    with blamed_on(entry.number):
        for name, _ in recorded["facts"]:
            if name not in FACTS:
                raise Unreadable(
                    f"journal entry {entry.number}: fact {name!r} was written by a newer Tidegate; "
                    "upgrade to read it"
                )
        job = _job_of(recorded, replayed, stimulus)
    return Difference(entry.number, entry.at_s, stimulus, recorded, replayed, job)


def _job_of(
    recorded: dict[str, Any], replayed: dict[str, Any], stimulus: dict[str, Any]
) -> str | None:
    """Find whom the first unequal facts, else reasons, else the stimulus, are about."""
    for part in ("facts", "reasons"):
        for pair in zip_longest(recorded[part], replayed.get(part, [])):
            if pair[0] == pair[1]:
                continue
            for one in pair:
                fields = one[1] if isinstance(one, list) else one
                if fields and (found := subject_of(fields)):
                    return found
    return subject_of(stimulus["data"])
