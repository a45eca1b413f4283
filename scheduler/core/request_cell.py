"""Requests about the whole cell: what each does."""

from scheduler.core import facts, pauses
from scheduler.core.rights import Wrong
from scheduler.core.standing import Part
from scheduler.core.turn import Turn
from schemas.requests import PauseCell, Request, ResumeCell

_PARTS: tuple[Part, ...] = ("starts", "loans")


def pause(turn: Turn, request: Request, args: PauseCell) -> Wrong | None:
    """Pause starts of jobs, loans, or both; a pause that holds gets the new end and reason."""
    now_s = turn.state.now_s
    if args.until_s is not None and args.until_s <= now_s:
        return "args.until_s", f"is {now_s - args.until_s:.0f} s past; name a later time"
    for what in _PARTS:
        if args.what in (what, "all"):
            turn.emit(
                facts.CellPaused(what, request.id, request.subject, request.reason, args.until_s)
            )
    pauses.drop_barred(turn)
    return None


def resume(turn: Turn, request: Request, args: ResumeCell) -> Wrong | None:
    """End pauses."""
    found = [
        what for what in _PARTS if args.what in (what, "all") and what in turn.state.standing.pauses
    ]
    if not found:
        return "args.what", "nothing of this is paused" if args.what == "all" else "is not paused"
    for what in found:
        turn.emit(facts.CellResumed(what, request.subject))
    return None
