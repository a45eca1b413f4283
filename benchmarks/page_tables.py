"""Tables of the pages in docs/results, made of their raw files by `python -m benchmarks.results`.

A table stands between `<!-- table NAME -->` and `<!-- end of table -->`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.broker_tables import chaos, fleets
from benchmarks.gains import gains
from benchmarks.loan_tables import against_fifo

_ADDED = {
    "nothing": "nothing",
    "lenders": "32 GPUs to borrow",
    "edges": "8 edge servers",
    "both": "both",
}
_TABLE = re.compile(r"(<!-- table (\S+) -->\n).*?(\n<!-- end of table -->)", re.DOTALL)


def capacity(data: Path, suffix: str) -> str:
    """Make the table of what added capacity does, at each load from the highest."""
    columns = "load|added|mean completion, s|change|worst seed|deadlines met|p99, s|restarts a job"
    lines = [f"| {' | '.join(columns.split('|'))} |", "|---" * 8 + "|"]
    for load in ("1.2", "0.9", "0.6"):
        read = json.loads((data / f"more-capacity-{load}{suffix}.json").read_text("utf-8"))
        lines += [f"| {' | '.join(_capacity_row(run))} |" for run in read["runs"]]
    return "\n".join(lines)


def _capacity_row(run: Mapping[str, Any]) -> tuple[str, ...]:
    alone = run["added"] == "nothing"
    return (
        f"{run['load']:g}" if alone else "",
        _ADDED[run["added"]],
        f"{run['mean_jct_s']:,.0f}",
        "" if alone else _change(run["against_nothing"]),
        "" if alone else _change(run["worst_seed"]),
        f"{run['met']:,} of {run['deadlines']:,}",
        f"{run['p99_jct_s']:,.0f}",
        f"{run['restarts_per_job']:.2f}",
    )


def _change(part: float) -> str:
    return "0.0 %" if abs(part) < 0.0005 else f"{100 * part:+.1f} %"


def tail(data: Path) -> str:
    """Make the table of what a shorter tail costs."""
    raw = json.loads((data / "tail.json").read_text("utf-8"))
    columns = (
        *("policy", "mean completion, s", "above the least", "p99, s", "above the least by rights"),
        *("longest, s", "longest wait, s", "deadlines met"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for run in raw["runs"]:
        cells = (
            f"`{run['policy']}`",
            f"{run['mean_jct_s']:,.0f}",
            _change(run["mean_above_best"]),
            f"{run['p99_jct_s']:,.0f}",
            _change(run["p99_above_rights"]),
            f"{run['max_jct_s']:,.0f}",
            f"{run['max_queueing_s']:,.0f}",
            f"{run['met']:,} of {run['deadlines']:,}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


#: Of the console: what is measured, its aim, and the names of its figures.
_CONSOLE = (
    ("first paint", "1 s", "paint_first"),
    ("the first view has its figures", "1 s", "paint_figures"),
    ("a moment far away is drawn, by a click on the scrubber", "3 s", "seek_far"),
    ("and all that stands beside", "", "seek_far_all"),
    ("one near, by an arrow key", "300 ms", "seek_near"),
    ("the one before, by `,`", "300 ms", "seek_step"),
    ("the fleet is repainted: other colours", "16 ms", "fleet_repaint"),
    ("frames meanwhile", "", "fleet_frame"),
    ("the fleet is repainted: the entry before", "16 ms", "fleet_step_repaint"),
    ("the fleet of the entry before is drawn", "300 ms", "fleet_step"),
    ("frames while 50,000 jobs are scrolled", "50 ms", "scroll_frame"),
    ("rows at a place far away are there", "", "scroll_jump"),
)


def console(data: Path) -> str:
    """Make the table of what the console takes."""
    raw = json.loads((data / "console.json").read_text("utf-8"))
    lines = ["| p50 / p95 / longest, in ms | aim | measured |", "|---" * 3 + "|"]
    lines += [f"| {says} | {aim} | {_times(raw, name)} |" for says, aim, name in _CONSOLE]
    return "\n".join(lines)


def _times(raw: Mapping[str, Any], name: str) -> str:
    return " / ".join(_figure(raw[f"{name}_{part}_ms"]) for part in ("p50", "p95", "max"))


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def gpu_types(data: Path, *names: str) -> str:
    """Make the table of policies on several types of GPUs: means over seeds, and each seed's."""
    files = [json.loads((data / f"{name}.json").read_text("utf-8")) for name in names]
    rows = [row for raw in files for row in raw["rows"]]
    columns = "jobs an hour|policy|hours a job|each seed|p99, hours|restarts a job"
    lines = [f"| {' | '.join(columns.split('|'))} |", "|---" * 6 + "|"]
    for rate_h in sorted({row["rate_h"] for row in rows}):
        mine = [row for row in rows if row["rate_h"] == rate_h]
        for policy in dict.fromkeys(row["policy"] for row in mine):
            runs = [row for row in mine if row["policy"] == policy]
            cells = (
                f"{rate_h:g}" if runs[0] is mine[0] else "",
                f"`{policy}`",
                f"{mean(row['mean_jct_h'] for row in runs):.1f}",
                ", ".join(f"{row['mean_jct_h']:.1f}" for row in runs),
                f"{mean(row['p99_jct_h'] for row in runs):.0f}",
                f"{mean(row['restarts_per_job'] for row in runs):.1f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def sia(data: Path, name: str) -> str:
    """Make the table of policies on Sia's workloads: means over these."""
    rows = json.loads((data / f"{name}.json").read_text("utf-8"))["rows"]
    columns = "policy|mean, s|against `tide`, each workload|p99, s|restarts a job"
    lines = [f"| {' | '.join(columns.split('|'))} |", "|---" * 5 + "|"]
    ours = {row["workload"]: row["mean_jct_s"] for row in rows if row["policy"] == "tide"}
    for policy in dict.fromkeys(row["policy"] for row in rows):
        runs = [row for row in rows if row["policy"] == policy]
        against = [row["mean_jct_s"] / ours[row["workload"]] - 1 for row in runs]
        cells = (
            f"`{policy}`",
            f"{_mean(runs, 'mean_jct_s'):,.0f}",
            "" if policy == "tide" else f"{_change(min(against))} to {_change(max(against))}",
            f"{_mean(runs, 'p99_jct_s'):,.0f}",
            f"{_mean(runs, 'restarts_per_job'):.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


#: What the page of completion times says of a row beside the policy's name.
_KNOWN = {
    "tide": "`tide`, models learned",
    "tide-unknown": "`tide`, [lengths unknown too](unknown-lengths.md)",
    "tide-true": "`tide`, true goodput",
    "pollux": "`pollux`, models learned",
}


def completion_times(data: Path) -> str:
    """Make the table of all policies on Pollux's workloads, the shortest mean first."""
    rows = json.loads((data / "completion-times.json").read_text("utf-8"))["runs"]
    loads = [name for name in rows[0] if name.startswith("at_load_")]
    columns = (
        *("policy", "mean, s", "median, s", "p99, s", "restarts", "change"),
        *(f"load {name.removeprefix('at_load_')}" for name in loads),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in sorted(rows, key=lambda row: float(row["mean_jct_s"])):
        cells = (
            _KNOWN.get(row["policy"], f"`{row['policy']}`"),
            *(f"{row[name]:,.0f}" for name in ("mean_jct_s", "p50_jct_s", "p99_jct_s", "restarts")),
            *(_change(row[name]) for name in ("against_published_pollux", *loads)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def deadlines(data: Path, *names: str) -> str:
    """Make the table of deadlines met; the last policy is compared with the best of the others."""
    files = [json.loads((data / f"{name}.json").read_text("utf-8")) for name in names]
    rows = [row for raw in files for row in raw["runs"]]
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    columns = ["trace", "nodes of 8", "jobs", "alone", "together"]
    columns += [part for policy in policies for part in (f"`{policy}`", "promises it broke")]
    lines = [f"| {' | '.join((*columns, 'closed'))} |", "|---" * (len(columns) + 1) + "|"]
    for trace, nodes in dict.fromkeys((row["trace"], row["nodes"]) for row in rows):
        mine = [row for row in rows if (row["trace"], row["nodes"]) == (trace, nodes)]
        best, bound = max(row["ratio"] for row in mine[:-1]), mine[0]["bound"]
        gap, won = bound - best, mine[-1]["ratio"] - best
        said = [(f"{row['ratio']:.4f}", f"{row['promises_broken']:,}") for row in mine]
        cells = (
            *(trace, str(nodes), f"{mine[0]['jobs']:,}", f"{mine[0]['alone']:.4f}", f"{bound:.4f}"),
            *(part for pair in said for part in pair),
            f"{won / gap:.0%}" if gap > 1e-9 else "at the bound",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def failures(data: Path, name: str) -> str:
    """Make the table of policies whose nodes fail: means over seeds, sums where counts are."""
    raw = json.loads((data / f"{name}.json").read_text("utf-8"))
    often = list(dict.fromkeys(run["mtbf_h"] for run in raw["runs"]))
    timed = any(run["deadlines"] for run in raw["runs"])
    columns = [
        *("policy", "mean, s: never", *(f"after {hours} h" for hours in often[1:]), "p99, s"),
        *(["deadlines met"] if timed else []),
        *("gangs that failures ended", "GPU hours done again, of those held", "restarts a job"),
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for policy in dict.fromkeys(run["policy"] for run in raw["runs"]):
        found = {
            hours: [r for r in raw["runs"] if (r["policy"], r["mtbf_h"]) == (policy, hours)]
            for hours in often
        }
        never, last = found[often[0]], found[often[-1]]
        was_s, now_s = _mean(never, "mean_jct_s"), [_mean(found[h], "mean_jct_s") for h in often]
        met = [sum(run["deadlines_met"] for run in runs) for runs in (never, last)]
        again_h = sum(run["lost_gpu_s"] for run in last) / 3600.0
        cells = (
            *(f"`{policy}`", f"{was_s:,.0f}"),
            *(f"{one_s:,.0f} ({_change(one_s / was_s - 1)})" for one_s in now_s[1:]),
            f"{_mean(never, 'p99_jct_s'):,.0f} / {_mean(last, 'p99_jct_s'):,.0f}",
            *([f"{met[0]:,} / {met[1]:,}"] if timed else []),
            f"{sum(run['kills'] for run in last):,}",
            f"{again_h:,.0f} of {sum(run['gpu_h'] for run in last):,.0f}",
            f"{_mean(never, 'restarts_per_job'):.2f} / {_mean(last, 'restarts_per_job'):.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    return mean(float(run[name]) for run in runs)


#: By name, each table's maker, from the folder of raw files.
TABLES: Mapping[str, Callable[[Path], str]] = {
    "against-fifo": against_fifo,
    "capacity": lambda data: capacity(data, ""),
    "chaos": chaos,
    "completion-times": completion_times,
    "console": console,
    "deadlines-other": lambda data: deadlines(data, "deadlines-cluster08", "deadlines-cluster09"),
    "fleets": fleets,
    "gains": gains,
    "gpu-types": lambda data: gpu_types(data, "gpu-types"),
    "gpu-types-30": lambda data: gpu_types(data, "gpu-types-30"),
    "gpu-types-multiple": lambda data: gpu_types(
        data, "gpu-types-multiple", "gpu-types-multiple-gavel"
    ),
    "sia-philly": lambda data: sia(data, "sia-philly"),
    "sia-newtrace": lambda data: sia(data, "sia-newtrace"),
    "sia-saturn": lambda data: sia(data, "sia-saturn"),
    "failures-generated": lambda data: failures(data, "failures-generated"),
    "failures-pollux-1": lambda data: failures(data, "failures-pollux-1"),
    "failures-pollux-3": lambda data: failures(data, "failures-pollux-3"),
    "capacity-priority": lambda data: capacity(data, "-priority"),
    "tail": tail,
}


def with_tables(page: Path, data: Path) -> str:
    """Give a page with its tables as the raw files in a folder have them.

    Raises:
        KeyError: a table's name is not known.
    """

    def made(found: re.Match[str]) -> str:
        return f"{found[1]}\n{TABLES[found[2]](data)}\n{found[3]}"

    return _TABLE.sub(made, page.read_text(encoding="utf-8"))
