"""Whether more to run on ever makes jobs slower: `python -m benchmarks.more_capacity`.

A day of generated jobs on 8 nodes of 8 GPUs, with deadlines for 45 % of them, at several loads and
many seeds, through the running engine: as it is, with lenders, with edge servers, with both; and
each again where one job in ten has a higher priority. Capacity is what is added; the jobs stay the
same. Beside the mean and the deadlines of all seeds stands the worst seed, where chance shows.

Columns: mean completion time and its change against `nothing` added, on average and on the worst
seed; deadlines met, and how many more than with `nothing`; the mean of the seeds' p99.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.figures import parser_of, write
from simulator.compare import Case, Finished, compare
from simulator.generated import Mix
from simulator.physics.base import Cluster
from simulator.physics.simple import GENERATED

LOADS = (0.6, 0.9, 1.2)
SEEDS = tuple(range(31, 51))
#: What is added: servers to borrow, and edge servers.
ADDED = {"nothing": (0, 0), "lenders": (4, 0), "edges": (0, 8), "both": (4, 8)}
PRIOR = (0.0, 0.1)
CLUSTER = Cluster(8, 8)


@dataclass(frozen=True, slots=True)
class Key:
    """Which run."""

    policy: str
    load: float
    priority_share: float
    added: str
    seed: int


def case(key: Key) -> Case:
    """Return the run to make."""
    lenders, edges = ADDED[key.added]
    return Case(
        key.policy,
        GENERATED,
        physics="simple",
        cluster=CLUSTER,
        inference_nodes=lenders,
        edge_nodes=edges,
        seed=key.seed,
        mix=Mix(load=key.load, priority_share=key.priority_share),
    )


def rows_of(runs: dict[Key, dict[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each policy, load, share of priorities and what is added."""
    rows = []
    for one in dict.fromkeys((key.policy, key.load, key.priority_share, key.added) for key in runs):
        policy, load, priority_share, added = one
        mine = [runs[Key(policy, load, priority_share, added, seed)] for seed in seeds]
        base = [runs[Key(policy, load, priority_share, "nothing", seed)] for seed in seeds]
        jct_s = np.array([run["mean_jct_s"] for run in mine])
        was_s = np.array([run["mean_jct_s"] for run in base])
        met = np.array([run["deadlines_met"] for run in mine])
        met_base = np.array([run["deadlines_met"] for run in base])
        rows.append(
            {
                "policy": policy,
                "load": load,
                "priority_share": priority_share,
                "added": added,
                "seeds": len(seeds),
                "mean_jct_s": round(float(jct_s.mean()), 1),
                "against_nothing": round(float(jct_s.mean() / was_s.mean() - 1), 4),
                "worst_seed": round(float((jct_s / was_s - 1).max()), 4),
                "deadlines": int(sum(run["deadlines"] for run in mine)),
                "met": int(met.sum()),
                "met_more": int((met - met_base).sum()),
                "met_more_worst_seed": int((met - met_base).min()),
                "p99_jct_s": round(float(np.mean([run["p99_jct_s"] for run in mine])), 0),
                "max_jct_s": round(float(max(run["max_jct_s"] for run in mine)), 0),
                "restarts_per_job": round(float(np.mean([r["restarts_per_job"] for r in mine])), 3),
                "owner_short": round(
                    float(max(r.get("inference_shortfall_ratio") or 0.0 for r in mine)), 6
                ),
                "reclaims_late": sum(int(run.get("reclaims_late") or 0) for run in mine),
                "claims_timed_out": sum(int(run["claims_timed_out"]) for run in mine),
                "invariant_violations": sum(int(run["invariant_violations"]) for run in mine),
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Write rows for people."""
    head = (
        "policy",
        "load",
        "priority",
        "added",
        "mean s",
        "change",
        "worst",
        "met",
        "more",
        "p99 s",
    )
    lines = ["".join(f"{one:>10}" for one in head)]
    for row in rows:
        cells = (
            *(row["policy"], f"{row['load']:g}", f"{row['priority_share']:g}", row["added"]),
            *(f"{row['mean_jct_s']:,.0f}", f"{row['against_nothing']:+.1%}"),
            *(f"{row['worst_seed']:+.1%}", f"{row['met']}/{row['deadlines']}"),
            *(f"{row['met_more']:+d}", f"{row['p99_jct_s']:,.0f}"),
        )
        lines.append("".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for, and print it."""
    parser = parser_of("more_capacity", __doc__)
    parser.add_argument("--policy", default="tide", help="names, by commas (tide)")
    parser.add_argument(
        "--loads", default=",".join(map(str, LOADS)), help="by commas (%(default)s)"
    )
    parser.add_argument(
        "--priority-share",
        default=",".join(map(str, PRIOR)),
        help="shares of jobs of priority 1 (%(default)s)",
    )
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="by commas (31 to 50)")
    parser.add_argument("--processes", type=int, help="runs at once; one per core if not given")
    given = parser.parse_args(argv)
    seeds = [int(one) for one in given.seeds.split(",")]
    keys = [
        Key(policy, float(load), float(priority_share), added, seed)
        for policy in given.policy.split(",")
        for load in given.loads.split(",")
        for priority_share in given.priority_share.split(",")
        for added in ADDED
        for seed in seeds
    ]

    def tell(done: int, one: Finished) -> None:
        sys.stderr.write(f"\r{done} of {len(keys)} runs: {one.case.policy}  ")

    found = compare([case(key) for key in keys], given.processes, tell)
    rows = rows_of({key: one.row() for key, one in zip(keys, found, strict=True)}, seeds)
    print("\n" + table(rows))
    write(given.json, runs=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
