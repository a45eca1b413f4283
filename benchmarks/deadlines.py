"""Deadlines met on the public ElasticFlow traces: `python -m benchmarks.deadlines`.

Each trace runs on clusters of several sizes under `tide` and its peers. All decide at every arrival
and end, or with `--slot-s` only so long after the last decision, as the simulator published with
ElasticFlow does; all pay for every change of an allocation. A job that ends late,
is refused, or never ends has missed. A promise is the note that a policy writes on a job it admits;
one is broken if that job ends late.

Three bounds (`benchmarks/deadline_bound.py`): jobs that would be in time if each were alone and
changed for free, the same with pauses (`alone`), and what they can have together (`bound`). No
policy can do better than the third. `closed` is which part of the gap between the best of the
others and that bound the last policy closes.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.deadline_bound import GPUS_PER_NODE, bounds
from benchmarks.figures import parser_of, write
from benchmarks.public_data import DATA as PUBLIC
from scheduler.policies.interface import Plan, Policy, Snapshot
from scheduler.policies.registry import make_policy
from scheduler.policies.tide.commitments import PROMISED
from simulator.at_once import in_order, in_processes
from simulator.physics.base import Cluster, Entry
from simulator.physics.elasticflow import ElasticFlowPhysics
from simulator.run import Options, simulate

TRACES = (
    "philly_103959",
    "cluster01",
    "cluster02",
    "cluster03",
    "cluster05",
    "cluster06",
    "cluster10",
    "195job",
)
POLICIES = ("elasticflow", "edgeflow", "edf", "tide")
DATA = PUBLIC / "elasticflow"


@dataclass(frozen=True, slots=True)
class Case:
    """One run to make."""

    policy: str
    trace: str
    nodes: int
    slot_s: float


class Witness:
    """A policy, and whom it promised to be in time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name
        self.promised: set[str] = set()

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide as the policy does."""
        plan = self._policy.plan(snapshot)
        self.promised.update(job for job, note in plan.notes.items() if note[0] == PROMISED)
        return plan


def run(case: Case) -> dict[str, Any]:
    """Make one run; returns its row."""
    cluster = Cluster(case.nodes, GPUS_PER_NODE)
    physics, jobs = _jobs(case.trace, cluster)
    policy = Witness(make_policy(case.policy))
    sizes = tuple(size for size in physics.sizes if size <= cluster.gpus)
    options = Options(
        cluster=cluster,
        round_s=math.inf,
        on_events=True,
        merge_s=case.slot_s,
        sizes=sizes,
        instant=True,
    )
    out = simulate(jobs, policy, options)
    timed = np.isfinite(out.deadline_s)
    met = timed & (out.end_s <= out.deadline_s)
    promised = timed & np.array([job in policy.promised for job in out.ids])
    return {
        "trace": case.trace,
        "nodes": case.nodes,
        "policy": case.policy,
        "jobs": int(timed.sum()),
        "ratio": float(met.sum() / timed.sum()),
        "promised": int(promised.sum()),
        "promises_broken": int((promised & ~met).sum()),
        "restarts": int(out.restarts.sum()),
        "active_jobs_max": int(out.decision_jobs.max()),
        "decision_ms_mean": float(out.decision_s.mean() * 1e3),
        "decision_ms_p99": float(np.quantile(out.decision_s, 0.99) * 1e3),
    }


def bounded(place: tuple[str, int]) -> dict[str, float]:
    """Return the bounds of a trace on a cluster of so many nodes."""
    trace, nodes = place
    cluster = Cluster(nodes, GPUS_PER_NODE)
    free, paid, together = bounds(_jobs(trace, cluster)[1], cluster)
    return {"alone_free": free, "alone": paid, "bound": together}


def _jobs(trace: str, cluster: Cluster) -> tuple[ElasticFlowPhysics, list[Entry]]:
    physics = ElasticFlowPhysics(DATA / "throughputs" / "A100", charge="cached")
    return physics, physics.entries(DATA / "traces" / f"{trace}.csv", cluster, adaptive=False)


def table(rows: Sequence[dict[str, Any]], policies: Sequence[str]) -> list[str]:
    """Lay rows out, one line per trace and cluster."""
    by = {(row["trace"], row["nodes"], row["policy"]): row for row in rows}
    names = "".join(f"{name:>13} {'broken':>7}" for name in policies)
    lines = [f"{'trace':14}{'nodes':>6}{'jobs':>6}{'alone':>8}{'bound':>8}{names}{'closed':>8}"]
    for trace, nodes in dict.fromkeys((row["trace"], row["nodes"]) for row in rows):
        mine = [by[trace, nodes, name] for name in policies]
        best = max((row["ratio"] for row in mine[:-1]), default=0.0)
        gap = mine[0]["bound"] - best
        won = mine[-1]["ratio"] - best
        closed = f"{won / gap:8.0%}" if gap > 1e-9 and len(mine) > 1 else f"{'-':>8}"
        cells = "".join(f"{row['ratio']:13.4f} {row['promises_broken']:7}" for row in mine)
        alone, bound = mine[0]["alone"], mine[0]["bound"]
        lines.append(
            f"{trace:14}{nodes:6}{mine[0]['jobs']:6}{alone:8.4f}{bound:8.4f}{cells}{closed}"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and print the table."""
    parser = parser_of("deadlines", __doc__)
    parser.add_argument("--traces", default=",".join(TRACES), help="by commas (%(default)s)")
    parser.add_argument("--nodes", default="8,16,32", help="of 8 GPUs (%(default)s)")
    parser.add_argument(
        "--policies",
        default=",".join(POLICIES),
        help="the last is compared with the best of the others",
    )
    parser.add_argument(
        "--slot-s", type=float, default=0.0, help="least time between decisions (%(default)s)"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at once")
    asked = parser.parse_args(arguments)
    if not DATA.is_dir():
        print(f"no data in {DATA}: set TIDEGATE_DATA", file=sys.stderr)
        return 2
    policies = asked.policies.split(",")
    places = [
        (trace, int(nodes)) for trace in asked.traces.split(",") for nodes in asked.nodes.split(",")
    ]
    cases = [Case(policy, *place, asked.slot_s) for place in places for policy in policies]
    processes = in_processes(min(asked.processes, len(cases)), RuntimeError("a run was killed"))

    def tell(done: int, row: dict[str, Any]) -> None:
        said = f"{done}/{len(cases)} {row['trace']} {row['nodes']} {row['policy']}"
        print(said, file=sys.stderr)

    limits = dict(zip(places, in_order(bounded, places, processes, None), strict=True))
    rows = in_order(run, cases, processes, tell)
    ordered = [row | limits[row["trace"], row["nodes"]] for row in rows]
    print("\n".join(table(ordered, policies)))
    write(asked.json, runs=ordered)
    return 0


if __name__ == "__main__":
    sys.exit(main())
