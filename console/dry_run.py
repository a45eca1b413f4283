"""What `--dry-run` shows: whether a scheduler would do it now, and what would follow.

On a log, what follows from a verb that moves work is simulated: a branch of the log's newest entry
in which it is asked for, beside its control (`tidegate branch`). A gateway says the first alone.
"""

from collections.abc import Iterator
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bus.contract import Unreadable
from console.kafka import opened_log
from console.output import emit_json, fail, out, say, tell
from console.source import Tried, Wish
from explain.moments import day_clock, duration
from schemas.requests import Request, SubmitJob
from schemas.topics import JOURNAL

if TYPE_CHECKING:
    from simulator.branch.preview import Deadline, Freed, Move, Preview

DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Only say what would come of it now; nothing is asked for."),
]
PreviewHours = Annotated[
    float,
    typer.Option(
        "--preview",
        metavar="HOURS",
        min=0.0,
        max=744.0,
        help="With --dry-run on a log: simulate so long what follows; 0: not at all.",
    ),
]
PREVIEW_H = 6.0
#: As many gangs are named as a terminal shows well.
_NAMED_MOST = 12
_OTHERS_MOST = 6
_DOES = {
    "saves_and_leaves": "saves its work and leaves its GPUs",
    "stops": "stops",
    "changes": "goes on with other GPUs",
    "starts": "starts otherwise",
}


def previewed(
    log: str, cell: str, asked: Request, now_s: float, hours: float
) -> "tuple[Preview | None, float, str]":
    """Simulate what follows from a request, asked at the newest entry of a log.

    Returns:
        What follows, when the log began, and, where nothing can be simulated, why.
    """
    # No verb but a dry run needs the simulator.
    from simulator.branch.change import Change
    from simulator.branch.origin import BranchError, read_origin
    from simulator.branch.preview import preview
    from simulator.branch.requests import relative
    from simulator.branch.run import branch

    args = relative(asked.args, now_s)
    try:
        with opened_log(log, cell) as opened:
            begin = read_origin(opened.records(JOURNAL.name), None, hours, cell=cell)
        control, changed = branch(begin), branch(begin, Change(requests=(args,)))
    except BranchError as error:
        return None, now_s, error.reason.partition(";")[0]
    except Unreadable as error:
        return None, now_s, str(error)
    return preview(begin, control, changed, args), begin.origin_s, ""


def show(wish: Wish, tried: Tried, json_path: str | None) -> None:
    """Say what would come of a wish; end with 1 if it would be refused."""
    spec = _spec(wish, tried)
    if json_path != "-" and not tried.refused_because:
        out().print("Dry run: a scheduler would do this now; nothing was asked for.")
        tell(wish.said)
        if spec is not None:
            tell(_whole(spec))
        for line in _lines(tried):
            tell(line)
    if not tried.refused_because:
        for line in (*wish.hints, *tried.notes):
            say(line)
    emit_json(
        {
            **wish.about,
            **tried.document,
            "dry_run": True,
            "result": "refused" if tried.refused_because else "would_be_done",
            "field": tried.field,
            "refused_because": tried.refused_because,
            "preview": tried.preview,
            **({} if spec is None else {"spec": spec}),
        },
        json_path,
    )
    if tried.refused_because:
        field = tried.field.removeprefix("args.").removeprefix("spec.")
        where = f"{field}: " if field else ""
        fail(f"Dry run: a scheduler would refuse it: {where}{tried.refused_because}.", code=1)


def _spec(wish: Wish, tried: Tried) -> dict[str, Any] | None:
    """Give the job that would be submitted, with all that need not be said; None: it is no job."""
    if not isinstance(wish.args, SubmitJob):
        return None
    spec = wish.args.spec.model_dump(mode="json", exclude_none=True)
    if wish.own and "context" in tried.document:
        del spec["tenant"]  # that of who asks, whom the gateway knows
    return spec


def _whole(spec: dict[str, Any]) -> str:
    """Write a job as its file could."""
    import yaml  # no other verb writes any

    text = ""
    for as_it_is in (True, False):
        text = yaml.safe_dump(
            spec, sort_keys=False, allow_unicode=as_it_is, default_flow_style=None
        ).rstrip()
        if text.replace("\n", "").isprintable():
            break  # else with escapes: what is not shown may have the rest shown in another order
    return indent(text, "  ")


def _lines(tried: Tried) -> Iterator[str]:
    found = tried.preview
    if found is None:
        return
    at = day_clock(found.at_s, tried.origin_s)
    length = duration(found.until_s - found.at_s)
    yield f"Simulated from entry {found.entry}, {at}, for {length}; beside it, the same without:"
    for node in found.nodes:
        yield f"  {_freed(node, found)}"
    mine = [move for move in found.moves if move.is_subject]
    others = [move for move in found.moves if not move.is_subject]
    yield from (f"  {_move(move, found)}" for move in mine[:_NAMED_MOST])
    if others:
        yield "  Others, which follow:" if mine else "  Which gangs fare otherwise:"
    yield from (f"    {_move(move, found)}" for move in others[:_OTHERS_MOST])
    if more := len(mine[_NAMED_MOST:]) + len(others[_OTHERS_MOST:]):
        yield f"    and {more} more, which --json names"
    if not found.moves:
        yield "  No gang moves, starts or stops otherwise."
    for one in found.missed:
        yield f"  {_deadline(one, found, 'misses its deadline')}"
    for one in found.won:
        yield f"  {_deadline(one, found, 'meets its deadline, which it would miss')}"
    if not found.missed:
        yield "  No deadline is missed for it."


def _freed(node: "Freed", found: "Preview") -> str:
    by = f"{duration(node.by_s - found.at_s)} from now"
    if node.free_s is None:
        return f"{node.node} is not free within this time; it is to be, {by}."
    if node.free_s <= found.at_s:
        return f"{node.node} is free now."
    late = "" if node.free_s <= node.by_s else f", which is late: it is to be free {by}"
    return f"{node.node} is free {_from_now(node.free_s - found.at_s)}{late}."


def _move(move: "Move", found: "Preview") -> str:
    at = _from_now(move.at_s - found.at_s)
    on = ", ".join(f"{node} ×{count}" for node, count in move.again_on.items())
    later = "" if move.again_s is None else f", after {duration(move.again_s - move.at_s)}"
    if move.does == "stays":
        then = f"; then it has {on}{later}" if on else ""
        return f"{move.job} stays as it is {at}, where it would change{then}."
    said = f"{move.job} {_DOES[move.does]} {at}"
    if not on:
        return f"{said}, and has none again by the end."
    if move.does in ("changes", "starts"):
        return f"{said}: {on}."
    return f"{said}; then it has {on}{later}."


def _from_now(in_s: float) -> str:
    return "at once" if in_s < 1.0 else f"in {duration(in_s)}"


def _deadline(one: "Deadline", found: "Preview", what: str) -> str:
    due = duration(one.deadline_s - found.at_s)
    done_s: Any = one.branch_s
    done = "not done by the end" if done_s is None else f"done in {duration(done_s - found.at_s)}"
    return f"{one.job} {what} in {due}: {done}."
