"""Jobs that scale on several types of GPUs, as in Sia's evaluation: `benchmarks.sia_types`.

Sia's workloads and cluster (SOSP '23, section 5; https://github.com/siasosp23/artifacts, of which
`--artifact` is the folder `sia-simulator`): six nodes of 4 T4, three of 8 RTX 2080 Ti, two of 8
A100, and jobs of Pollux's applications, which tune their batch. Each application has its measured
goodput on T4s, as in `simulator.physics.pollux`, the profile being the same; how much faster it is
on another type is one number, the mean over 1 to 8 GPUs and all epochs of what was measured there.
Sia's simulator has a curve for each type instead, so that figures are to be compared with each
other, not with the article's. Each change pauses a job for 30 s. What a job needs is known; with
`--unknown` it is learned from jobs of its application, as of jobs that declare no total.

Policies decide at events, or in the rounds of their papers.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import parser_of, write
from scheduler.policies.interface import Kind
from scheduler.policies.registry import make_policy
from simulator.at_once import in_order, in_processes
from simulator.compare import IN_ROUNDS
from simulator.physics.base import Cluster, Entry, Segment
from simulator.physics.pollux import Oracle, PolluxPhysics
from simulator.physics.pollux_app import compact, load_app
from simulator.pools import SimulatedPool
from simulator.run import Options, simulate

POLICIES = "tide,sia,pollux,gavel,afs,srtf,tiresias,themis"
#: The artifact's name of a type -> nodes, and GPUs on each. The first is the one of the curves.
TYPES = {"aws": (6, 4), "rtx": (3, 8), "dgx-ext": (2, 8)}
APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
_ROUND_S, _SIZES, _COMPARED = 60.0, (1, 2, 3, 4, 6, 8, 12, 16, 24), (1, 2, 4, 8)
#: Application -> how much faster it is on each other type.
Faster = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    policy: str
    workload: Path
    unknown: bool  #: Whether jobs do not say how much they need.


class _Anywhere(Oracle):
    """A job on nodes of any size: on larger ones its curve is that of full nodes of its own."""

    def segment(self, progress: float, gpus: tuple[int, ...]) -> Segment:
        if max(gpus) > self._per_node:
            gpus = compact(sum(gpus), self._per_node)
        return super().segment(progress, gpus)


@contextmanager
def profiles(artifact: Path) -> Iterator[dict[str, Path]]:
    """Give each type's profiles as Pollux's are laid out."""
    with tempfile.TemporaryDirectory() as folder:
        found = {name: Path(folder) / name for name in TYPES}
        for gpu, root in found.items():
            for app in APPLICATIONS:
                (root / app).mkdir(parents=True)
                for file in (artifact / "traces" / app).glob("validation-*.csv"):
                    (root / app / file.name).symlink_to(file.resolve())
                for what in ("placements", "scalability"):
                    measured = artifact / "traces" / app / f"{what}-{gpu}.csv"
                    (root / app / f"{what}.csv").symlink_to(measured.resolve())
        yield found


def faster(roots: dict[str, Path]) -> Faster:
    """Find how much faster each application is on each type than on the first."""
    first, *others = roots
    found: Faster = {}
    for app in APPLICATIONS:
        goodput = {
            gpu: [
                load_app(roots[gpu] / app).tuned(compact(size, TYPES[gpu][1])) for size in _COMPARED
            ]
            for gpu in roots
        }
        found[app] = {}
        for gpu in others:
            ratios = [
                np.log(there.goodput / here.goodput).mean()
                for here, there in zip(goodput[first], goodput[gpu], strict=True)
                if here is not None and there is not None
            ]
            found[app][gpu] = float(np.exp(np.mean(ratios)))
    return found


def entries(root: Path, speeds: Faster, setting: Setting) -> list[Entry]:
    """Read a workload's jobs, with their speeds on the other types."""
    physics = PolluxPhysics(root, _Anywhere, hides=setting.unknown)
    cluster = Cluster(*TYPES[next(iter(TYPES))])
    jobs = physics.entries(setting.workload, cluster, adaptive=True)
    return [replace(job, affinity=speeds[job.id.rpartition("-")[0]]) for job in jobs]


def run(artifact: Path, setting: Setting) -> dict[str, Any]:
    """Run a policy on a workload, and give its figures."""
    (first, size), *others = TYPES.items()
    pools = (SimulatedPool(name, Kind.TRAINING, *nodes) for name, nodes in others)
    options = Options(
        cluster=Cluster(*size),
        pools=tuple(pools),
        round_s=_ROUND_S,
        on_events=setting.policy.partition(":")[0] not in IN_ROUNDS,
        sizes=_SIZES,
    )
    with profiles(artifact) as roots:
        speeds = faster(roots)
        jobs = entries(roots[first], speeds, setting)
        outcome = simulate(jobs, make_policy(setting.policy), options)
    took_s = outcome.end_s - outcome.submit_s
    return {
        "policy": setting.policy,
        "workload": "/".join(setting.workload.parts[-2:]),
        "unknown": setting.unknown,
        "jobs": len(jobs),
        "ended": int(np.isfinite(outcome.end_s).sum()),
        "mean_jct_s": float(took_s.mean()),
        "p99_jct_s": float(np.percentile(took_s, 99)),
        "restarts_per_job": float(outcome.restarts.mean()),
        "claims_timed_out": outcome.claims_timed_out,
        "invariant_violations": outcome.invariant_violations,
        "mean_decision_ms": float(outcome.decision_s.mean()) * 1000.0,
        "faster": speeds,
    }


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for, and print it."""
    parser = parser_of("sia_types", __doc__)
    parser.add_argument("--artifact", type=Path, required=True, help="Sia's sia-simulator")
    parser.add_argument("--policy", default=POLICIES, help="names, by commas (%(default)s)")
    parser.add_argument(
        "--workloads", default="philly/1", help="set/number, by commas (%(default)s)"
    )
    parser.add_argument("--unknown", action="store_true", help="jobs do not say what they need")
    parser.add_argument("--processes", type=int, help="runs at once; one per core if not given")
    given = parser.parse_args(argv)
    named = [one.partition("/") for one in given.workloads.split(",")]
    files = [given.artifact / "workloads" / kind / f"workload-{n}.csv" for kind, _, n in named]
    todo = [
        Setting(policy, file, given.unknown) for policy in given.policy.split(",") for file in files
    ]

    def tell(done: int, row: dict[str, Any]) -> None:
        print(
            f"{done} of {len(todo)}: {row['policy']:<10} {row['workload']}: "
            f"{row['mean_jct_s']:,.0f} s a job, p99 {row['p99_jct_s']:,.0f}, "
            f"{row['restarts_per_job']:.2f} restarts, {row['mean_decision_ms']:.1f} ms",
            file=sys.stderr,
            flush=True,
        )

    where = in_processes(given.processes or os.cpu_count() or 1, RuntimeError("a run was killed"))
    rows = in_order(partial(run, given.artifact), todo, where, tell)
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = [row["mean_jct_s"] for row in rows if row["policy"] == policy]
        print(f"{policy:<12} {np.mean(mine):10,.0f} s a job")
    write(given.json, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
