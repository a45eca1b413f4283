"""What it costs that several agents share a pool: `python -m benchmarks.several_agents`.

A day of generated jobs on 16 nodes of 8 GPUs, with deadlines for 45 % of them, through the running
engine: the nodes have one agent, two, or four. A gang runs within one agent, and a job that goes to
another one starts anew there. Jobs and GPUs stay the same, and each job fits in each agent's nodes.
"""

import sys

import numpy as np

from benchmarks.figures import parser_of, write
from simulator.compare import Case, Finished, compare
from simulator.generated import Mix
from simulator.physics.base import Cluster
from simulator.physics.simple import GENERATED

POLICIES = "tide,srtf,afs,aryl,optimus,tiresias,elasticflow,edgeflow"
AGENTS = (1, 2, 4)


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for, and print it."""
    parser = parser_of("several_agents", __doc__)
    parser.add_argument("--policy", default=POLICIES, help="names, by commas (%(default)s)")
    parser.add_argument("--load", type=float, default=0.9, help="(%(default)s)")
    parser.add_argument("--seeds", default="31,32,33", help="by commas (%(default)s)")
    parser.add_argument("--processes", type=int, help="runs at once; one per core if not given")
    given = parser.parse_args(argv)
    seeds, policies = [int(one) for one in given.seeds.split(",")], given.policy.split(",")
    cases = [
        Case(
            policy,
            GENERATED,
            physics="simple",
            cluster=Cluster(16, 8, agents=agents),
            seed=seed,
            mix=Mix(load=given.load),
        )
        for policy in policies
        for agents in AGENTS
        for seed in seeds
    ]

    def tell(done: int, one: Finished) -> None:
        sys.stderr.write(f"\r{done} of {len(cases)} runs: {one.case.policy}  ")

    found = compare(cases, given.processes, tell)
    rows = []
    print("\npolicy       agents   mean s    p99 s          met  restarts  unfinished")
    for at in range(0, len(found), len(seeds)):
        mine = [one.row() for one in found[at : at + len(seeds)]]
        row = {
            "policy": mine[0]["policy"],
            "agents": mine[0]["training_agents"],
            "seeds": given.seeds,
            "mean_jct_s": round(float(np.mean([one["mean_jct_s"] for one in mine])), 1),
            "p99_jct_s": round(float(np.mean([one["p99_jct_s"] for one in mine])), 0),
            "met": sum(int(one["deadlines_met"] or 0) for one in mine),
            "deadlines": sum(int(one["deadlines"] or 0) for one in mine),
            "restarts_per_job": round(float(np.mean([one["restarts_per_job"] for one in mine])), 3),
            "unfinished": sum(len(one.jct_s) for one in found[at : at + len(seeds)]),
            "claims_timed_out": sum(int(one["claims_timed_out"] or 0) for one in mine),
            "invariant_violations": sum(int(one["invariant_violations"] or 0) for one in mine),
        }
        row["unfinished"] = sum(int(one["jobs"] or 0) for one in mine) - int(row["unfinished"])
        rows.append(row)
        print(
            f"{row['policy']:<12} {row['agents']:>6} {row['mean_jct_s']:>8,.0f}"
            f" {row['p99_jct_s']:>8,.0f} {row['met']:>6}/{row['deadlines']:<6}"
            f" {row['restarts_per_job']:>8.2f} {row['unfinished']:>10}"
        )
    write(given.json, runs=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
