"""How fast the simulator is: `python -m benchmarks.simulator`.

A Pollux workload (160 jobs, 64 GPUs, measured profiles) and the 15 days of `benchmarks.loaning`
(50,000 jobs, 7,680 GPUs), each under several policies in one process. `wall` is what a user waits
for; `cpu` leaves out what a busy machine takes; `policy` is the part of the wall time spent in
decisions. Aims: a Pollux workload under 2 s, the 15 days under 3 min with `tide`.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any

from benchmarks import loaning
from benchmarks.figures import parser_of, write
from benchmarks.public_data import DATA
from simulator.compare import Case, check, run_case

POLLUX_POLICIES = ("fifo", "tiresias", "tide", "pollux")


def pollux() -> list[dict[str, Any]]:
    """Time policies on a Pollux workload."""
    folder = DATA / "pollux"
    workload = folder / "workloads" / "load-1.0" / "workload-1.csv"
    rows = []
    for policy in POLLUX_POLICIES:
        case = Case(policy, str(workload), profiles=str(folder / "profiles"))
        check(case)  # reads the profiles once, before the clock runs
        began_s, began_cpu_s = perf_counter(), process_time()
        figures = run_case(case).figures
        wall_s, cpu_s = perf_counter() - began_s, process_time() - began_cpu_s
        rows.append(_row("pollux 1.0/1", policy, wall_s, cpu_s, figures))
    return rows


def fifteen_days(setting: loaning.Setting) -> dict[str, Any]:
    """Time `tide` on the trace of the loaning benchmark."""
    figures = loaning.run(setting, "tide")
    name = f"{setting.days:g} days, {setting.jobs} jobs"
    return _row(name, "tide", figures["wall_s"], figures["cpu_s"], figures)


def _row(
    workload: str, policy: str, wall_s: float, cpu_s: float, figures: dict[str, Any]
) -> dict[str, Any]:
    decided_s = figures["decisions"] * figures["mean_decision_ms"] / 1e3
    return {
        "workload": workload,
        "policy": policy,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "policy_share": decided_s / wall_s,
        "decisions": figures["decisions"],
        "mean_decision_ms": figures["mean_decision_ms"],
        "mean_jct_s": figures["mean_jct_s"],
    }


def line(row: dict[str, Any]) -> str:
    """Write a row for people."""
    return (
        f"{row['workload']:24} {row['policy']:10} {row['wall_s']:8.2f} {row['cpu_s']:8.2f} "
        f"{row['policy_share']:7.0%} {row['decisions']:10} {row['mean_decision_ms']:8.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the rows as JSON where asked."""
    parser = parser_of("simulator", __doc__)
    defaults = loaning.Setting()
    parser.add_argument("--days", type=float, default=defaults.days)
    parser.add_argument("--jobs", type=int, default=defaults.jobs)
    parser.add_argument("--training", type=int, default=defaults.training, help="servers")
    parser.add_argument("--inference", type=int, default=defaults.inference, help="servers")
    parser.add_argument("--only", choices=("pollux", "days"), help="leave the other out")
    given = parser.parse_args(arguments)
    print(
        f"{'workload':24} {'policy':10} {'wall s':>8} {'cpu s':>8} {'policy':>7} {'decisions':>10} "
        f"{'ms':>8}",
        file=sys.stderr,
    )
    rows = []
    if given.only != "days":
        if (DATA / "pollux").is_dir():
            rows += pollux()
        else:
            print("no Pollux data: set TIDEGATE_DATA to a folder with pollux/", file=sys.stderr)
    for row in rows:
        print(line(row), file=sys.stderr, flush=True)
    if given.only != "pollux":
        sizes = {one: getattr(given, one) for one in ("days", "jobs", "training", "inference")}
        rows.append(fifteen_days(replace(defaults, **sizes)))
        print(line(rows[-1]), file=sys.stderr, flush=True)
    write(given.json, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
