"""What came of runs side by side: a table on the terminal, and rows in a file."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from console.columns import LEFT, RIGHT, Columns, fitted
from console.output import out, tell
from explain.shares import counted
from simulator.compare import Finished, line_of
from simulator.metrics import Number

_COLUMNS: Columns = {
    "policy": LEFT,
    "workload": LEFT,
    "jobs": RIGHT,
    "JCT s": RIGHT,
    "p50 s": RIGHT,
    "p99 s": RIGHT,
    "queued s": RIGHT,
    "span h": RIGHT,
    "on time": RIGHT,
    "used": RIGHT,
    "lent h": RIGHT,
    "short": RIGHT,
    "again h": RIGHT,
    "restarts": RIGHT,
    "preempted": RIGHT,
    "ms": RIGHT,
    "p99 ms": RIGHT,
    "max ms": RIGHT,
}
_LOANS = ("lent h", "short")  #: Columns of runs with inference servers.
_FAILURES = ("again h",)  #: Columns of runs in which nodes fail.
_DROP = (
    *("p50 s", "max ms", "used", "span h", "p99 ms", "restarts", "p99 s"),
    *("ms", "preempted", "short", "queued s", "again h"),
)
_LEGEND = (
    "JCT: mean completion time of jobs that ended; p50, p99: the median and the 99th percentile. "
    "queued: mean time to the first start. ms: mean time of a decision."
)
_ASKED = ": each job has the size that it asks for."
_LOANS_LEGEND = (
    " lent h: GPU hours on loan from inference servers. short: the part of the GPU time their "
    "owner needed that it did not have."
)
_FAILURES_LEGEND = " again h: GPU hours of work done again after failures."


def write_csv(runs: Sequence[Finished], path: Path) -> None:
    """Write all figures, a row for each run."""
    rows = [run.row() for run in runs]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def print_runs(runs: Sequence[Finished], notes: Sequence[str] = ()) -> None:
    """Print the figures that matter most, what the files were taken for, and what did not end."""
    files = list(dict.fromkeys(run.case.workload for run in runs))
    seeds = list(dict.fromkeys(run.case.seed for run in runs))
    names = _short(files)
    rows: list[list[Text | str]] = []
    for run in runs:
        name = names[run.case.workload] + (f" #{run.case.seed}" if len(seeds) > 1 else "")
        rows.append([Text(run.case.policy, "bold"), Text(name), *_cells(run.figures)])
    if len(files) * len(seeds) > 1:
        for policy in dict.fromkeys(run.case.policy for run in runs):
            mine = [run.figures for run in runs if run.case.policy == policy]
            name = f"all {len(mine)}, mean"
            rows.append([Text(policy, "bold"), Text(name, "bold"), *_cells(_averages(mine))])
    case = runs[0].case
    nodes = counted(case.cluster.nodes, "node")
    gpus = counted(case.cluster.gpus_per_node, "GPU")
    title = Text(f"{nodes} of {gpus}", "bold")
    for count, what in ((case.inference_nodes, "inference"), (case.edge_nodes, "edge")):
        title.append(f", {counted(count, f'{what} server')}" if count else "")
    cores = case.agents == "core"
    title.append(", real agent cores" if cores else f", {case.physics} physics")
    loans, fails = case.inference_nodes > 0, case.mtbf_h < math.inf
    title.append(f", nodes fail after {case.mtbf_h:g} h" if fails else "")
    hidden = (*(() if loans else _LOANS), *(() if fails else _FAILURES))
    columns = {name: told for name, told in _COLUMNS.items() if name not in hidden}
    shown = [index for index, name in enumerate(_COLUMNS) if name in columns]
    rows = [[row[index] for index in shown] for row in rows]
    out().print(fitted(title, columns, rows, _DROP, out()))
    completed = {run.case.policy: line_of(run.case.policy) for run in runs}
    asked = [f" {one} ran as {line}{_ASKED}" for one, line in completed.items() if one != line]
    legend = _LEGEND + "".join(asked)
    legend += (_LOANS_LEGEND if loans else "") + (_FAILURES_LEGEND if fails else "")
    out().print(Text("\n".join([legend, *notes]), "dim"))
    for run in runs:
        left, rejected = run.figures["unfinished"], run.figures["rejected"]
        if left or rejected:
            tell(
                f"{run.case.policy} on {names[run.case.workload]}: of {run.figures['jobs']} jobs "
                f"{rejected} were rejected and {left} did not finish; JCT does not count them."
            )


def _short(files: Sequence[str]) -> dict[str, str]:
    """Name files by as many of their last parts as tell them apart."""
    for count in range(1, 9):
        names = {file: "/".join(Path(file).with_suffix("").parts[-count:]) for file in files}
        if len(set(names.values())) == len(files):
            return names
    return {file: file for file in files}


def _averages(figures: Sequence[dict[str, Number]]) -> dict[str, Number]:
    found: dict[str, Number] = {}
    for name in figures[0]:
        values = [one[name] for one in figures]
        known = [float(value) for value in values if value is not None]
        found[name] = sum(known) / len(known) if known else None
    return found


def _cells(figures: dict[str, Number]) -> list[Text | str]:
    jobs, ended = figures["jobs"], figures["completed"]
    return [
        f"{jobs:.0f}" if jobs == ended else f"{ended:.0f}/{jobs:.0f}",
        _number(figures["mean_jct_s"]),
        _number(figures["p50_jct_s"]),
        _number(figures["p99_jct_s"]),
        _number(figures["mean_queueing_s"]),
        _number(figures["makespan_s"], ".1f", 1 / 3600.0),
        _number(figures["deadline_ratio"], ".1%"),
        _number(figures["utilisation"], ".0%"),
        _number(figures.get("loaned_gpu_h_offered")),
        _number(figures.get("inference_shortfall_ratio"), ".3%"),
        _number(figures.get("lost_gpu_s"), ".1f", 1 / 3600.0),
        _number(figures["restarts"]),
        _number(figures["preemptions"]),
        _number(figures["mean_decision_ms"], ".2f"),
        _number(figures["p99_decision_ms"], ".2f"),
        _number(figures["max_decision_ms"], ".1f"),
    ]


def _number(value: Number, style: str = ",.0f", scale: float = 1.0) -> str:
    return "–" if value is None else format(value * scale, style)
