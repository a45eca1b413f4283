"""`tidegate branch`: go on from any entry of a log, as it was and with a change."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bus.contract import Unreadable
from console.kafka import opened_log, resolved
from console.output import JsonPath, emit_json, fail, out, tell
from console.simulate import dask_cluster
from explain.moments import day_clock
from schemas.journal import MISSHAPEN
from schemas.requests import VerbData
from schemas.topics import JOURNAL
from simulator.branch.change import Change
from simulator.branch.control import run_with_control
from simulator.branch.deeds import Deed
from simulator.branch.document import document, owners_need
from simulator.branch.origin import BranchError, Origin, read_origin
from simulator.branch.requests import verb_of
from simulator.branch.run import Outcome, Range
from simulator.branch.save import Recorder
from simulator.remote import ClusterError

#: Options that are not called as what they ask for.
_OPTIONS = {
    "settings": "--set",
    "add_nodes": "--add-nodes",
    "requests": "--request",
    "jobs": "--job",
}
_ROWS = (
    ("done", "jobs done"),
    ("mean_jct_h", "mean h from submission to end"),
    ("deadlines_met", "deadlines met"),
    ("preemptions", "preemptions"),
    ("migrations", "migrations"),
    ("loans", "nodes lent"),
    ("reclaims", "nodes given back"),
    ("reclaims_late", "of them late"),
    ("used_gpu_h", "GPU hours used by jobs"),
    ("lent_gpu_h", "GPU hours on loan"),
    ("short_gpu_h", "GPU hours that owners missed"),
    ("waiting", "jobs that wait at the end"),
)


def branch(
    log: Annotated[str, typer.Argument(help="A log: SQLite, .jsonl, .jsonl.zst or kafka:.")],
    entry: Annotated[
        int | None, typer.Option(min=0, help="The entry to go on after. If not given: the newest.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Another policy, with options if wanted: tide:patience_s=60.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An engine setting."),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option("--add-nodes", metavar="POOL=N", help="Nodes like the first of a pool."),
    ] = None,
    lose: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="A node that is lost, for good.")
    ] = None,
    demand: Annotated[float, typer.Option(help="Times what owners need from then on.")] = 1.0,
    requests: Annotated[
        list[str] | None,
        typer.Option(
            "--request",
            metavar="JSON",
            help="What an operator asks for at the entry; its moments count from there.",
        ),
    ] = None,
    jobs: Annotated[
        list[str] | None,
        typer.Option(
            "--job", metavar="LIKE=N", help="Jobs like one of the log, submitted at the entry."
        ),
    ] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=744.0, help="How long to go on.")] = 6.0,
    runs: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="How often. All but the first draw what nobody has measured."
        ),
    ] = 1,
    dask: Annotated[
        str | None,
        typer.Option(help="Make the runs on this Dask cluster, not here: tcp://HOST:PORT."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.db", help="Keep the branch as a log that replays.")
    ] = None,
    cell: Annotated[str | None, typer.Option(help="Which cell; else the only one.")] = None,
    json_path: JsonPath = None,
) -> None:
    """Try another night: go on from an entry of a log, as it was and with a change.

    The real engine decides, with ideal agents; what came from outside is as the log recorded it.
    Beside the branch stands its control, the same without the change: how far it is from what
    really happened is said above the table.

    Exit code 0: it was run. 2: the log or an option cannot be used.

    Example: tidegate branch run.db --entry 5000 --policy fifo --hours 6
    """
    change = Change(
        policy=policy,
        settings=_settings(settings or []),
        add=tuple(_nodes(one) for one in add or []),
        lose=tuple(lose or []),
        demand=demand,
        requests=tuple(_verb(one) for one in requests or []),
        jobs=tuple(_job(one) for one in jobs or []),
    )
    if save is not None and save.exists():
        fail(f"--save: {save} exists; name a new file.")
    if save is not None and not save.absolute().parent.is_dir():
        fail(f"--save: {save} cannot be written; name a file in a folder that exists.")
    with opened_log(resolved(log), cell) as opened:
        opened.verify()
        try:
            begin = read_origin(opened.records(JOURNAL.name), entry, hours, cell=cell)
        except BranchError as error:
            fail(_said(error))
        try:
            recorder = Recorder(begin)
            submit = None if dask is None or runs == 1 else dask_cluster(dask)
            found = run_with_control(begin, change, runs, watch=recorder.saw, submit=submit)
        except BranchError as error:
            fail(_said(error))
        except ClusterError as error:
            fail(f"--dask: {error}.")
        except MISSHAPEN as error:
            raise Unreadable(
                f"what follows entry {begin.entry} cannot be worked out: {type(error).__name__}: "
                f"{error}; `tidegate replay {log}` says whether a scheduler wrote what is before "
                "it; if one did, report this with what TIDEGATE_DEBUG=1 shows"
            ) from error
        if save is not None:
            recorder.save(opened.records(JOURNAL.name), save)
    if json_path != "-":
        control, changed, ranged = found.control, found.changed, found.ranged
        _show(begin, found.record, control.at_record_end)
        _table(control.outcome, None if change.is_none else changed.outcome, ranged)
        if ranged is not None:
            out().print(f"In parentheses: the least and the most of {runs} runs.", markup=False)
        if not change.is_none:
            _first(begin, found.differs)
        if save is not None:
            tell(f"Saved: tidegate replay {save}")
    emit_json(document(found, log), json_path)


def _said(error: BranchError) -> str:
    return f"{_OPTIONS.get(error.part, f'--{error.part}')}: {error.reason}."


def _settings(given: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in given:
        name, _, value = one.partition("=")
        try:
            found[name] = float(value if name.strip() else "")
        except ValueError:
            fail(f"--set: {one!r} is not KEY=VALUE with a number, as in cycle_s=30.")
    return found


def _nodes(text: str) -> tuple[str, int]:
    pool, _, count = text.partition("=")
    if not (pool and count.isascii() and count.isdigit() and len(count) < 6):
        fail(f"--add-nodes: {text!r} is not POOL=N, as in training=2.")
    return pool, int(count)


def _job(text: str) -> tuple[str, int]:
    job, _, count = text.rpartition("=")
    if not (job and count.isascii() and count.isdigit() and len(count) < 6):
        fail(f"--job: {text!r} is not LIKE=N, as in job-0042=3.")
    return job, int(count)


def _verb(text: str) -> VerbData:
    try:
        return verb_of(text)
    except BranchError as error:
        fail(_said(error))


def _show(begin: Origin, record: Outcome | None, control: Outcome) -> None:
    at = day_clock(begin.at_s, begin.origin_s)
    until = day_clock(begin.until_s, begin.origin_s)
    out().print(
        f"From entry {begin.entry}, {at}, until {until}. Owners need: {owners_need(begin)}."
    )
    if record is None:
        out().print("The log ends here: nothing says how far the control is from what will be.")
        return
    parts = []
    for name, said in _ROWS:
        was, is_ = getattr(record, name), getattr(control, name)
        if name in ("mean_jct_h", "done", "reclaims", "preemptions", "used_gpu_h"):
            parts.append(f"{said} {_number(is_)} for {_number(was)}")
    end = day_clock(min(begin.record.until_s, begin.until_s), begin.origin_s)
    out().print(f"The control against the record, until {end}: {'; '.join(parts)}.", soft_wrap=True)


def _table(
    control: Outcome, changed: Outcome | None, ranged: dict[str, dict[str, Range]] | None
) -> None:
    sides = {"control": control} if changed is None else {"control": control, "branch": changed}
    table = Table(box=None)
    table.add_column("")
    for name in sides:
        table.add_column(name, justify="right")
    if ranged is not None and changed is not None:
        table.add_column("difference", justify="right")
    for part, said in _ROWS:
        cells = [_number(getattr(side, part)) for side in sides.values()]
        if ranged is not None:
            cells = [
                f"{cell} {_range(ranged[name][part])}"
                for cell, name in zip(cells, sides, strict=True)
            ]
            if changed is not None:
                cells.append(_range(ranged["difference"][part]))
        table.add_row(said, *cells)
    out().print(table)


def _range(found: Range) -> str:
    return "" if found is None else f"({_number(found[0])} to {_number(found[1])})"


def _first(begin: Origin, differs: tuple[Deed, bool] | None) -> None:
    if differs is None:
        out().print("No decision differs.")
        return
    deed, of_control = differs
    side = "only in the control" if of_control else "only in the branch"
    at = day_clock(deed.at_s, begin.origin_s)
    tell(f"First decision that differs, {at}, entry {deed.entry}, {side}: {deed.said()}")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
