"""The table of the project's README: what the default policy gains, made of raw files.

Each benchmark has the best other policy beside `tide`, also where that one is ahead.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def gains(data: Path) -> str:
    """Make the table from the folder of raw files."""

    def rows(*names: str) -> list[Mapping[str, Any]]:
        read = [json.loads((data / f"{name}.json").read_text("utf-8")) for name in names]
        return [row for raw in read for row in raw.get("rows", raw.get("runs"))]

    types, days = rows("gpu-types"), rows("day")
    lines = [
        "| benchmark | figure | `tide` | the best other |",
        "|---|---|---|---|",
        _least(
            "[Pollux's 16 workloads](docs/results/completion-times.md), on which `tide` was tuned",
            "mean completion time",
            [
                row
                for row in rows("completion-times")
                if not row["policy"].startswith("tide-")  # told more, or less, than others
            ],
            lambda row: row["mean_jct_s"],
            _seconds,
        ),
        *(
            _least(
                f"[Sia's three types of GPUs](docs/results/gpu-types.md), its workloads {name}",
                "mean completion time",
                rows(file),
                lambda row: row["mean_jct_s"],
                _seconds,
            )
            for name, file in (("of Philly", "sia-philly"), ("of Saturn", "sia-saturn"))
        ),
        *(
            _least(
                f"[Gavel's three types](docs/results/gpu-types.md), {rate_h:g} jobs an hour",
                "mean completion time",
                [row for row in types if row["rate_h"] == rate_h],
                lambda row: row["mean_jct_h"],
                "{:.1f} h".format,
            )
            for rate_h in sorted({row["rate_h"] for row in types})
        ),
        *_deadlines(rows("deadlines"), rows("deadlines-tide")),
        *(
            _least(
                f"[Loans](docs/results/loans.md), a tenth of Aryl's cluster, {mix}",
                "mean completion time",
                rows(f"{file}-tide", f"{file}-peers"),
                lambda row: row["lent"]["mean_jct_s"],
                _seconds,
            )
            for mix, file in (
                ("all jobs elastic", "loans-elastic-0.8"),
                ("Aryl's mix", "loans-aryl-0.8"),
            )
        ),
        _least(
            "[The day of `make demo`](docs/results/simulated-day.md), seeds 7 (its own) and 8",
            "hours that a job spends",
            days,
            lambda row: row["mean_spent_s"] / 3600.0,
            "{:.2f} h".format,
        ),
        _met(days),
    ]
    return "\n".join(lines)


def _seconds(value_s: float) -> str:
    return f"{value_s:,.0f} s"


def _means(rows: Iterable[Mapping[str, Any]], figure: Callable[[Any], float]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(figure(row))
    return {policy: mean(each) for policy, each in found.items()}


def _least(
    where: str,
    what: str,
    rows: Rows,
    figure: Callable[[Any], float],
    shown: Callable[[float], str],
) -> str:
    """Make a row of a mean of which less is better."""
    means = _means(rows, figure)
    ours = means.pop("tide")
    best = min(means, key=lambda policy: means[policy])
    change = f"{100 * (ours / means[best] - 1):+.1f} %"
    return f"| {where} | {what} | **{shown(ours)}** ({change}) | `{best}`, {shown(means[best])} |"


def _deadlines(peers: Rows, own: Rows) -> list[str]:
    rows = [*own, *(row for row in peers if row["policy"] != "tide")]
    met = _means(rows, lambda row: row["ratio"])
    ours, bound = met.pop("tide"), mean(row["bound"] for row in own)
    best = max(met, key=lambda policy: met[policy])
    broken = {
        policy: sum(row["promises_broken"] for row in rows if row["policy"] == policy)
        for policy in ("tide", "elasticflow")
    }
    return [
        "| [ElasticFlow's eight traces](docs/results/deadlines.md), clusters of 8, 16, 32 nodes |"
        f" deadlines met, at most {bound:.1%} | **{ours:.1%}** | `{best}`, {met[best]:.1%} |",
        f"| | promises broken | **{broken['tide']}** | `elasticflow`, {broken['elasticflow']:,} |",
    ]


def _met(days: Rows) -> str:
    met = _means(days, lambda row: row["deadlines_met"])
    due = mean(
        row["deadlines_total"] - row["deadlines_open"] for row in days if row["policy"] == "tide"
    )
    ours = met.pop("tide")
    best = max(met, key=lambda policy: met[policy])
    return (
        f"| | deadlines met, of {due:.0f}, of which many can be met by nobody |"
        f" **{ours:.0f}** | `{best}`, {met[best]:.0f} |"
    )
