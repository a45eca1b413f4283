"""How policies fare when nodes fail: `python -m benchmarks.failing`.

Half a day of generated jobs on 8 nodes of 8 GPUs, with deadlines for 45 % of them, and with
`--pollux` a workload of Pollux on 16 nodes of 4; at several mean times between two failures of a
node, through the running engine. A node that fails takes its gangs with it, back to their last
checkpoint. Nodes fail at the same moments for every policy; jobs stay the same.

Columns: mean completion time, and its change against `never`; deadlines met; the mean of the seeds'
p99; gangs that failures ended; GPU hours of work that had to be done again; changes of allocation.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.figures import parser_of, write
from benchmarks.jct import case as published_case, workload
from benchmarks.resampled import seeds_of
from simulator.compare import Case, Finished, compare
from simulator.generated import Mix
from simulator.physics.base import Cluster
from simulator.physics.simple import GENERATED

POLICIES = "tide,fifo,srtf,tiresias,pollux,afs,sia,gandiva,elasticflow,edf"
MTBF_H = "never,48,12"
CLUSTER = Cluster(8, 8)
#: Kept of each run.
FIGURES = (
    *("jobs", "rejected", "unfinished", "mean_jct_s", "p99_jct_s", "deadlines", "deadlines_met"),
    *("failures", "kills", "lost_gpu_s", "gpu_h", "restarts_per_job", "claims_timed_out"),
    *("invariant_violations",),
)


def case(policy: str, mtbf: str, seed: int, mix: Mix, pollux: tuple[str, int] | None) -> Case:
    """Return the run to make."""
    one = Case(policy, GENERATED, physics="simple", cluster=CLUSTER, mix=mix)
    if pollux is not None:
        one = published_case(policy, workload(*pollux))
    return replace(one, seed=seed, mtbf_h=math.inf if mtbf == "never" else float(mtbf))


def run_of(mtbf: str, one: Finished) -> dict[str, Any]:
    """Return what is kept of a run."""
    figures = {name: one.figures.get(name) for name in FIGURES}
    return {"policy": one.case.policy, "mtbf_h": mtbf, "seed": one.case.seed, **figures}


def rows_of(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each policy and mean time between failures, over all seeds."""
    rows = []
    for policy, mtbf in dict.fromkeys((run["policy"], run["mtbf_h"]) for run in runs):
        mine = [run for run in runs if (run["policy"], run["mtbf_h"]) == (policy, mtbf)]
        seeds = [run["seed"] for run in mine]
        never = [run for run in runs if (run["policy"], run["mtbf_h"]) == (policy, "never")]
        row = {name: sum(float(run[name] or 0.0) for run in mine) for name in FIGURES}
        for name in ("mean_jct_s", "p99_jct_s", "restarts_per_job"):
            row[name] /= len(mine)
        was_s = [float(run["mean_jct_s"]) for run in never if run["seed"] in seeds]
        row["against_never"] = row["mean_jct_s"] / float(np.mean(was_s)) - 1
        rows.append({"policy": policy, "mtbf_h": mtbf, "seeds": seeds, **row})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Write rows for people."""
    head = (*("policy", "mtbf h", "mean s", "change", "met", "p99 s"),
            *("kills", "again h", "restarts", "left"))  # fmt: skip
    lines = ["".join(f"{one:>12}" for one in head)]
    for row in rows:
        cells = (
            *(row["policy"], row["mtbf_h"], f"{row['mean_jct_s']:,.0f}"),
            *(f"{row['against_never']:+.1%}", f"{row['deadlines_met']:.0f}"),
            *(f"{row['p99_jct_s']:,.0f}", f"{row['kills']:.0f}"),
            *(f"{row['lost_gpu_s'] / 3600.0:,.0f}", f"{row['restarts_per_job']:.2f}"),
            f"{row['unfinished'] + row['rejected']:.0f}",
        )
        lines.append("".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for, and print it."""
    parser = parser_of("failing", __doc__)
    parser.add_argument("--policy", default=POLICIES, help="names, by commas (%(default)s)")
    parser.add_argument("--mtbf-h", default=MTBF_H, help="by commas, `never` first (%(default)s)")
    parser.add_argument("--seeds", default="11-14", help="of jobs and failures (%(default)s)")
    parser.add_argument("--load", type=float, default=0.9, help="of generated jobs (%(default)s)")
    parser.add_argument("--days", type=float, default=0.5, help="in which they come (%(default)s)")
    parser.add_argument("--pollux", metavar="LOAD/NUMBER", help="a workload of Pollux: 1.0/1")
    parser.add_argument("--processes", type=int, help="runs at once; one per core if not given")
    given = parser.parse_args(argv)
    policies, mtbfs = given.policy.split(","), given.mtbf_h.split(",")
    seeds = seeds_of(given.seeds)
    if mtbfs[0] != "never":
        parser.error("--mtbf-h: changes are against never; name it first")
    mix = Mix(days=given.days, load=given.load)
    load, _, number = (given.pollux or "").partition("/")
    pollux = (load, int(number)) if given.pollux else None
    keys = [(policy, mtbf) for policy in policies for mtbf in mtbfs]
    cases = [case(*key, seed, mix, pollux) for key in keys for seed in seeds]

    def tell(done: int, one: Finished) -> None:
        sys.stderr.write(f"{done} of {len(cases)} runs: {one.case.policy} {one.case.mtbf_h:g} h\n")

    found = compare(cases, given.processes, tell)
    named = [mtbf for _, mtbf in keys for _ in seeds]
    runs = [run_of(mtbf, one) for mtbf, one in zip(named, found, strict=True)]
    print(table(rows_of(runs)))
    write(given.json, runs=runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
