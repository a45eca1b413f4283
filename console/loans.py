"""`tidegate loans`: what is on loan; and what operators ask of loans: freeze, unfreeze, recall."""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.text import Text

from console import tables
from console.columns import LEFT, RIGHT, Columns, fitted
from console.forms import Found, asks, looks, moves
from console.node import TIME_FROM_NOW, from_now
from console.output import fail, out
from console.source import Source, Wish, already
from explain.loan_history import PastLoan
from explain.moments import day_clock, duration
from schemas.requests import FreezeLoans, RecallLoans, UnfreezeLoans, VerbData

app = typer.Typer(invoke_without_command=True)
app.callback()(tables.loans)
_HISTORY: Columns = {
    "node": LEFT,
    "pool": LEFT,
    "lent": LEFT,
    "called back": LEFT,
    "by entry": RIGHT,
    "notice": RIGHT,
    "due": LEFT,
    "back": LEFT,
    "late": RIGHT,
}
_HISTORY_DROP = ("pool", "lent", "back", "due", "called back")
_Lender = Annotated[
    str | None,
    typer.Argument(metavar="[NODE|POOL]", help="Of a lender; if not given, of every lender."),
]


@app.command()
@looks
def history(
    at: Source,
    late: Annotated[bool, typer.Option("--late", help="Only those that are or were late.")] = False,
) -> Found:
    """List every loan so far: since when, when it was called back, due and back, and how late.

    notice: how long before it was due a node was called back: its gangs save their work then.

    Example: tidegate loans history --late --log run.db
    """
    seen, origin_s = at.loan_history(), at.overview().it.origin_s
    shown = [one for one in seen.it if one.late_s > 0.0 or not late]

    def clock(moment_s: float | None) -> str:
        return "–" if moment_s is None else day_clock(moment_s, origin_s)

    rows: list[list[Text | str]] = [
        [
            Text(one.node, "bold"),
            Text(one.pool or "–"),
            clock(one.since_s),
            clock(one.called_s),
            "–" if one.called_entry is None else f"{one.called_entry}",
            _notice(one),
            clock(one.due_s),
            _end(one, clock),
            Text(duration(one.late_s), "red") if one.late_s > 0.0 else "–",
        ]
        for one in shown
    ]
    title = Text.assemble(("Loans so far", "bold"), (f"  {seen.as_of}", "dim"))
    none = "No loan is or was late." if late and seen.it else "Nothing was lent so far."
    table = fitted(title, _HISTORY, rows, _HISTORY_DROP, out())
    return Found({"loans": shown}, [table if rows else Text(none)], seen.age)


def _end(loan: PastLoan, clock: Callable[[float | None], str]) -> str:
    at = clock(loan.end_s)
    return {"lent": at, "going": "on its way", "back": at, "lost": f"lost {at}"}[loan.state]


def _notice(loan: PastLoan) -> str:
    if loan.called_s is None or loan.due_s is None:
        return "–"
    return duration(loan.due_s - loan.called_s)


@app.command()
@asks
def freeze(
    at: Source,
    lender: _Lender = None,
    lasts: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Such as 30m or 2h; if not given, for good."),
    ] = None,
) -> Wish:
    """Borrow nothing there any more; what is on loan stays so until its owner needs it.

    Example: tidegate loans freeze serve --for 2h --reason "launch day" --log run.db
    """
    in_s = None if lasts is None else from_now("--for", lasts)
    _check(at, lender)
    until_s = None if in_s is None else at.now_s + in_s
    end = "until it is unfrozen" if lasts is None else f"for {lasts}"
    args = FreezeLoans(lender=lender, until_s=until_s)
    return _wish(args, lender, f"nothing is newly borrowed {end}")


@app.command()
@asks
def unfreeze(at: Source, lender: _Lender = None) -> Wish:
    """Lift the freeze of this name; without a name, every freeze.

    Example: tidegate loans unfreeze serve --log run.db
    """
    _check(at, lender)
    frozen = at.rules().it.freezes
    if not frozen or (lender is not None and lender not in frozen):
        names = ", ".join(sorted(name or "every lender" for name in frozen)) or "nothing"
        said = f"{lender or 'every lender'}: there is nothing to lift; frozen is {names}."
        return already(said, {"lender": lender or ""})
    return _wish(UnfreezeLoans(lender=lender), lender, "may be borrowed again")


@app.command()
@moves
def recall(
    at: Source,
    lender: Annotated[str, typer.Argument(metavar="NODE|POOL", help="Of a lender.")],
    by: Annotated[str, typer.Option("--by", metavar="TIME", help=TIME_FROM_NOW)] = "10m",
) -> Wish:
    """Call nodes on loan back: their jobs move, or save their work and wait.

    The policy may borrow a node again later, unless its lender is frozen: freeze it first.

    Example: tidegate loans recall serve --by 10m --reason "launch day" --log run.db
    """
    in_s = from_now("--by", by)
    _check(at, lender)
    args = RecallLoans(lender=lender, by_s=at.now_s + in_s)
    return _wish(args, lender, f"called back, to be with its owner in {by}")


def _check(at: Source, lender: str | None) -> None:
    known = {name for row in at.nodes().it.nodes for name in (row.node, row.pool)}
    if lender is not None and lender not in known:
        fail(
            f"{lender}: no such node or pool in {at.name}; `tidegate nodes` lists those there are."
        )


def _wish(args: VerbData, lender: str | None, said: str) -> Wish:
    return Wish(args, f"{lender or 'every lender'}: {said}.", {"lender": lender or ""})
