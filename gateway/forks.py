"""States that share what is alike: another moment of a cell costs its tables and what changed.

A state of fifty thousand jobs takes hundreds of megabytes and a second to make. Of two moments that
are near each other almost all records are the same, so they are the same objects here. A state that
is kept is never changed. One that goes on from it copies each record when it first looks it up: all
that a fold changes it has looked up, by name or by going through all.
"""

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, NamedTuple

from scheduler.core.standing import Standing
from scheduler.core.state import ClusterState, Job, Lender, Node, OpenCommand, Pool
from scheduler.core.trial import Borrowed

#: Parts of a state that have a record for each job, node and so on.
TABLES = ("jobs", "nodes", "commands", "pools", "lenders")
#: What a record takes in memory, about, with what it holds.
_RECORD_BYTES = 3000
_HOLDS = (list, dict)


def _copier(kind: type[Any]) -> Callable[[Any], Any]:
    every = attrgetter(*[one.name for one in fields(kind)])

    def copy(record: Any) -> Any:
        # What is within their lists and tables is replaced when it changes, never changed in place.
        return kind(*[one.copy() if type(one) in _HOLDS else one for one in every(record)])

    return copy


_COPY = {kind: _copier(kind) for kind in (Job, Node, OpenCommand, Pool, Lender)}


class Apart(Borrowed):
    """A table whose records may be others' too: whoever looks one up is given a copy to change."""

    def __getitem__(self, name: str) -> Any:
        record = dict.__getitem__(self, name)
        if name not in self.own:
            self[name] = record = _COPY[type(record)](record)
        return record

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.own.discard(name)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Give the record of a name, to change; this one becomes it if there is none."""
        if name not in self:
            self[name] = default
        return self[name]

    def popitem(self) -> tuple[str, Any]:
        """Take out the newest record."""
        name = next(reversed(self))
        return name, self.pop(name)

    def update(self, *tables: Any, **named: Any) -> None:
        """Take records over."""
        for name, record in dict(*tables, **named).items():
            self[name] = record


class Kept(NamedTuple):
    """A state that is never changed, and what it takes beside what it shares."""

    state: ClusterState
    bytes: int


def fork(state: ClusterState) -> ClusterState:
    """Give an equal state that may go on; this one, which is kept, stays as it is."""
    return _with_tables(state, Apart)


def kept(state: ClusterState) -> Kept:
    """Keep a fork as it is now; it may go on, and shares from here on what it has."""
    tables = [getattr(state, table) for table in TABLES]
    size = sum(map(sys.getsizeof, tables))
    size += _RECORD_BYTES * sum(len(table.own) for table in tables)
    found = _with_tables(state, dict)
    for table in tables:
        table.own = set()
    return Kept(found, size)


def _with_tables(
    state: ClusterState, made: Callable[[dict[str, Any]], dict[str, Any]]
) -> ClusterState:
    """Give an equal state with tables of its own, whose records it shares."""
    # Not item by item: that would look each record up, and so copy it.
    tables: dict[str, Any] = {table: dict(getattr(state, table)) for table in TABLES}
    found = replace(
        state,
        leader=replace(state.leader, settings=dict(state.leader.settings)),
        totals=replace(state.totals),
        standing=_stands(state.standing),
        claimants=[*state.claimants],
        stray_nodes=[*state.stray_nodes],
        on_loan=[*state.on_loan],
        **tables,
    )
    if made is not dict:
        for table in TABLES:
            setattr(found, table, made(getattr(found, table)))
    return found


def _stands(standing: Standing) -> Standing:
    parts = {one.name: getattr(standing, one.name) for one in fields(standing)}
    copies: dict[str, Any] = {
        name: dict(part) for name, part in parts.items() if isinstance(part, dict)
    }
    policy = None if standing.policy is None else replace(standing.policy)
    return replace(standing, policy=policy, **copies)
