"""What a shorter tail costs: `python -m benchmarks.tail`.

An overloaded day of generated jobs on 8 nodes of 8 GPUs, with 32 GPUs to borrow and 8 edge servers,
through the running engine: `tide` at several settings of its one knob for the tail (`patience_s`),
and beside it who shares by rights (`drf`, `themis`, `pollux`) and who serves the shortest first.

Columns: the mean of the seeds' mean and 99th percentile of completion times, each against the least
of the table; the longest completion time and the longest wait for a first start of all seeds;
deadlines met. About half of the jobs have one, and those of `tide` that are promised to be in time
go before others: who looks at no deadline has a shorter tail for it, at equal skill.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.figures import parser_of, write
from benchmarks.more_capacity import Key, case
from simulator.compare import Finished, compare

PATIENCE_S = (1800, 3600, 7200, 10_800, 21_600, 86_400)
#: Those that give each job or tenant its share; Pollux by a mean of speed-ups that favours who has
#: little.
BY_RIGHTS = ("drf", "themis", "pollux")
POLICIES = (*(f"tide:patience_s={one}" for one in PATIENCE_S), *BY_RIGHTS, "sia", "srtf", "fifo")


def row(policy: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the seeds' runs of a policy came to."""

    def mean(figure: str) -> float:
        return round(float(np.mean([run[figure] for run in runs])), 1)

    return {
        "policy": policy,
        "seeds": len(runs),
        "mean_jct_s": mean("mean_jct_s"),
        "p99_jct_s": mean("p99_jct_s"),
        "max_jct_s": round(float(max(run["max_jct_s"] for run in runs)), 1),
        "max_queueing_s": round(float(max(run["max_queueing_s"] for run in runs)), 1),
        "deadlines": int(sum(run["deadlines"] for run in runs)),
        "met": int(sum(run["deadlines_met"] for run in runs)),
    }


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each row its mean against the least of all, its p99 against the least by rights."""
    mean_s = min(one["mean_jct_s"] for one in rows)
    p99_s = min(one["p99_jct_s"] for one in rows if one["policy"] in BY_RIGHTS)
    return [
        {
            **one,
            "mean_above_best": round(one["mean_jct_s"] / mean_s - 1, 4),
            "p99_above_rights": round(one["p99_jct_s"] / p99_s - 1, 4),
        }
        for one in rows
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows for people."""
    lines = [f"{'policy':<24}{'mean s':>9}{'':>8}{'p99 s':>9}{'':>8}{'max s':>9}{'wait s':>9}  met"]
    lines += [
        f"{one['policy']:<24}{one['mean_jct_s']:>9,.0f}{one['mean_above_best']:>+8.1%}"
        f"{one['p99_jct_s']:>9,.0f}{one['p99_above_rights']:>+8.1%}{one['max_jct_s']:>9,.0f}"
        f"{one['max_queueing_s']:>9,.0f}  {one['met']}/{one['deadlines']}"
        for one in rows
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for, and print it."""
    parser = parser_of("tail", __doc__)
    parser.add_argument("--load", type=float, default=1.2, help="of the day (%(default)s)")
    parser.add_argument("--seeds", default="31,32,33,34,35", help="by commas (%(default)s)")
    parser.add_argument("--processes", type=int, help="runs at once; one per core if not given")
    given = parser.parse_args(argv)
    seeds = [int(one) for one in given.seeds.split(",")]
    keys = [Key(policy, given.load, 0.0, "both", seed) for policy in POLICIES for seed in seeds]

    def tell(done: int, one: Finished) -> None:
        sys.stderr.write(f"\r{done} of {len(keys)} runs: {one.case.policy:<24}")

    found = compare([case(key) for key in keys], given.processes, tell)
    runs: dict[str, list[Mapping[str, Any]]] = {policy: [] for policy in POLICIES}
    for key, one in zip(keys, found, strict=True):
        runs[key.policy].append(one.row())
    rows = compared([row(policy, mine) for policy, mine in runs.items()])
    print("\n" + table(rows))
    write(given.json, load=given.load, runs=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
