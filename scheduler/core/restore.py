"""The state again from its canonical form, for large cells in steps."""

from collections.abc import Generator, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any

from scheduler.core.standing import standing_from
from scheduler.core.state import (
    ClusterState,
    Job,
    Leader,
    Lender,
    Node,
    OpenCommand,
    Pool,
    Totals,
    command_order,
)
from scheduler.core.transitions import CommandState, JobState, LoanState, NodeState
from schemas.upcast import renamed

#: So many records are made objects in one step.
_STEP = 1000


def state_from_dict(document: dict[str, Any]) -> ClusterState:
    """Read a state back from its canonical form, parsed."""
    *_, state = state_in_steps(document)
    assert state is not None
    return state


def state_in_steps(document: dict[str, Any]) -> Iterator[ClusterState | None]:
    """Do as `state_from_dict`, in steps between which others may work; the last gives the state."""

    def records(cls: type[Any], key: str) -> Generator[None, None, dict[str, Any]]:
        names = tuple(one.name for one in fields(cls))
        found, left = {}, iter(document[key].items())
        while part := list(islice(left, _STEP)):
            found.update({name: _made(cls, names, written) for name, written in part})
            yield
        return found

    jobs = yield from records(Job, "jobs")
    for job in jobs.values():
        job.state = JobState(job.state)
    nodes = yield from records(Node, "nodes")
    for node in nodes.values():
        node.state = NodeState(node.state)
        node.loan_state = None if node.loan_state is None else LoanState(node.loan_state)
    commands = yield from records(OpenCommand, "commands")
    for command in commands.values():
        command.state = CommandState(command.state)
    pools = yield from records(Pool, "pools")
    lenders = yield from records(Lender, "lenders")
    # The canonical form sorts keys; decisions depend on these orders, which the records tell.
    yield ClusterState(
        **{
            **document,
            "leader": Leader(**document["leader"]),
            "jobs": dict(sorted(jobs.items(), key=lambda item: item[1].number)),
            "nodes": nodes,
            "pools": pools,
            "lenders": lenders,
            "commands": dict(sorted(commands.items(), key=lambda item: command_order(item[0]))),
            "standing": standing_from(document.get("standing", {})),
            "totals": Totals(**document["totals"]),
        }
    )


def _made(cls: type[Any], names: tuple[str, ...], written: dict[str, Any]) -> Any:
    """Make a record of all its fields, in their order; of an earlier release, of those it has."""
    if len(written) <= len(names):
        try:
            # By place: by name, Python compares each of sixty names with sixty others. What may be
            # left out is last.
            return cls(*[written[name] for name in names[: len(written)]])
        except KeyError:
            pass
    return cls(**_brought_up(cls, written))


def _brought_up(cls: type[Any], written: dict[str, Any]) -> dict[str, Any]:
    """Give the fields of a record that an earlier release may have written."""
    if cls is Job and "cells" in written:
        return renamed(written, "cells", "allocation")
    return written
