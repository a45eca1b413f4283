"""Landmarks of a log, for looking back: loans and reclaims, leaders, requests of people."""

import contextlib
from typing import Any

from explain.acts import act_of
from explain.loan_history import late_by
from gateway.about import ACTS, MOMENTS, Kind
from gateway.feed import Feed
from gateway.past import guarded, picked
from schemas.journal import JournalEntry

#: The most of each kind: the newest.
EACH = 500
#: The most entries whose times are listed.
PLACES = 1000
_PEOPLE = "people"
#: A verb that people use all the time: no landmark.
_USUAL = "job.submit"
_Row = dict[str, Any]


async def remembered(feed: Feed, before: int) -> tuple[list[_Row], bool]:
    """Give what happened before an entry, ascending, and whether that is all of it.

    Raises:
        Problem: it cannot be read now.
    """

    async def find() -> tuple[list[_Row], bool]:
        index = feed.index
        wanted: dict[int, int] = {}
        whole = index.entries >= before
        for kind in MOMENTS.values():
            found = index.mentioned((Kind.MOMENT,), kind, before=before, newest=EACH)
            wanted |= dict(found)
            whole &= len(found) < EACH
        usual = {number for number, _ in index.mentioned((Kind.VERB,), _USUAL, before=before)}
        acts = index.mentioned((Kind.ACT,), ACTS, before=before)
        people = [one for one in acts if one[0] not in usual]
        wanted |= dict(people[-EACH:])
        whole &= len(people) <= EACH
        rows: list[_Row] = []
        due: dict[str, float] = {}
        offsets = [wanted[number] for number in sorted(wanted)]
        async with contextlib.aclosing(picked(feed, offsets)) as entries:
            async for entry in entries:
                rows += _told(entry, due)
        return rows, whole

    return await guarded(feed, find)


def _told(entry: JournalEntry, due: dict[str, float]) -> list[_Row]:
    """Give the landmarks of an entry; `due` keeps by node when it had to be back."""
    rows = list[_Row]()

    def tell(kind: str, about: str) -> None:
        rows.append({"entry": entry.number, "at_s": entry.at_s, "kind": kind, "about": about})

    act = act_of(entry.number, entry.at_s, entry.stimulus, entry.decision)
    if act is not None and act.verb != _USUAL:
        tell(_PEOPLE, act.verb)
    for fact, fields in entry.decision.get("facts", ()):
        kind = MOMENTS.get(fact)
        if kind is None:
            continue
        about = str(fields.get("node", fields.get("leader", "")))
        if kind == "reclaim":
            due[about] = fields["due_s"]
        if kind == "returned" and late_by(due.pop(about, None), entry.at_s, entry.at_s) > 0.0:
            kind = "late"
        tell(kind, about)
    return rows
