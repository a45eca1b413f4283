"""A state to try something on, made in little time: a record is copied when it is first looked at.

To copy the whole state of a large cell takes a second; what one request touches is a few records.
"""

import copy
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, overload

from scheduler.core.changed_claims import ChangedClaims
from scheduler.core.facts import RequestRefused
from scheduler.core.requests import repeated, requested
from scheduler.core.rights import Wrong
from scheduler.core.settings import settings_from
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Requested
from scheduler.core.turn import Turn
from schemas.requests import Request

_Default = TypeVar("_Default")
#: The tables of a state that grow with the cell.
_TABLES = ("jobs", "nodes", "pools", "lenders", "commands")


def trial_of(state: ClusterState) -> ClusterState:
    """Give a state that is equal to one, and can be changed without changing that.

    It is good until the other changes: use it at once, and throw it away.
    """
    found = copy.copy(state)
    for field in fields(state):
        value = getattr(state, field.name)
        borrowed = field.name in _TABLES
        setattr(found, field.name, Borrowed(value) if borrowed else copied(value))
    return found


def refused(state: ClusterState, request: Request) -> Wrong | None:
    """Say why the engine would refuse a request that comes now; None: it would do it.

    It is the engine's own code, on a trial of the state, so that it costs the same in a cell of any
    size. What follows from the request, such as where gangs move, is the policy's to say.
    """
    trial = trial_of(state)
    # The log may have ended long ago: who asks now would be answered now.
    trial.advance(request.asked_s)
    ahead_s = max(0.0, trial.now_s - request.asked_s)
    if (wrong := repeated(trial, request)) is not None:
        return wrong
    turn = Turn(trial, settings_from(trial.leader.settings), ChangedClaims())
    requested(turn, Requested(raw="{}", ahead_s=ahead_s, request=request))
    for fact in turn.facts:
        if isinstance(fact, RequestRefused):
            return fact.field, fact.reason
    return None


class Borrowed(dict[str, Any]):
    """A table whose records are another's until somebody takes one out: then it is a copy."""

    def __init__(self, table: dict[str, Any]) -> None:
        """Borrow all records of a table."""
        super().__init__(table)
        self.own: set[str] = set()  #: Records that are this table's own.

    def __getitem__(self, name: str) -> Any:
        """Give a record, which may be changed."""
        if name not in self.own:
            self[name] = copied(super().__getitem__(name))
        return super().__getitem__(name)

    def __setitem__(self, name: str, record: Any) -> None:
        """Keep a record of one's own."""
        super().__setitem__(name, record)
        self.own.add(name)

    @overload
    def get(self, name: str, default: None = None, /) -> Any: ...
    @overload
    def get(self, name: str, default: _Default, /) -> Any | _Default: ...
    def get(self, name: str, default: Any = None, /) -> Any:
        """Give a record, which may be changed, if there is one."""
        try:
            return self[name]
        except KeyError:
            return default

    def pop(self, name: str, *default: Any) -> Any:
        """Take a record out."""
        found = self.get(name, *default) if default else self[name]
        if name in self:
            del self[name]
        return found

    def values(self) -> Any:
        """Give all records; each is copied."""
        self._take_all()
        return super().values()

    def items(self) -> Any:
        """Give all names and records; each is copied."""
        self._take_all()
        return super().items()

    def _take_all(self) -> None:
        for name in self:
            if name not in self.own:
                self[name]  # it is copied


def copied(value: Any) -> Any:
    """Copy a value as states have them: records, lists and tables, down to what never changes."""
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    if isinstance(value, list):
        return [copied(one) for one in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = copy.copy(value)
    for field in fields(value):
        within = getattr(value, field.name)
        if isinstance(within, dict | list) or is_dataclass(within):
            setattr(found, field.name, copied(within))
    return found
