"""Several types of GPUs, as in Gavel's evaluation: `python -m benchmarks.gpu_types`.

36 V100, 36 P100 and 36 K80 in nodes of four, and jobs of 26 kinds, each with its measured speed on
each type (Gavel, OSDI 2020, section 7 and its file `simulation_throughputs.json`, from
https://github.com/stanford-futuredata/gavel, MIT licence; `--throughputs` says where it is). Jobs
come by a Poisson process. Each takes, on V100s, 10^U[1.5, 3] minutes four times in five, else
10^U[3, 4], and has one GPU (Gavel's trace *continuous-single*) or, with `--multiple`, 1, 2, 4 or 8
in 70, 10, 15 and 5 of a hundred; nobody may scale it. The mean is over jobs in the middle, when the
cluster is as full as it gets.

A change pauses a job for `--pause` seconds; Gavel's simulator charges nothing, which is the
default. Policies decide at events, or in the rounds of their papers.
"""

import ast
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import parser_of, write
from scheduler.policies.interface import Kind
from scheduler.policies.registry import make_policy
from simulator.at_once import in_order, in_processes
from simulator.compare import IN_ROUNDS
from simulator.physics.base import Cluster, Entry
from simulator.physics.simple import Pauses, SimpleJob
from simulator.pools import SimulatedPool
from simulator.run import Options, simulate

POLICIES = "tide,gavel,sia,srtf,tiresias,themis,afs,aryl,pollux,fifo"
TYPES = ("v100", "p100", "k80")
_NODES, _PER_NODE = 9, 4
_GANGS, _SHARES = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)
_ROUND_S = 360.0

#: (kind, GPUs) -> work per second on each type.
Speeds = dict[tuple[str, int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    policy: str
    rate_h: float  #: Jobs that come in an hour.
    jobs: int = 1000
    seed: int = 1
    multiple: bool = False  #: Whether some jobs have more than one GPU.
    pause_s: float = 0.0  #: Of a change.


def speeds_of(file: Path) -> Speeds:
    """Read the measured speeds of kinds that run on V100s."""
    told = json.loads(file.read_text())
    found: Speeds = {}
    for name in told[TYPES[0]]:
        kind, gpus = ast.literal_eval(name)
        rates = tuple(float(told[gpu].get(name, {}).get("null", 0.0)) for gpu in TYPES)
        if gpus in _GANGS and rates[0] > 0.0:
            found[kind, gpus] = rates
    return found


def entries(speeds: Speeds, setting: Setting) -> list[Entry]:
    """Make the jobs."""
    rng = np.random.Generator(np.random.PCG64(setting.seed))
    pauses = Pauses(start_s=0.75 * setting.pause_s, checkpoint_s=0.25 * setting.pause_s)
    submit_s = np.cumsum(rng.exponential(3600.0 / setting.rate_h, setting.jobs))
    found = []
    for at, moment_s in enumerate(submit_s.tolist()):
        exponent = rng.uniform(3.0, 4.0) if rng.random() >= 0.8 else rng.uniform(1.5, 3.0)
        gpus = int(rng.choice(_GANGS, p=_SHARES)) if setting.multiple else 1
        kinds = sorted(kind for kind, size in speeds if size == gpus)
        own = speeds[kinds[int(rng.integers(len(kinds)))], gpus]
        found.append(
            Entry(
                id=f"job-{at:05}",
                submit_s=moment_s,
                model=SimpleJob({gpus: own[0]}, 60.0 * 10.0**exponent * own[0], pauses),
                requested=gpus,
                start_cost_s=pauses.start_s,
                checkpoint_cost_s=pauses.checkpoint_s,
                affinity=dict(zip(TYPES[1:], (one / own[0] for one in own[1:]), strict=True)),
            )
        )
    return found


def run(speeds: Speeds, setting: Setting) -> dict[str, Any]:
    """Run a policy, and give its figures of the jobs in the middle."""
    others = (
        SimulatedPool(name, Kind.TRAINING, _NODES, _PER_NODE, transfer_mib_per_s=1000.0)
        for name in TYPES[1:]
    )
    in_rounds = setting.policy.partition(":")[0] in IN_ROUNDS
    options = Options(
        cluster=Cluster(_NODES, _PER_NODE, transfer_mib_per_s=1000.0),
        pools=tuple(others),
        round_s=_ROUND_S,
        on_events=not in_rounds,
        sizes=_GANGS,
    )
    outcome = simulate(entries(speeds, setting), make_policy(setting.policy), options)
    middle = slice(setting.jobs // 2, setting.jobs * 3 // 4)
    took_s = (outcome.end_s - outcome.submit_s)[middle]
    return {
        **asdict(setting),
        "mean_jct_h": float(took_s.mean()) / 3600.0,
        "p99_jct_h": float(np.percentile(took_s, 99)) / 3600.0,
        "ended": int(np.isfinite(outcome.end_s).sum()),
        "restarts_per_job": float(outcome.restarts.mean()),
        "claims_timed_out": outcome.claims_timed_out,
        "invariant_violations": outcome.invariant_violations,
        "mean_decision_ms": float(outcome.decision_s.mean()) * 1000.0,
    }


def measure_all(
    speeds: Speeds, todo: Sequence[Setting], processes: int | None
) -> list[dict[str, Any]]:
    """Run all, saying what is done; rows in the order given."""

    def tell(done: int, row: dict[str, Any]) -> None:
        print(
            f"{done} of {len(todo)}: {row['policy']:<10} {row['rate_h']:g} jobs an hour, "
            f"seed {row['seed']}: {row['mean_jct_h']:.2f} h a job, p99 {row['p99_jct_h']:.0f}, "
            f"{row['restarts_per_job']:.2f} restarts, {row['mean_decision_ms']:.1f} ms",
            file=sys.stderr,
            flush=True,
        )

    where = in_processes(processes or os.cpu_count() or 1, RuntimeError("a run was killed"))
    return in_order(partial(run, speeds), todo, where, tell)


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for, and print it."""
    parser = parser_of("gpu_types", __doc__)
    parser.add_argument("--throughputs", type=Path, required=True, help="Gavel's file")
    parser.add_argument("--policy", default=POLICIES, help="names, by commas (%(default)s)")
    parser.add_argument("--rates", default="4", help="jobs an hour, by commas (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--seeds", default="1,2,3", help="by commas (%(default)s)")
    parser.add_argument("--multiple", action="store_true", help="some jobs have up to 8 GPUs")
    parser.add_argument("--pause", type=float, default=0.0, help="of a change, s (%(default)s)")
    parser.add_argument("--processes", type=int, help="runs at once; one per core if not given")
    given = parser.parse_args(argv)
    todo = [
        Setting(policy, rate_h, given.jobs, seed, given.multiple, given.pause)
        for policy in given.policy.split(",")
        for rate_h in map(float, given.rates.split(","))
        for seed in map(int, given.seeds.split(","))
    ]
    rows = measure_all(speeds_of(given.throughputs), todo, given.processes)
    write(given.json, rows=rows)
    for (policy, rate_h), mine in _by_case(rows).items():
        mean = float(np.mean([row["mean_jct_h"] for row in mine]))
        print(f"{policy:<12} {rate_h:>5g} jobs an hour {mean:>8.2f} h a job")
    return 0


def _by_case(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, float], list[dict[str, Any]]]:
    found: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["policy"], row["rate_h"]), []).append(row)
    return found


if __name__ == "__main__":
    sys.exit(main())
