"""What follows from a request: a branch in which it is asked for, held against its control."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import orjson

from scheduler.core.restore import state_from_dict
from scheduler.core.state import ClusterState
from schemas.requests import CancelJob, DrainNode, RecallLoans, VerbData
from simulator.branch.deeds import SAME_S, Deed, places_of
from simulator.branch.origin import Origin
from simulator.branch.run import Branch, Outcome

#: What a gang does first that it does not in the control: it leaves its GPUs, its work saved or
#: not; it goes on with other GPUs; it starts, at another time or elsewhere; or it does not do what
#: it does in the control.
Does = Literal["saves_and_leaves", "stops", "changes", "starts", "stays"]
_DOES: Mapping[str, Does] = {
    "saves and leaves": "saves_and_leaves",
    "stops": "stops",
    "goes on with": "changes",
    "starts on": "starts",
}


@dataclass(frozen=True, slots=True)
class Move:
    """A gang that does something else than in the control, or at another time."""

    job: str
    at_s: float
    does: Does
    #: When it has GPUs again; None: not within the branch.
    again_s: float | None
    again_on: Mapping[str, int]  #: Which: by node, how many.
    #: It is what the request is about, or had GPUs there; others follow.
    is_subject: bool


@dataclass(frozen=True, slots=True)
class Freed:
    """A node that the request is to free: of gangs, or for its owner."""

    node: str
    free_s: float | None  #: None: not within the branch.
    by_s: float  #: When it is to be free.


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline that one side meets, and the other does not."""

    job: str
    deadline_s: float
    control_s: float | None  #: When it is done; None: not within the branch.
    branch_s: float | None


@dataclass(frozen=True, slots=True)
class Preview:
    """What follows from a request, in seconds since the Unix epoch."""

    entry: int  #: After which it is asked for.
    at_s: float
    until_s: float
    moves: Sequence[Move]  #: What the request is about first, then by time.
    nodes: Sequence[Freed]
    missed: Sequence[Deadline]  #: Met in the control alone.
    won: Sequence[Deadline]  #: Met in the branch alone.
    control: Outcome
    branch: Outcome


def preview(origin: Origin, control: Branch, branch: Branch, asked: VerbData) -> Preview:
    """Say what follows from a request.

    Args:
        origin: The moment at which it is asked for.
        control: What comes of that moment without the request.
        branch: What comes of it with the request, as `Change(requests=(asked,))` has it.
        asked: The request; its moments count from the entry.
    """
    begin = state_from_dict(orjson.loads(origin.state))
    nodes = _nodes(begin, asked)
    there = {job for name in nodes for job in begin.nodes[name].holder if job is not None}
    subjects = there | {getattr(asked, "job", None)}
    cancelled = asked.job if isinstance(asked, CancelJob) else None
    return Preview(
        entry=origin.entry,
        at_s=origin.at_s,
        until_s=origin.until_s,
        moves=_moves(control.deeds, branch.deeds, subjects),
        nodes=[_freed(name, begin, origin.at_s, branch, asked) for name in nodes],
        missed=_only(control, branch, origin.until_s, cancelled),
        won=[
            replace(one, control_s=one.branch_s, branch_s=one.control_s)
            for one in _only(branch, control, origin.until_s, None)
        ],
        control=control.outcome,
        branch=branch.outcome,
    )


def _nodes(begin: ClusterState, asked: VerbData) -> list[str]:
    """Name the nodes that a request is to free."""
    if isinstance(asked, DrainNode):
        return [asked.node]
    if not isinstance(asked, RecallLoans):
        return []
    theirs = begin.pools[asked.lender].nodes if asked.lender in begin.pools else [asked.lender]
    return sorted(name for name in theirs if begin.nodes[name].loan_state is not None)


def _freed(name: str, begin: ClusterState, at_s: float, branch: Branch, asked: VerbData) -> Freed:
    assert isinstance(asked, DrainNode | RecallLoans)
    by_s = at_s + asked.by_s
    if isinstance(asked, RecallLoans):
        back = (one for one in branch.deeds if one.key[:2] == (name, "is back with its owner"))
        first = next(back, None)
        return Freed(name, None if first is None else first.at_s, by_s)
    held = any(begin.nodes[name].holder)
    return Freed(name, branch.emptied.get(name) if held else at_s, by_s)


def _first_not_in(others: Sequence[Deed], deeds: Sequence[Deed]) -> Deed | None:
    """Give the first deed about a job that the other side lacks, or has at another time."""
    for number, deed in enumerate(deeds):
        match = others[number] if number < len(others) else None
        if match is None or match.key != deed.key or abs(match.at_s - deed.at_s) > SAME_S:
            return deed
    return None


def _moves(
    control: Sequence[Deed], branch: Sequence[Deed], subjects: set[str | None]
) -> list[Move]:
    sides = _by_job(control), _by_job(branch)
    found = []
    for job in {**sides[0], **sides[1]}:
        mine, others = sides[1][job], sides[0][job]
        deed, missing = _first_not_in(others, mine), _first_not_in(mine, others)
        if deed is None and missing is None:
            continue
        does: Does
        if missing is not None and (deed is None or missing.at_s < deed.at_s - SAME_S):
            does, at_s = "stays", missing.at_s
        else:
            assert deed is not None
            does, at_s = _DOES[deed.kind], deed.at_s
        later = [one for one in mine if one.at_s >= at_s - SAME_S]
        again = next((one for one in later if places_of(one)), None)
        found.append(
            Move(
                job=job,
                at_s=at_s,
                does=does,
                again_s=None if again is None else again.at_s,
                again_on={} if again is None else places_of(again),
                is_subject=job in subjects,
            )
        )
    return sorted(found, key=lambda move: (not move.is_subject, move.at_s, move.job))


def _by_job(deeds: Sequence[Deed]) -> defaultdict[str, list[Deed]]:
    found: defaultdict[str, list[Deed]] = defaultdict(list)
    for deed in deeds:
        if deed.kind in _DOES:
            found[deed.subject].append(deed)
    return found


def _only(ours: Branch, theirs: Branch, until_s: float, but: str | None) -> list[Deadline]:
    """List the deadlines that come within the branch and are met on our side alone."""
    found = []
    for job, (done_s, deadline_s) in ours.ended.items():
        if deadline_s is None or done_s > deadline_s or deadline_s > until_s or job == but:
            continue
        other_s = theirs.ended.get(job, (None, None))[0]
        if other_s is None or other_s > deadline_s:
            found.append(Deadline(job, deadline_s, done_s, other_s))
    return sorted(found, key=lambda one: (one.deadline_s, one.job))
