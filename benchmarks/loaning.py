"""What loaning pays: `python -m benchmarks.loaning`.

A made-up trace on a cluster of the size in Aryl's paper: 50,000 jobs in 15 days, 440 training and
520 inference servers of 8 GPUs. `fifo` runs every job at the size it asked for, in order with EASY
backfill, on the training servers alone. `aryl` and `tide` may scale jobs and borrow servers.

Jobs are those of `simulator.generated` (sizes and durations of published traces) in one of two
mixes. `elastic`: every job may take from half to four times the GPUs it asks for and fits
everywhere, as in the workloads of Pollux, ElasticFlow and AFS. `aryl`: what its paper says of its
jobs, as recalled: elastic jobs take 36 % of the GPU time and scale up to twice what they ask for; a
fifth of all jobs fits an inference GPU. In both an inference GPU has half the memory of one for
training, and a change costs 63 s, as recalled too. It is 0.8 times as fast, as in the demo. The
paper's was about a third as fast (`--speed 0.33`), and a job there got more of them to make up for
that, which no policy here does: `aryl`, which prefers loaned servers for elastic jobs, then loses.

The load, 0.85 of what the training servers have, was chosen for how `fifo` queues: 3,330 s on
average and 12,229 s at the 95th percentile, as is said of the paper's cluster (above 3,000 s, tail
above 10,000 s). Decisions are at most every two minutes.

For each policy: mean queueing (to the first start) and completion times, their ratios to `fifo`'s,
and what no policy could exceed: every job at once, on training GPUs, at its largest size.

`--gain` runs each policy without servers to borrow, with them, and both again in a world where
changes are free: jobs pause for nothing, owners hand nodes over and take them back at once, and
lend whatever their last report leaves idle. *paid* is which part of the gain in mean completion
time there (the lenders' idle GPUs are then training's own while they are idle) is had here.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.figures import parser_of, write
from scheduler.policies.interface import Policy
from scheduler.policies.literature.fifo import Fifo
from scheduler.policies.registry import make_policy
from simulator.compare import Watched
from simulator.generated import Mix, make_jobs
from simulator.metrics import measure
from simulator.models import speedup
from simulator.neighbours import neighbours
from simulator.physics.base import Cluster
from simulator.physics.simple import GENERATED, Pauses, SimplePhysics
from simulator.pools import SimulatedPool
from simulator.run import Options, simulate

POLICIES = ("fifo", "aryl", "tide")
#: Aryl's published gains: queueing and completion time, over no loaning and no scaling.
PUBLISHED = (1.53, 1.50)
MIXES = {
    "aryl": Mix(
        elastic=0.43, elastic_from=8, elastic_range=(1.0, 2.0), fungible=0.13, deadlines=0.0
    ),
    "elastic": Mix(
        elastic=1.0, elastic_from=1, elastic_range=(0.5, 4.0), fungible=1.0, deadlines=0.0
    ),
}
GPUS = 8
TRAINING_MIB, INFERENCE_MIB = 32_768.0, 16_384.0
PAUSES = Pauses(start_s=40.0, checkpoint_s=23.0)
#: Options of a policy that lends what is idle at a report, and takes back what is not.
AT_ONCE = (
    ":loans.lend_horizon_s=0:loans.warm_up_s=0:loans.lead_s=0:loans.loan_min_s=0:loans.cool_down_s=0"
    ":loans.forecast.season=none:loans.forecast.headroom_fraction=0:loans.forecast.burst_slots=1"
    ":loans.forecast.trend_slots=2:loans.forecast.half_life_slots=0.3"
)
#: Demand of the inference servers goes on for so long after the last job came.
AFTER_H = 10 * 24.0
_TELL_S = 7_200.0  #: Between two words on how far a run is.


@dataclass(frozen=True, slots=True)
class Setting:
    """One trace, and the cluster it runs on."""

    days: float = 15.0
    jobs: int = 50_000
    training: int = 440
    inference: int = 520
    load: float = 0.85
    mix: str = "elastic"
    speed: float = 0.8  #: Of an inference GPU, where one for training has 1.
    seed: int = 1
    round_s: float = 120.0
    merge_s: float = 120.0
    lend: bool = True  #: Whether the inference servers are there.
    free: bool = False  #: Whether changes are free.

    @property
    def made(self) -> Mix:
        """The mix of its jobs."""
        gpus = self.training * GPUS
        return replace(MIXES[self.mix], days=self.days, jobs=self.jobs, gpus=gpus, load=self.load)

    def pools(self) -> tuple[SimulatedPool, ...]:
        """Make the inference servers."""
        hours = self.days * 24.0 + AFTER_H
        (pool,) = neighbours(self.inference, 0, GPUS, self.seed, hours)
        pool = replace(pool, speed=self.speed, memory_mib=INFERENCE_MIB)
        return (replace(pool, drain_s=0.0, warm_up_s=0.0) if self.free else pool,)


def run(setting: Setting, name: str) -> dict[str, Any]:
    """Run one policy; returns its figures."""
    cluster = Cluster(setting.training, GPUS, TRAINING_MIB, 2_000.0)
    pauses = Pauses(0.0, 0.0) if setting.free else PAUSES
    physics = SimplePhysics(seed=setting.seed, mix=setting.made, pauses=pauses)
    entries = physics.entries(Path(GENERATED), cluster, adaptive=False)
    line = name + AT_ONCE if setting.free and setting.lend else name
    policy: Policy = Fifo(sizes="requested") if name == "fifo" else make_policy(line)
    options = Options(
        cluster=cluster,
        on_events=True,
        round_s=setting.round_s,
        merge_s=setting.merge_s,
        pools=() if name == "fifo" or not setting.lend else setting.pools(),
    )
    if sys.stderr.isatty():
        policy = Watched(policy, partial(_tell, setting, name))
    began_s, began_cpu_s = perf_counter(), process_time()
    outcome = simulate(entries, policy, options)
    wall_s, cpu_s = perf_counter() - began_s, process_time() - began_cpu_s
    return {"policy": name, "wall_s": wall_s, "cpu_s": cpu_s, **measure(outcome)}


def _tell(setting: Setting, name: str, now_s: float, jobs: int) -> None:
    if now_s % _TELL_S < setting.round_s:
        day = f"day {now_s / 86_400.0:.1f} of {setting.days:g}"
        print(f"\r\x1b[2K{name}: {day}, {jobs} jobs\r", end="", file=sys.stderr, flush=True)


def at_best_s(setting: Setting) -> float:
    """Return the mean completion time if every job ran at once at its largest size."""
    ends_s = [
        job.work_s / speedup(job.sizes[-1], job.serial) + PAUSES.start_s
        for job in make_jobs(setting.seed, setting.made)
    ]
    return float(np.mean(ends_s))


def compare(setting: Setting, names: Sequence[str], tell: Any = None) -> list[dict[str, Any]]:
    """Run policies, `fifo` first, and add the ratios to it."""
    rows: list[dict[str, Any]] = []
    best_s = at_best_s(setting)
    for name in ("fifo", *(name for name in names if name != "fifo")):
        row = run(setting, name)
        base = rows[0] if rows else row
        row["queueing_ratio"] = base["mean_queueing_s"] / max(row["mean_queueing_s"], 1e-9)
        row["jct_ratio"] = base["mean_jct_s"] / row["mean_jct_s"]
        row["jct_ratio_bound"] = base["mean_jct_s"] / best_s
        rows.append(row)
        if tell is not None:
            tell(row)
    return rows


def gains(setting: Setting, names: Sequence[str], tell: Any = None) -> list[dict[str, Any]]:
    """Run policies without and with loans, here and where changes are free."""
    rows = []
    for name in names:
        found = {
            (free, lend): run(replace(setting, free=free, lend=lend), name)
            for free in (False, True)
            for lend in (False, True)
        }
        jct_s = {key: one["mean_jct_s"] for key, one in found.items()}
        gain = 1.0 - jct_s[False, True] / jct_s[False, False]
        most = 1.0 - jct_s[True, True] / jct_s[True, False]
        row = {
            "policy": name,
            "gain": gain,
            "gain_free": most,
            "paid": gain / most if most > 0.0 else None,  # None: even free loans gain nothing
            **{
                ("free_" if free else "") + ("lent" if lend else "alone"): one
                for (free, lend), one in found.items()
            },
        }
        rows.append(row)
        if tell is not None:
            tell(row)
    return rows


def gain_line(row: dict[str, Any]) -> str:
    """Write a row of `gains` for people."""
    lent = row["lent"]
    cells = [
        f"{row[one]['mean_jct_s']:11,.0f}" for one in ("alone", "lent", "free_alone", "free_lent")
    ]
    cells += [f"{row[one]:10.1%}" for one in ("gain", "gain_free")]
    cells += [f"{row['paid']:10.1%}" if row["paid"] is not None else f"{'-':>10}"]
    used, offered = lent.get("loaned_gpu_h_used") or 0.0, lent.get("loaned_gpu_h_offered") or 0.0
    cells += [f"{used:9,.0f} {offered:9,.0f} {lent.get('inference_shortfall_ratio') or 0.0:8.4%}"]
    return f"{row['policy']:8}" + "".join(cells) + f" {lent.get('reclaims_late') or 0:5}"


GAIN_HEADER = (
    f"{'policy':8}{'alone s':>11}{'lent s':>11}{'free alone':>11}{'free lent':>11}{'gain':>10}"
    f"{'free gain':>10}{'paid':>10} {'used h':>9} {'lent h':>9} {'short':>8} {'late':>5}"
)
HEADER = (
    f"{'policy':8} {'queued s':>9} {'p95':>8} {'JCT s':>9} {'p50':>8} {'x queued':>9} {'x JCT':>6} "
    f"{'used':>5} {'lent h':>8} {'short':>8} {'late':>5} {'stopped':>8} {'decisions':>9} {'ms':>6} "
    f"{'cpu s':>6} {'wall s':>6}"
)


def line(row: dict[str, Any]) -> str:
    """Write a row for people."""
    short = row.get("inference_shortfall_ratio") or 0.0
    return (
        f"{row['policy']:8} {row['mean_queueing_s']:9,.0f} {row['p95_queueing_s']:8,.0f} "
        f"{row['mean_jct_s']:9,.0f} {row['p50_jct_s']:8,.0f} {row['queueing_ratio']:9.2f} "
        f"{row['jct_ratio']:6.2f} {row['utilisation']:5.0%} "
        f"{row.get('loaned_gpu_h_offered') or 0.0:8,.0f} {short:8.4%} "
        f"{row.get('reclaims_late') or 0:5} {row['preemptions']:8} {row['decisions']:9} "
        f"{row['mean_decision_ms']:6.2f} {row['cpu_s']:6.0f} {row['wall_s']:6.0f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; all figures as JSON where asked."""
    parser = parser_of("loaning", __doc__)
    defaults = Setting()
    parser.add_argument("--days", type=float, default=defaults.days)
    parser.add_argument("--jobs", type=int, default=defaults.jobs)
    parser.add_argument("--training", type=int, default=defaults.training, help="servers")
    parser.add_argument("--inference", type=int, default=defaults.inference, help="servers")
    parser.add_argument("--load", type=float, default=defaults.load)
    parser.add_argument("--mix", choices=sorted(MIXES), default=defaults.mix)
    parser.add_argument("--speed", type=float, default=defaults.speed, help="of inference GPUs")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--merge-s", type=float, default=defaults.merge_s)
    parser.add_argument("--policy", default=",".join(POLICIES), help="names, by commas")
    parser.add_argument("--gain", action="store_true", help="what loans are worth to each policy")
    given = parser.parse_args(arguments)
    told = vars(given)  # but for three, the options are the fields of a setting
    names = told.pop("policy").split(",")
    path, only_gain = told.pop("json"), told.pop("gain")
    setting = Setting(**told, round_s=max(60.0, given.merge_s))
    if only_gain:
        print(GAIN_HEADER, file=sys.stderr)
        names = [name for name in names if name != "fifo"]  # it does not borrow
        rows = gains(setting, names, lambda row: print(gain_line(row), file=sys.stderr, flush=True))
    else:
        print(HEADER, file=sys.stderr)
        rows = compare(setting, names, lambda row: print(line(row), file=sys.stderr, flush=True))
        print(
            f"published for aryl: {PUBLISHED[0]} and {PUBLISHED[1]}; JCT bound with this mix: "
            f"{rows[0]['jct_ratio_bound']:.2f}",
            file=sys.stderr,
        )
    write(path, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
