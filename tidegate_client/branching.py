"""What both clients ask of branches, as flows: begin one, look at it, wait for it, end it."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from tidegate_client.errors import BranchFailed
from tidegate_client.flow import Call, Flow, Looks, Moment, call, model_of, new_key


class Branch(BaseModel):
    """What would come of a change, beside its control. What else is said of it is kept, too."""

    model_config = ConfigDict(extra="allow", frozen=True)

    #: Its id. Once it is done it can be looked at as a cell: `Client(url, cell="branch-ID")`.
    branch: str
    cell: str
    #: `waiting`, `running`, `done`, `failed` or `ended`.
    state: str
    #: How far it is, 0 to 1.
    done: float = 0.0
    #: Why it failed, and what to do.
    problem: str | None = None
    #: What was asked for, by whom and when.
    asked: Mapping[str, Any] = Field(default_factory=dict)
    asked_by: str = ""
    asked_s: float = 0.0
    #: What came of it: `control`, `branch`, `difference` and more; None in lists, and until then.
    result: Mapping[str, Any] | None = None


class _Branches(BaseModel):
    branches: list[Branch]


def branches(at: Moment) -> Flow[list[Branch]]:
    """List one's branches, newest first, without what came of them; operators see everybody's."""
    answer = yield from call(Call("GET", "/branches", Moment(cell=at.cell).parameters()))
    return model_of(_Branches, answer).branches


def begin(
    at: Moment,
    *,
    hours: float = 6.0,
    runs: int = 1,
    policy: str | None = None,
    settings: Mapping[str, float] | None = None,
    add_nodes: Mapping[str, int] | None = None,
    lose: Sequence[str] = (),
    demand: float = 1.0,
    requests: Sequence[Mapping[str, Any]] = (),
    jobs: Mapping[str, int] | None = None,
    key: str | None = None,
) -> Flow[Branch]:
    """Go on from an entry with a change, beside a control without it; nothing goes into the log.

    The entry is that of `client.at(entry=N)`, else the newest.

    Args:
        at: The moment; a client knows it.
        hours: How long.
        runs: How often; all but the first draw what nobody measured.
        policy: Another one: its name, with options.
        settings: Of the engine.
        add_nodes: By pool, so many nodes more like its first.
        lose: Nodes that are lost at once.
        demand: Times what owners need from then on.
        requests: Verbs that somebody asks for; their moments count from the entry.
        jobs: By a job, how many like it are submitted.
        key: What is asked twice with one key is begun once; by default it is new.

    Raises:
        ValueError: the moment is a time; name the entry.
        Conflict: the key was used for another branch.
        Problem: it cannot be; `parameter` says which part.
    """
    if at.at is not None:
        raise ValueError("a branch begins at an entry: at(entry=500).branches.begin(...)")
    change: dict[str, Any] = {"demand": demand, "lose": list(lose), "requests": list(requests)}
    change |= {"settings": dict(settings or {}), "add_nodes": dict(add_nodes or {})}
    change["jobs"] = [{"like": name, "count": count} for name, count in (jobs or {}).items()]
    body = {"hours": hours, "runs": runs, "entry": at.entry, "change": {"policy": policy, **change}}
    headers = {"Idempotency-Key": new_key() if key is None else key}
    cell = Moment(cell=at.cell).parameters()
    answer = yield from call(Call("POST", "/branches", cell, body, headers))
    return model_of(Branch, answer)


def one(_: Moment, branch: str) -> Flow[Branch]:
    """Say how far a branch is, and what came of it.

    Raises:
        NotFound: there is none, or not any more.
    """
    answer = yield from call(Call("GET", _path(branch)))
    return model_of(Branch, answer)


def wait(
    _: Moment,
    branch: str,
    *,
    timeout: float = 600.0,
    now_s: Callable[[], float] = time.monotonic,
) -> Flow[Branch]:
    """Look at a branch until it is done.

    Raises:
        BranchFailed: it came to nothing, or somebody ended it.
        NotFound: there is none, or not any more: its gateway was started anew.
        TimedOut: it is not done, in so many seconds.
    """
    looks, state = Looks(timeout, now_s), "not known"
    while True:
        found = yield from looks.look(Branch, Call("GET", _path(branch)))
        if found is not None:
            if found.state == "done":
                return found
            if found.state in ("failed", "ended"):
                raise BranchFailed(f"{branch} is {found.state}: {found.problem or 'no result'}")
            state = found.state
        yield looks.again(f"branch {branch} is {state} after {timeout:g} s; it was to be done")


def end(_: Moment, branch: str) -> Flow[Branch]:
    """End a branch that waits or runs, or forget one that is over; give it as it was last."""
    answer = yield from call(Call("DELETE", _path(branch)))
    return model_of(Branch, answer)


def _path(branch: str) -> str:
    return f"/branches/{quote(branch, safe='')}"
