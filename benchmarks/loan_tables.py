"""The table of docs/results/loans.md that holds policies with loans against `fifo` without."""

import json
from pathlib import Path

_FULL = "15 days, 50,000 jobs, 440 + 520 servers"
#: A row's run, and its raw file.
_RUNS = (
    (f"**{_FULL}, the defaults: all jobs elastic, 0.8 as fast**", "loans-fifo-elastic-0.8"),
    ("the same, `--seed 2`", "loans-fifo-elastic-0.8-seed2"),
    (f"{_FULL}, all jobs elastic, 1/3 as fast", "loans-fifo-elastic-0.333"),
    ("4 days, 1,333 jobs, 44 + 52 servers, all elastic, 0.8", "loans-fifo-small-elastic-0.8"),
    ("5 days, 1,667 jobs, 44 + 52 servers, Aryl's mix, 1/3", "loans-fifo-small-aryl-0.333"),
)


def against_fifo(data: Path) -> str:
    """Make the table: how many times as long jobs queue, and take, under `fifo`."""
    columns = (
        *("trace, speed of a lent GPU", "policy", "queueing", "JCT", "bound"),
        *("owners short", "late reclaims"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for says, name in _RUNS:
        rows = json.loads((data / f"{name}.json").read_text("utf-8"))["rows"]
        for row in rows:
            if row["policy"] == "fifo":
                continue
            cells = (
                says if row is rows[1] else "",
                f"`{row['policy']}`",
                f"{row['queueing_ratio']:.1f}x",
                f"{row['jct_ratio']:.2f}x",
                f"{row['jct_ratio_bound']:.2f}x",
                f"{row['inference_shortfall_ratio']:.3%}",
                f"{row['reclaims_late']:,}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
