"""How near the peers come here to what their own simulators gave: `python -m benchmarks.published`.

The physics and the policies were rebuilt from descriptions; their authors' figures say whether that
went well. Two sets of runs:

- `pollux`: mean completion time on workloads 1 to 4 at loads 0.5, 1, 1.5 and 2, on 16 nodes of 4
  GPUs, against the figures published with Pollux (OSDI '21). Rounds of 60 s.
- `elasticflow`: the part of all jobs that meet their deadline on one Philly trace, 32 nodes of 8
  GPUs, against what the simulator published with ElasticFlow (ASPLOS '23) gave. Slots of 60 s.

Published Pollux decides with learned models, and so does `pollux` here; `pollux-true` is the same
policy with the true goodput of every size in its hands, to see what learning costs.

What counts as reached: `tiresias` within a thousandth of the figure in every run; the others within
5 % of it on average; a ratio within 3 points. Both ways, but for `pollux` and `pollux-true`: for
them 5 % worse at most, or better by whatever. Published Pollux searches allocations with a genetic
algorithm that stops early; ours computes the sizes exactly. It may find better ones, so a lower
mean says nothing against the physics, which `tiresias` and `optimus` check both ways on the same
workloads. How far it is below is told with every verdict.
Exit code 0: all that ran was reached. 1: something was missed, or the data is absent.
"""

import json
import math
import operator
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.figures import parser_of, write
from benchmarks.public_data import DATA
from scheduler.policies.interface import Policy
from scheduler.policies.literature.edf import Edf
from scheduler.policies.literature.elasticflow import ElasticFlow
from scheduler.policies.literature.gandiva import Gandiva
from scheduler.policies.literature.optimus import Optimus
from scheduler.policies.literature.pollux import Pollux
from scheduler.policies.literature.tiresias import Tiresias
from simulator.at_once import in_order, in_processes
from simulator.physics.base import Cluster
from simulator.physics.elasticflow import ElasticFlowPhysics
from simulator.physics.pollux import Oracle, PolluxPhysics
from simulator.physics.pollux_learned import Learning
from simulator.run import Options, simulate

LOADS, NUMBERS = ("0.5", "1.0", "1.5", "2.0"), (1, 2, 3, 4)
#: Deadline ratios that the published simulator gave on `philly_103959`.
DEADLINES = {"elasticflow": 0.910, "edf": 0.436, "tiresias": 0.466, "gandiva": 0.413}
#: How far from the published figure is near enough: of each run, or of the average (both parts of
#: the figure), and points of a ratio.
EACH, AVERAGE, POINTS = 0.001, 0.05, 0.03


@dataclass(frozen=True, slots=True)
class Peer:
    """A policy as it is run against its authors' figures on the Pollux workloads."""

    policy: Policy
    key: str  #: Of its figures.
    tunes: bool = False  #: Whether jobs tune their batch; otherwise they keep their row's.
    learns: bool = False  #: Whether models are learned; otherwise true.
    #: Sizes: what jobs ask for alone needs no grid.
    every_size: bool = False


