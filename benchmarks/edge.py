"""What edge servers pay: `python -m benchmarks.edge`.

The share of deadlines met with and without idle edge servers, as EdgeFlow's paper varies it: 2 to
16 servers, jobs arriving 0.5 to 4 times as fast, 16 to 128 cloud GPUs. Made-up jobs
(`simulator.generated`), each with a deadline of U[0.5, 1.5] times its duration at the size it asks
for; at load 1 they ask for 0.9 times what 64 GPUs have. An edge server has one GPU with half the
memory of the cloud's: two jobs in three fit it. The paper's figures for its speed could not be
read; at 0.8 of the cloud's (`--speed`) a job that asks for one GPU can be in time there if its
deadline is late. Below 0.67 no new job can, and servers only take those that are late anyway.

A change pauses a job for 40 s (`--pause`), a quarter of it to save a checkpoint. In the article
changes are cheaper: about 5 s.

Averages over seeds. No jobs are rejected: whoever misses its deadline runs on.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import parser_of, write
from scheduler.policies.interface import Kind
from scheduler.policies.registry import make_policy
from simulator.at_once import in_order, in_processes
from simulator.generated import Mix
from simulator.metrics import measure
from simulator.physics.base import Cluster, Entry
from simulator.physics.simple import GENERATED, Pauses, SimplePhysics
from simulator.pools import SimulatedPool
from simulator.run import Options, simulate

POLICIES = ("edgeflow", "tide")
SERVERS = (2, 4, 8, 16)
LOADS = (0.5, 1.0, 2.0, 4.0)
GPUS = (16, 32, 64, 128)
#: What stays while something else varies.
_SERVERS, _LOAD, _GPUS = 8, 1.0, 64
_PER_NODE = 4
_CLOUD_MIB, _EDGE_MIB = 32_768.0, 16_384.0


@dataclass(frozen=True, slots=True)
class Point:
    """One run: a point of one of the curves, for one seed."""

    policy: str
    servers: int
    load: float = _LOAD
    gpus: int = _GPUS
    jobs: int = 200
    seed: int = 1
    speed: float = 0.8  #: Of an edge GPU.
    pause_s: float = 40.0  #: Of a change.


def points(
    policies: Sequence[str],
    jobs: int,
    seeds: Sequence[int],
    speed: float = 0.8,
    pause_s: float = 40.0,
) -> list[Point]:
    """List every run of the three sweeps once."""
    settings = [(servers, _LOAD, _GPUS) for servers in (0, *SERVERS)]
    settings += [(servers, load, _GPUS) for load in LOADS for servers in (0, _SERVERS)]
    settings += [(servers, _LOAD, gpus) for gpus in GPUS for servers in (0, _SERVERS)]
    return [
        Point(policy, servers, load, gpus, jobs, seed, speed, pause_s)
        for policy in policies
        for servers, load, gpus in dict.fromkeys(settings)
        for seed in seeds
    ]


def run(point: Point) -> dict[str, Any]:
    """Run one point."""
    pools: tuple[SimulatedPool, ...] = ()
    if point.servers:
        edge = SimulatedPool("edge", Kind.EDGE, point.servers, 1, point.speed, _EDGE_MIB, 60.0)
        pools = (edge,)
    cluster = Cluster(point.gpus // _PER_NODE, _PER_NODE, _CLOUD_MIB, 2_000.0)
    options = Options(cluster=cluster, pools=pools, on_events=True)
    outcome = simulate(_entries(point), make_policy(point.policy), options)
    figures = measure(outcome)
    kept = (
        "deadline_ratio",
        "mean_jct_s",
        "utilisation",
        "edge_gpu_h_used",
        "migrations_cloud_edge",
    )
    return {**asdict(point), **{name: figures.get(name) for name in kept}}


def _entries(point: Point) -> list[Entry]:
    """Make the jobs, the same whatever the cloud: for 64 GPUs, then let them come faster."""
    days = point.jobs / (160 / (8 * 64) * 64 * 24)
    mix = Mix(days=days, jobs=point.jobs, deadlines=1.0)
    pauses = Pauses(start_s=0.75 * point.pause_s, checkpoint_s=0.25 * point.pause_s)
    physics = SimplePhysics(seed=point.seed, mix=mix, pauses=pauses)
    made = physics.entries(Path(GENERATED), Cluster(_GPUS // _PER_NODE, _PER_NODE), adaptive=False)
    return [
        replace(
            job,
            submit_s=job.submit_s / point.load,
            deadline_s=job.submit_s / point.load + job.deadline_s - job.submit_s,
        )
        for job in made
    ]


def measure_all(todo: Sequence[Point], processes: int) -> list[dict[str, Any]]:
    """Run points, saying what is done; rows in the order given."""

    def tell(done: int, _: object) -> None:
        end = "\n" if done == len(todo) else ""
        print(f"\r{done} of {len(todo)} runs", end=end, file=sys.stderr, flush=True)

    return in_order(run, todo, in_processes(processes, RuntimeError("a run was killed")), tell)


def ratio(
    rows: Sequence[dict[str, Any]], policy: str, servers: int, load: float, gpus: int
) -> float:
    """Return the mean deadline ratio of a setting over its seeds."""
    wanted = (policy, servers, load, gpus)
    keys = ("policy", "servers", "load", "gpus")
    found = [row["deadline_ratio"] for row in rows if tuple(row[key] for key in keys) == wanted]
    return float(np.mean(found))


def curves(rows: Sequence[dict[str, Any]], policies: Sequence[str]) -> list[dict[str, Any]]:
    """Return the curves of the three sweeps: title, x, and y by name."""
    alone = {f"{policy}, cloud alone": (policy, 0) for policy in policies}
    both = alone | {f"{policy}, {_SERVERS} edge": (policy, _SERVERS) for policy in policies}
    return [
        {
            "title": f"edge servers ({_GPUS} GPUs, load 1)",
            "x": [0, *SERVERS],
            "y": {p: [ratio(rows, p, s, _LOAD, _GPUS) for s in (0, *SERVERS)] for p in policies},
        },
        {
            "title": f"load ({_GPUS} GPUs)",
            "x": list(LOADS),
            "y": {
                name: [ratio(rows, p, s, x, _GPUS) for x in LOADS] for name, (p, s) in both.items()
            },
        },
        {
            "title": "cloud GPUs (load 1)",
            "x": list(GPUS),
            "y": {
                name: [ratio(rows, p, s, _LOAD, x) for x in GPUS] for name, (p, s) in both.items()
            },
        },
    ]


def draw(drawn: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the curves side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15.0, 4.5), layout="constrained")
    for axes, curve in zip(figure.subplots(1, len(drawn)), drawn, strict=True):
        ticks = range(len(curve["x"]))
        for name, values in curve["y"].items():
            axes.plot(ticks, values, "o--" if "alone" in name else "o-", label=name)
        axes.set(xlabel=curve["title"], ylabel="share of deadlines met", ylim=(0.0, 1.0))
        axes.set_xticks(list(ticks), [f"{x:g}" for x in curve["x"]])
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the curves, and draw them where asked."""
    parser = parser_of("edge", __doc__)
    parser.add_argument(
        "--policy", default=",".join(POLICIES), help="names, by commas (%(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=200, help="of each run (%(default)s)")
    parser.add_argument("--seeds", default="1,2,3", help="by commas (%(default)s)")
    parser.add_argument("--speed", type=float, default=0.8, help="of an edge GPU (%(default)s)")
    parser.add_argument("--pause", type=float, default=40.0, help="of a change (%(default)s s)")
    parser.add_argument("--processes", type=int, default=1, help="runs at once (%(default)s)")
    parser.add_argument("--plot", metavar="PATH", help="draw the curves")
    given = parser.parse_args(arguments)
    policies = given.policy.split(",")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    rows = measure_all(
        points(policies, given.jobs, seeds, given.speed, given.pause), given.processes
    )
    drawn = curves(rows, policies)
    for curve in drawn:
        print(f"\n{curve['title']:28}" + "".join(f"{x:>8g}" for x in curve["x"]), file=sys.stderr)
        for name, values in curve["y"].items():
            print(f"{name:28}" + "".join(f"{y:8.1%}" for y in values), file=sys.stderr)
    if given.plot:
        draw(drawn, Path(given.plot))
    write(given.json, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
