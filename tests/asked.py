"""What an operator asks of a cell in a test, and what comes of it."""

from typing import Any

from scheduler.core import facts
from scheduler.core.stimuli import Decision
from schemas.requests import VerbData
from tests.builders import Cell, request_of


def ask(cell: Cell, args: VerbData, **over: Any) -> Decision:
    """An operator asks for this now."""
    name = over.pop("id", f"r{cell.state.number}")
    return cell.feed(request_of(cell.now_s, args, name, **over))


def refusal(decision: Decision) -> tuple[str, str]:
    """Give the field that a request was refused for, and why."""
    (found,) = [fact for fact in decision.facts if isinstance(fact, facts.RequestRefused)]
    return found.field, found.reason


def told_why(cell: Cell) -> list[tuple[str, str]]:
    """Give the verb and the rule of each reason that was given last."""
    return [(reason.verb, reason.rule) for reason in cell.last.reasons]


def save_and_leave(cell: Cell, job: str = "j0", step: int = 7) -> None:
    """The gang saves its work and leaves, as it was told."""
    cell.acks()
    cell.save(job, step)
    cell.stop_workers(job, step=step)
