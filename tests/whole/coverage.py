"""What storms came through: transitions, commands, and what stood where when a fault struck.

It holds nobody to anything. A transition that no seed of thousands takes is one that nobody tests.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from bus.contract import Record
from scheduler.core.state import ClusterState
from scheduler.core.transitions import COMMAND, JOB, LOAN, NODE
from schemas.commands import COMMANDS
from tests.chaos.ledger import read_entry

_TABLES: Mapping[str, Mapping[Any, Any]] = {
    "job": JOB,
    "node": NODE,
    "loan": LOAN,
    "command": COMMAND,
}
#: Transitions that the tables allow and nothing here can take.
CANNOT = {
    "job: queued JobFailed": "a job fails when its gang has left, and queues after that",
    "job: checkpointing JobCompleted": "what completes while it saves is told to stop first",
    "job: checkpointing JobFailed": "only the twentieth failure is one too many, after hours",
}
#: By fact, whose life it begins, and as what.
_BEGIN = {
    "JobAccepted": ("job", "queued"),
    "LoanRequested": ("loan", "lending"),
    "CommandIssued": ("command", "issued"),
}


def all_transitions() -> set[str]:
    """Name every transition that the tables have and that can be taken here."""
    every = {_name(life, state, fact) for life, table in _TABLES.items() for state, fact in table}
    return every - CANNOT.keys()


def transitions(journal: Sequence[Record]) -> Counter[str]:
    """Count the transitions that a journal tells of."""
    found: Counter[str] = Counter()
    now: dict[tuple[str, str], str] = {}
    for record in journal:
        for fact, fields in read_entry(record.value or b"").facts:
            for life, subject in _subjects(fact, fields):
                state = now.get((life, subject))
                after = None if state is None else _TABLES[life].get((state, fact))
                if after is not None:
                    found[_name(life, state, fact)] += 1
                    now[life, subject] = after
                elif fact in _BEGIN and _BEGIN[fact][0] == life:
                    now[life, subject] = _BEGIN[fact][1]
                elif fact == "NodeJoined" and life == "node":
                    now[life, subject] = "alive"
    return found


def _subjects(fact: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give whose lives a fact may move: a loan is its node's, of which one is open at a time."""
    for life, field in (("job", "job"), ("node", "node"), ("loan", "node"), ("command", "command")):
        if field in fields and (life != "loan" or "Loan" in fact or fact in _LOANS):
            yield life, fields[field]


_LOANS = {fact for _, fact in LOAN}


def _name(life: str, state: Any, fact: str) -> str:
    return f"{life}: {state} {fact}"


def commands(records: Sequence[Record]) -> Counter[str]:
    """Count commands by kind, as they were stored."""
    return Counter(orjson.loads(record.value or b"{}").get("type", "") for record in records)


def all_commands() -> set[str]:
    """Name every kind of command that the scheduler gives."""
    return {kind.TYPE for kind in COMMANDS}


def standing(state: ClusterState) -> Iterator[str]:
    """Say in what state each job, node, loan and open command is."""
    for job in state.jobs.values():
        yield f"job {job.state.value}"
    for node in state.nodes.values():
        yield f"node {node.state.value}"
        if node.loan_state is not None:
            yield f"loan {node.loan_state.value}"
    for _ in state.commands:
        yield "command issued"


def account(seen: Mapping[str, int], every: set[str]) -> dict[str, Any]:
    """Say how much of all that exists was seen, and name the rest."""
    return {
        "seen": len(every & seen.keys()),
        "of": len(every),
        "never": sorted(every - seen.keys()),
        "counts": dict(sorted(seen.items())),
    }
