"""The demo's day under several policies: `python -m benchmarks.day --json out.json`.

Nothing is simulated but GPUs, owners and time: scheduler, agents and tenants of `tidegate demo` run
on a SQLite bus, as fast as they go. Who completes differs from policy to policy, so policies are
compared by the time that jobs spend within the day, from submission on: all of them, and those of
each priority, since not every policy knows priorities. The rest is what the demo says at its end.
Two runs may differ by a few jobs, as services interleave by real time.
"""

import asyncio
import sys
import tempfile
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.figures import parser_of, write
from benchmarks.resampled import seeds_of
from bus.reading import open_log
from demo.claim import Run, claim
from demo.play import play
from explain.tide import Tide, tide_of
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader, fold
from scheduler.policies.registry import make_policy
from schemas.topics import JOURNAL
from simulator.at_once import in_order, in_processes
from simulator.scenario import Scenario

_HOUR_S = 3600.0
_POLICIES = "tide,fifo,srtf,tiresias,optimus,afs,pollux,sia,aryl,deepboot,elasticflow,edgeflow"


def plain(scenario: Scenario) -> Scenario:
    """Give the same day with no deadlines and one priority, for policies that know neither."""
    jobs = tuple(
        replace(
            job,
            deadline_after_s=None,
            submission=job.submission.model_copy(update={"priority": 0}),
        )
        for job in scenario.workload.jobs
    )
    return replace(scenario, workload=replace(scenario.workload, jobs=jobs))


def day(hours: float, without: bool, case: tuple[str, int]) -> dict[str, Any]:
    """Run a day under a policy, with a seed, `without` deadlines and priorities or with them.

    Raises:
        RuntimeError: the engine broke an invariant.
    """
    policy, seed = case
    run = Run(hours, seed, policy, None, None, 0.0)
    scenario = plain(run.scenario()) if without else run.scenario()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        with claim(path, run):
            result = asyncio.run(play(path, run, scenario, 0.0, live=False))
        if result is None or result["invariant_violations"] or result["policy_failures"]:
            raise RuntimeError(f"{policy}, seed {seed}: {result}")
        state, reader = ClusterState(), JournalReader()
        seen: list[Tide] = []
        with open_log(path) as log:
            for record in log.records(JOURNAL.name):
                if (entry := reader.read(record)) is not None:
                    fold(state, entry)
                    seen.append(tide_of(state))
    unused_gpu_s = sum(now.unused * (then.at_s - now.at_s) for now, then in pairwise(seen))
    spent_s: dict[int, list[float]] = {}
    for job in state.jobs.values():  # those that have ended are kept for two days
        until_s = run.end_s if job.end_s is None else job.end_s
        spent_s.setdefault(job.priority, []).append(until_s - job.submit_s)
    return {
        "policy": policy,
        "seed": seed,
        "mean_spent_s": mean(chain.from_iterable(spent_s.values())),
        "mean_spent_s_by_priority": {str(key): mean(spent_s[key]) for key in sorted(spent_s)},
        "unused_gpu_s": unused_gpu_s,
        **{name: value for name, value in result.items() if name != "state_hash"},
    }


def main() -> None:
    """Run what was asked for, and write it."""
    parser = parser_of("day", __doc__)
    parser.add_argument("--policies", default=_POLICIES, help="with commas")
    parser.add_argument("--seeds", default="7-11", help="such as 7-11, or 7,9")
    parser.add_argument("--hours", type=float, default=24.0, help="simulated hours of each run")
    parser.add_argument("--plain", action="store_true", help="no deadlines and one priority")
    parser.add_argument("--processes", type=int, default=1, help="how many runs side by side")
    given = parser.parse_args()
    policies = given.policies.split(",")
    for policy in policies:
        make_policy(policy)
    cases = [(policy, seed) for policy in policies for seed in seeds_of(given.seeds)]

    def tell(done: int, row: dict[str, Any]) -> None:
        print(
            f"{done} of {len(cases)}: {row['policy']}, seed {row['seed']}: "
            f"{row['jobs_completed']} completed, {row['mean_spent_s'] / _HOUR_S:.2f} h a job",
            file=sys.stderr,
            flush=True,
        )

    where = in_processes(given.processes, RuntimeError("a run was killed"))
    rows = in_order(partial(day, given.hours, given.plain), cases, where, tell)
    write(given.json or "-", hours=given.hours, plain=given.plain, rows=rows)


if __name__ == "__main__":
    main()
