"""Completion times of every policy on the public Pollux workloads: `python -m benchmarks.jct`.

Workloads 1 to 4 at loads 0.5, 1, 1.5 and 2, on 16 nodes of 4 T4 GPUs, under the Pollux artifact's
physics. Each policy runs as its paper has it: with or without tuned batches, at events or in rounds
(`simulator.compare`). Jobs that tune their batch know only what they and their kin measured, and
declare how much progress they need; `tide-unknown` is `tide` without that, `tide-true` with the
true goodput of every size. Beside the means stands the change against the figures published with
Pollux (OSDI '21), which has no p99: there `pollux` as run here is the measure.

With `--resample SEEDS` the workloads are fresh ones (`benchmarks.resampled`). Nobody published
figures for those: the change is against `pollux` as run here, on the same workloads.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.figures import parser_of, write
from benchmarks.public_data import DATA as PUBLIC
from benchmarks.resampled import resampled, seeds_of
from scheduler.policies.registry import POLICIES
from simulator.compare import Case, Finished, Knowledge, compare

DATA = PUBLIC / "pollux"
LOADS, NUMBERS = ("0.5", "1.0", "1.5", "2.0"), (1, 2, 3, 4)
#: What a policy may know -> how the run is called.
VARIANTS: dict[str, Knowledge] = {"tide-unknown": "unknown", "tide-true": "true"}


def workload(load: str, number: int) -> Path:
    """Name the file of a public workload."""
    return DATA / "workloads" / f"load-{load}" / f"workload-{number}.csv"


def case(name: str, file: Path) -> Case:
    """Return the run of a policy, or of a variant, on one workload."""
    one = Case(name.split("-")[0], str(file), profiles=str(DATA / "profiles"))
    return replace(one, knowledge=VARIANTS.get(name, "learned"))


def run(
    names: Sequence[str], loads: Sequence[str] = LOADS, numbers: Sequence[int] = NUMBERS
) -> list[dict[str, Any]]:
    """Return a row per policy: the average over all runs, and over those of each load.

    Raises:
        FileNotFoundError: the public data is not there.
    """
    published = json.loads((DATA / "published_mean_jct.json").read_text())
    keys = [(load, number) for load in loads for number in numbers]
    runs = _run([case(name, workload(*key)) for name in names for key in keys])
    pollux = {key: published[key[0]][f"workload-{key[1]}"]["pollux"] for key in keys}
    rows = []
    for at, name in enumerate(names):
        mine = dict(zip(keys, runs[at * len(keys) : (at + 1) * len(keys)], strict=True))

        def change(
            chosen: Sequence[tuple[str, int]], of: dict[tuple[str, int], Finished] = mine
        ) -> float:
            jct_s = sum(float(of[key].figures["mean_jct_s"] or 0.0) for key in chosen)
            return round(jct_s / float(sum(pollux[key] for key in chosen)) - 1, 4)

        def mean(figure: str, of: dict[tuple[str, int], Finished] = mine) -> float:
            return round(sum(float(one.figures[figure] or 0.0) for one in of.values()) / len(of), 1)

        rows.append(
            {
                "policy": name,
                "runs": len(mine),
                "unfinished": sum(int(one.figures["unfinished"] or 0) for one in mine.values()),
                "mean_jct_s": mean("mean_jct_s"),
                "p50_jct_s": mean("p50_jct_s"),
                "p99_jct_s": mean("p99_jct_s"),
                "restarts": mean("restarts"),
                "against_published_pollux": change(keys),
                **{f"at_load_{load}": change([k for k in keys if k[0] == load]) for load in loads},
            }
        )
    return rows


def run_fresh(names: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row per policy, over the workloads of these seeds; `pollux` always runs."""
    names = [*names, *(["pollux"] if "pollux" not in names else [])]
    sources = [workload(load, number) for load in LOADS for number in NUMBERS]
    with TemporaryDirectory() as folder:
        files = [resampled(sources, seed, Path(folder)) for seed in seeds]
        runs = _run([case(name, file) for name in names for file in files])
    jct_s = {
        name: [float(one.figures["mean_jct_s"] or 0.0) for one in runs[at : at + len(files)]]
        for name, at in zip(names, range(0, len(runs), len(files)), strict=True)
    }
    rows = []
    for at, name in enumerate(names):
        mine, theirs = jct_s[name], jct_s["pollux"]
        figures = [one.figures for one in runs[at * len(files) : (at + 1) * len(files)]]
        rows.append(
            {
                "policy": name,
                "runs": len(files),
                "unfinished": sum(int(one["unfinished"] or 0) for one in figures),
                **{
                    figure: round(sum(float(one[figure] or 0.0) for one in figures) / len(files), 1)
                    for figure in ("mean_jct_s", "p50_jct_s", "p99_jct_s", "restarts")
                },
                "against_pollux_here": round(sum(mine) / sum(theirs) - 1, 4),
                "by_seed": {
                    seed: {
                        "jobs": one["jobs"],
                        "mean_jct_s": own,
                        "against": round(own / pollux - 1, 4),
                    }
                    for seed, one, own, pollux in zip(seeds, figures, mine, theirs, strict=True)
                },
            }
        )
    return rows


def _run(cases: Sequence[Case]) -> list[Finished]:
    def tell(done: int, one: Finished) -> None:
        sys.stderr.write(f"{done} of {len(cases)} runs: {one.case.policy}\n")

    return compare(cases, tell=tell)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Write rows for people, the best first."""
    shown = [key for key in rows[0] if key not in ("policy", "runs", "unfinished", "by_seed")]
    lines = [f"{'policy':13}" + "".join(f"{key.replace('_jct_s', ' s')[:13]:>14}" for key in shown)]
    for row in sorted(rows, key=lambda one: float(one["mean_jct_s"])):
        cells = "".join(
            f"{row[key]:>14.1%}" if key[:2] in ("ag", "at") else f"{row[key]:>14,.0f}"
            for key in shown
        )
        left = f"  {row['unfinished']} jobs never ended" if row["unfinished"] else ""
        lines.append(f"{row['policy']:13}{cells}{left}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for, and print it."""
    parser = parser_of("jct", __doc__)
    everyone = ",".join([*POLICIES, *VARIANTS])
    parser.add_argument("--policy", default=everyone, help=f"names, by commas ({everyone})")
    parser.add_argument("--loads", default=",".join(LOADS), help="by commas (%(default)s)")
    parser.add_argument("--numbers", default=",".join(map(str, NUMBERS)))
    parser.add_argument("--resample", metavar="SEEDS", help="fresh workloads, such as 1-5")
    given = parser.parse_args(argv)
    names = given.policy.split(",")
    if unknown := [name for name in names if name not in (*POLICIES, *VARIANTS)]:
        parser.error(f"no policy is called {unknown[0]!r}; there are: {everyone}")
    if not DATA.is_dir():
        parser.error(f"{DATA} is not there; it holds the public Pollux workloads and profiles")
    if given.resample:
        rows = run_fresh(names, seeds_of(given.resample))
    else:
        rows = run(names, given.loads.split(","), [int(one) for one in given.numbers.split(",")])
    print(table(rows))
    write(given.json, runs=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
