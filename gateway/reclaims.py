"""Nodes that went back to their owners: when each was called, saved, empty and back."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from explain.documents import ReasonDocument, reason_document
from explain.loan_history import loans_in
from explain.story import Given
from explain.voice import Voice, reason_from
from gateway.about import Kind, mentions
from gateway.past import Moment, guarded, raw, raw_between, reachable
from schemas.journal import RawEntry

#: So many entries about loans are looked through at a time.
_STEP = 200
_Document = dict[str, Any]


class _Entry:
    """An entry of the journal, read."""

    def __init__(self, entry: RawEntry) -> None:
        self.number, self.at_s = entry.number, entry.at_s
        self.stimulus: Mapping[str, Any] = orjson.loads(entry.stimulus)
        self.decision: Mapping[str, Any] = orjson.loads(entry.decision)

    def facts(self, kind: str) -> Iterator[Mapping[str, Any]]:
        """Give what facts of a kind say."""
        return (said for name, said in self.decision.get("facts", ()) if name == kind)

    def says(self, kind: str, node: str) -> bool:
        """Whether a fact of a kind is about a node."""
        return any(said.get("node") == node for said in self.facts(kind))

    def mentions(self, kind: Kind, name: str) -> bool:
        """Whether it is about a subject in a way."""
        return (kind, name) in mentions(self.stimulus, self.decision)


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
    feed, found = moment.feed, _Found(moment)
    rows: list[_Document] = []

    async def numbers() -> list[int]:
        reachable(feed, upto - feed.index.entries)
        return feed.index.loans(before=upto, newest=_STEP, node=node)

    for entry in reversed(await found.tail()):
        if entry.number < before:
            rows += await found.begun(entry, node)
    upto = min(before, found.known)
    while True:
        step = await guarded(feed, numbers)
        for number in step:
            if len(rows) >= limit:
                return rows, number + 1
            rows += await found.begun(await found.entry(number), node)
        if len(step) < _STEP:
            return rows, None
        upto = step[-1]


class _Found:
    """What a journal says of reclaims up to a moment; entries are read once."""

    def __init__(self, moment: Moment) -> None:
        self._moment, self._feed = moment, moment.feed
        #: Entries before this one are in the index.
        self.known = min(moment.entries, moment.feed.index.entries)
        self._entries: dict[int, _Entry] = {}
        self._tail: list[_Entry] | None = None
        self._voice = Voice(moment.feed.origin_s)

    async def entry(self, number: int) -> _Entry:
        if number not in self._entries:
            self._entries[number] = _Entry(await raw(self._feed, number))
        return self._entries[number]

    async def tail(self) -> list[_Entry]:
        """Give the entries that the index does not know of yet."""
        if self._tail is None:
            raws = await raw_between(self._feed, self.known, self._moment.entries)
            self._tail = [_Entry(one) for one in raws]
        return self._tail

    async def begun(self, entry: _Entry, node: str | None) -> list[_Document]:
        """Give the reclaims that begin with an entry."""
        return [
            await self._row(entry, said["node"])
            for said in entry.facts("ReclaimStarted")
            if node is None or said["node"] == node
        ]

    async def _about(self, kind: Kind, name: str, after: int, before: int) -> list[_Entry]:
        feed = self._feed

        async def numbers() -> list[int]:
            rows = feed.index.mentioned((kind,), name, before=min(before, self.known), after=after)
            return [number for number, _ in rows]

        found = [await self.entry(number) for number in await guarded(feed, numbers)]
        late = [one for one in await self.tail() if after < one.number < before]
        return found + [one for one in late if one.mentions(kind, name)]

    async def _row(self, begin: _Entry, node: str) -> _Document:
        told = await self._about(Kind.LOAN, node, begin.number, self._moment.entries)
        state = self._moment.state
        known = state.nodes.get(node)
        pools = {} if known is None else {node: known.pool}
        # Of the entry that calls several back, and of those after it, what is of this one.
        loan = next(one for one in loans_in([begin, *told], pools, state.now_s) if one.node == node)
        until = self._moment.entries if loan.end_entry is None else loan.end_entry + 1
        between = [begin, *await self._about(Kind.NODE, node, begin.number, until)]
        left = {said["job"] for one in between for said in _left(one, node)}
        return {
            "node": node,
            "pool": loan.pool,
            "gpus": None if known is None else known.gpu_count,
            "state": loan.state,
            "called_entry": loan.called_entry,
            "called_s": loan.called_s,
            "due_s": loan.due_s,
            "saved_s": await self._saved(left, begin.number, until),
            "empty_s": next((one.at_s for one in between if one.says("ReturnOrdered", node)), None),
            "end_s": loan.end_s,
            "end_entry": loan.end_entry,
            "late_s": loan.late_s,
            "jobs": len(left),
            "because": self._because(begin, node),
        }

    async def _saved(self, jobs: Collection[str], after: int, before: int) -> float | None:
        """Give when the last of some jobs saved its work, between two entries."""
        saved = [
            one.at_s
            for job in sorted(jobs)
            for one in await self._about(Kind.STEP, job, after, before)
            if any(said["job"] == job for said in one.facts("CheckpointSaved"))
        ]
        return max(saved, default=None)

    def _because(self, begin: _Entry, node: str) -> ReasonDocument | None:
        for reason in begin.decision.get("reasons", ()):
            if reason["subject"] == node and reason["verb"] == "reclaims":
                return reason_document(Given(begin.at_s, reason_from(reason)), self._voice)
        return None


def _left(entry: _Entry, node: str) -> Iterator[Mapping[str, Any]]:
    return (said for said in entry.facts("GpusReleased") if said["node"] == node)