PEERS = {
    "tiresias": Peer(Tiresias(), "tiresias"),
    "optimus": Peer(Optimus(), "optimus", every_size=True),
    "pollux": Peer(Pollux(), "pollux", tunes=True, learns=True),
    "pollux-true": Peer(Pollux(), "pollux", tunes=True),
}
#: The options with which the published simulator runs them: EDF gives the largest size there is.
BY_DEADLINE: dict[str, Policy] = {
    "elasticflow": ElasticFlow(),
    "edf": Edf(most="largest"),
    "tiresias": Tiresias(thresholds_gpu_s=(3250.0, 7200.0)),
    "gandiva": Gandiva(),
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One run beside its published figure."""

    policy: str
    workload: str
    measured: float
    published: float
    restarts: int
    wall_s: float
    claims_timed_out: int = 0

    @property
    def off(self) -> float:
        """By how much of the published figure the measured one is above it."""
        return self.measured / self.published - 1.0


def mean_jct(data: Path, name: str, load: str, number: int) -> Compared:
    """Run a peer on one Pollux workload; seconds."""
    peer, folder, began_s = PEERS[name], data / "pollux", perf_counter()
    published = json.loads((folder / "published_mean_jct.json").read_text(encoding="utf-8"))
    physics = PolluxPhysics(folder / "profiles", Learning() if peer.learns else Oracle)
    trace = folder / "workloads" / f"load-{load}" / f"workload-{number}.csv"
    jobs = physics.entries(trace, Cluster(), adaptive=peer.tunes)
    sizes = tuple(range(1, Cluster().gpus + 1)) if peer.every_size else None
    out = simulate(
        jobs, peer.policy, Options(sizes=sizes, tick_s=physics.tick_s, instant=physics.instant)
    )
    return Compared(
        name,
        f"load {load} workload {number}",
        float(np.mean(out.end_s - out.submit_s)),
        float(published[load][f"workload-{number}"][peer.key]),
        int(out.restarts.sum()),
        perf_counter() - began_s,
        out.claims_timed_out,
    )


def deadline_ratio(data: Path, name: str) -> Compared:
    """Run a peer on the deadline trace; a refused job counts as missed, overheads count."""
    began_s, cluster, folder = perf_counter(), Cluster(32, 8), data / "elasticflow"
    physics = ElasticFlowPhysics(folder / "throughputs" / "A100").charging(name)
    jobs = physics.entries(folder / "traces" / "philly_103959.csv", cluster, adaptive=False)
    options = Options(
        cluster=cluster,
        round_s=math.inf,
        on_events=True,
        merge_s=60.0,
        sizes=physics.sizes,
        instant=physics.instant,
    )
    out = simulate(jobs, BY_DEADLINE[name], options)
    return Compared(
        name,
        "philly_103959",
        float(np.mean(out.end_s <= out.deadline_s)),
        DEADLINES[name],
        int(out.restarts.sum()),
        perf_counter() - began_s,
        out.claims_timed_out,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the runs of one policy say together."""

    policy: str
    measured: float  #: Average over the runs.
    published: float
    worst: float  #: Largest distance of any run, as a part of the figure; points for a ratio.
    reached: bool


def judge(found: Sequence[Compared], *, ratio: bool) -> list[Verdict]:
    """Say for each policy whether it is as near as it should be."""
    verdicts = []
    for name in dict.fromkeys(one.policy for one in found):
        mine = [one for one in found if one.policy == name]
        measured = float(np.mean([one.measured for one in mine]))
        published = float(np.mean([one.published for one in mine]))
        off = measured / published - 1.0
        if ratio:
            worst = max(abs(one.measured - one.published) for one in mine)
            reached = worst <= POINTS
        else:
            worst = max(abs(one.off) for one in mine)
            reached = worst <= EACH if name == "tiresias" else abs(off) <= AVERAGE
            reached |= name.startswith("pollux") and off <= AVERAGE  # see above
        verdicts.append(Verdict(name, measured, published, worst, reached))
    return verdicts


def _run(works: Sequence[Callable[[], Compared]], processes: int) -> list[Compared]:
    def tell(_: int, one: Compared) -> None:
        print(
            f"{one.policy:12} {one.workload:20} {one.measured:10.3f} {one.published:10.3f} "
            f"{100 * one.off:+7.2f} % {one.restarts:6} restarts "
            f"{one.claims_timed_out:4} claims timed out {one.wall_s:6.1f} s",
            file=sys.stderr,
        )

    where = in_processes(processes, RuntimeError("a run was killed"))
    return in_order(operator.call, works, where, tell)


def main() -> int:
    """Run and compare; 1 where something is missed, or the data absent."""
    parser = parser_of("published", __doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder (%(default)s)")
    parser.add_argument(
        "--policy", default=",".join(PEERS), help="on the Pollux workloads, by commas (%(default)s)"
    )
    parser.add_argument(
        "--deadline", default=",".join(BY_DEADLINE), help="on the deadline trace (%(default)s)"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not (options.data / "pollux").is_dir():
        print(f"{options.data}: no public data there. Set TIDEGATE_DATA.", file=sys.stderr)
        return 1
    chosen = [name for name in options.policy.split(",") if name]
    by_deadline = [name for name in options.deadline.split(",") if name]
    for names, known in ((chosen, sorted(PEERS)), (by_deadline, sorted(BY_DEADLINE))):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"{unknown[0]!r} is not compared here; there are: {', '.join(known)}")
    jct = _run(
        [
            partial(mean_jct, options.data, name, load, number)
            for name in chosen
            for load in LOADS
            for number in NUMBERS
        ],
        options.processes,
    )
    ratios = _run(
        [partial(deadline_ratio, options.data, name) for name in by_deadline], options.processes
    )
    document, missed = {}, False
    for title, found, ratio in (("pollux", jct, False), ("elasticflow", ratios, True)):
        verdicts = judge(found, ratio=ratio)
        missed |= not all(one.reached for one in verdicts)
        document[title] = {
            "runs": [
                {name: getattr(one, name) for name in Compared.__slots__} | {"off": one.off}
                for one in found
            ],
            "policies": [
                {name: getattr(one, name) for name in Verdict.__slots__} for one in verdicts
            ],
        }
        for one in verdicts:
            print(
                f"{title:12} {one.policy:12} {one.measured:10.3f} published {one.published:10.3f} "
                f"worst {100 * one.worst:5.2f} {'points' if ratio else '%':6} "
                f"{'reached' if one.reached else 'missed'}",
                file=sys.stderr if options.json == "-" else sys.stdout,
            )
    write(options.json, **document)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
