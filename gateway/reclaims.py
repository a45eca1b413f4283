"""Nodes that went back to their owners: when each was called, saved, empty and back."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from explain.documents import ReasonDocument, reason_document
from explain.loan_history import PastLoan, loans_in
from explain.story import Given
from explain.wording import Wording, reason_from
from gateway.about import MOMENTS, Kind, mentions
from gateway.feed import Feed
from gateway.past import Moment, all_picked, guarded, unindexed
from scheduler.core.state import ClusterState
from schemas.journal import JournalEntry

_CALLED = "ReclaimStarted"
#: Facts of which an entry that tells of a reclaim has one.
_FACTS = (_CALLED, "LoanReturned", "LoanLost", "ReturnOrdered", "GpusReleased", "CheckpointSaved")
_WORDS = tuple(f'"{fact}"'.encode() for fact in _FACTS)
_Document = dict[str, Any]


class _Stretch(NamedTuple):
    """The entries that mention a subject in a way, after one number and before another."""

    kind: Kind
    name: str
    after: int
    before: int


class _Entries:
    """The entries of a cell: those that its index knows of, and what has come since."""

    def __init__(self, feed: Feed, known: int, newer: Sequence[JournalEntry]) -> None:
        self._feed, self._known, self._newer = feed, known, newer

    async def of(self, stretches: Sequence[_Stretch]) -> dict[_Stretch, list[JournalEntry]]:
        """Give the entries of each stretch, ascending; all of them are read in one go."""
        places = {
            one: self._feed.index.mentioned(
                (one.kind,), one.name, before=min(one.before, self._known), after=one.after
            )
            for one in stretches
        }
        offsets = {offset for found in places.values() for _, offset in found}
        read = {entry.number: entry for entry in await all_picked(self._feed, offsets)}
        return {
            one: [read[number] for number, _ in found] + self._newer_of(one)
            for one, found in places.items()
        }

    def _newer_of(self, one: _Stretch) -> list[JournalEntry]:
        return [
            entry
            for entry in self._newer
            if one.after < entry.number < one.before
            and (one.kind, one.name) in mentions(entry.stimulus, entry.decision)
        ]

    async def calls(self, before: int, newest: int, node: str | None) -> list[JournalEntry]:
        """Give the newest entries that call nodes back, or this one, newest first."""
        index, end = self._feed.index, min(before, self._known)
        places = index.mentioned((Kind.MOMENT,), MOMENTS[_CALLED], before=end)
        if node is not None:
            of_node = dict(index.mentioned((Kind.LOAN,), node, before=end))
            places = [place for place in places if place[0] in of_node]
        found = await all_picked(self._feed, [offset for _, offset in places[-newest:]])
        found += [one for one in self._newer if one.number < before and _called(one, node)]
        return found[: -newest - 1 : -1]


async def reclaims(
    moment: Moment, before: int, limit: int, node: str | None
) -> tuple[list[_Document], int | None]:
    """Give reclaims that began before an entry, newest first, as far as they came by the moment.

    Args:
        moment: The moment.
        before: Only reclaims that began before the entry of this number.
        limit: About so many: those of one entry are not parted.
        node: Only of this node.

    Returns:
        The rows, and before which entry the next page is; None after the last.

    Raises:
        Problem: the journal or the index cannot be read now.
    """
    feed = moment.feed

    async def find() -> tuple[list[_Document], int | None]:
        place = feed.index.place
        newer = await unindexed(feed, place, moment.entries, _WORDS)
        entries = _Entries(feed, min(moment.entries, place.number), newer)
        calls: list[tuple[JournalEntry, str]] = []
        for entry in await entries.calls(before, limit + 1, node):
            if len(calls) >= limit:
                return await _rows(moment, entries, calls), entry.number + 1
            calls += [(entry, name) for name in _called(entry, node)]
        return await _rows(moment, entries, calls), None

    return await guarded(feed, find)


async def _rows(
    moment: Moment, entries: _Entries, calls: Sequence[tuple[JournalEntry, str]]
) -> list[_Document]:
    """Give a row for each node that an entry calls back."""
    found = [_Reclaim(call, node, moment.entries) for call, node in calls]
    told = await entries.of([one.stretch(Kind.LOAN, one.node) for one in found])
    for one in found:
        one.follow(told[one.stretch(Kind.LOAN, one.node)], moment.state)
    told = await entries.of([one.stretch(Kind.NODE, one.node) for one in found])
    for one in found:
        one.between += told[one.stretch(Kind.NODE, one.node)]
    told = await entries.of([one.stretch(Kind.STEP, job) for one in found for job in one.jobs])
    wording = Wording(moment.feed.origin_s)
    return [one.row(told, moment.state, wording) for one in found]


class _Reclaim:
    """A node that an entry calls back, and what other entries tell of it until it is back."""

    def __init__(self, call: JournalEntry, node: str, end: int) -> None:
        self.call, self.node, self._until = call, node, end
        self._loan = PastLoan(node, None, None)
        #: What happens to the node from its call on.
        self.between = [call]

    def stretch(self, kind: Kind, name: str) -> _Stretch:
        """Name the entries after the call, until it is back, that mention a subject in a way."""
        return _Stretch(kind, name, self.call.number, self._until)

    def follow(self, told: Sequence[JournalEntry], state: ClusterState) -> None:
        """Learn from what is told of the node's loans when it was back."""
        pools = {self.node: state.nodes[self.node].pool} if self.node in state.nodes else {}
        # Of the entry that calls several back, and of those after it, what is of this one.
        loans = loans_in([self.call, *told], pools, state.now_s)
        self._loan = next(one for one in loans if one.node == self.node)
        if self._loan.end_entry is not None:
            self._until = self._loan.end_entry + 1

    @property
    def jobs(self) -> list[str]:
        """The jobs that left the node."""
        left = (said for one in self.between for said in _facts(one, "GpusReleased"))
        return sorted({said["job"] for said in left if said["node"] == self.node})

    def row(
        self,
        told: Mapping[_Stretch, Sequence[JournalEntry]],
        state: ClusterState,
        wording: Wording,
    ) -> _Document:
        """Write it; `told` has the steps of its jobs."""
        loan, known, jobs = self._loan, state.nodes.get(self.node), self.jobs
        saved = [
            one.at_s
            for job in jobs
            for one in told[self.stretch(Kind.STEP, job)]
            if any(said["job"] == job for said in _facts(one, "CheckpointSaved"))
        ]
        empty = [
            one.at_s
            for one in self.between
            if any(said["node"] == self.node for said in _facts(one, "ReturnOrdered"))
        ]
        return {
            "node": self.node,
            "pool": loan.pool,
            "gpus": None if known is None else known.gpu_count,
            "state": loan.state,
            "called_entry": loan.called_entry,
            "called_s": loan.called_s,
            "due_s": loan.due_s,
            "saved_s": max(saved, default=None),
            "empty_s": empty[0] if empty else None,
            "end_s": loan.end_s,
            "end_entry": loan.end_entry,
            "late_s": loan.late_s,
            "jobs": len(jobs),
            "because": self._because(wording),
        }

    def _because(self, wording: Wording) -> ReasonDocument | None:
        for reason in self.call.decision.get("reasons", ()):
            if reason["subject"] == self.node and reason["verb"] == "reclaims":
                return reason_document(Given(self.call.at_s, reason_from(reason)), wording)
        return None


def _called(entry: JournalEntry, node: str | None) -> list[str]:
    """Give the nodes that an entry calls back; with a node, it alone."""
    called = (said["node"] for said in _facts(entry, _CALLED))
    return [name for name in called if node in (None, name)]


def _facts(entry: JournalEntry, kind: str) -> Iterator[Mapping[str, Any]]:
    """Give what facts of a kind say."""
    return (said for name, said in entry.decision.get("facts", ()) if name == kind)
