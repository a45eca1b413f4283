"""Simulates the whole system through many storms: `make simulate-faults SEEDS=1000 SEED=1 JOBS=2`.

Each seed is a storm of faults over schedulers, agents, tenants and a broker in virtual time, and
a calm after it. A seed that breaks a law is made smaller and named by one command. Exit code: 0
no law was broken, 1 some were, 2 bad usage.
"""

import argparse
import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.provenance import provenance
from tests.whole import coverage
from tests.whole.shrink import shrink
from tests.whole.storm import KINDS, Storm, draw
from tests.whole.world import REAL_S, Outcome, run

#: Names of kinds and of facts shown in the table at the end.
_WIDE = 24


def main() -> int:
    """Run the seeds; see the module's text."""
    parser = argparse.ArgumentParser(prog="make simulate-faults", description=__doc__)
    parser.add_argument("--seeds", type=_count, default=100, help="how many storms")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--jobs", type=_count, default=1, help="how many side by side")
    parser.add_argument("--minutes", type=float, help="begin no storm after so long")
    parser.add_argument("--hours", type=float, help="virtual hours of each storm; else drawn")
    parser.add_argument("--without", default="", help="kinds of faults to leave out, with commas")
    parser.add_argument("--blows", help="only these faults of the storm, by number, with commas")
    parser.add_argument("--tenants", help="only these jobs of the storm, by number, with commas")
    parser.add_argument("--verbose", action="store_true", help="say step by step what happens")
    parser.add_argument(
        "--patience",
        type=float,
        default=REAL_S,
        help="real seconds for each two virtual hours, after which a seed is stuck",
    )
    parser.add_argument("--whole", action="store_true", help="do not make broken storms smaller")
    parser.add_argument("--json", type=Path, help="write the account to this file")
    given = parser.parse_args()
    without = set(filter(None, given.without.split(",")))
    if unknown := without - KINDS.keys():
        parser.error(f"--without: no such kind: {', '.join(sorted(unknown))}; {', '.join(KINDS)}")
    for name in ("hours", "minutes", "patience"):
        if (value := getattr(given, name)) is not None and not value > 0:
            parser.error(f"--{name}: must be above 0")
    storms = [_storm(given, seed, without) for seed in range(given.seed, given.seed + given.seeds)]
    began_s = time.monotonic()
    outcomes = []
    for outcome in _all(storms, given):
        outcomes.append(outcome)
        if outcome.broken:
            _tell(outcome, storms[outcome.seed - given.seed], given)
        elif sys.stderr.isatty() or len(outcomes) % 100 == 0:
            rate = len(outcomes) / (time.monotonic() - began_s)
            end = "\r" if sys.stderr.isatty() else "\n"
            print(
                f"{len(outcomes)} of {given.seeds} seeds, {rate:.2f}/s ", end=end, file=sys.stderr
            )
    if not outcomes:
        parser.error("--minutes: no storm began in so little time")
    account = _account(outcomes, time.monotonic() - began_s)
    _show(account)
    if given.json is not None:
        given.json.write_text(json.dumps({**provenance(), **account}, indent=2) + "\n")
    return 1 if account["broken"] else 0


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text}: give at least 1")
    return count


def _storm(given: argparse.Namespace, seed: int, without: set[str]) -> Storm:
    storm = draw(seed, given.hours)
    if given.blows is not None:
        storm = replace(storm, blows=tuple(storm.blows[n] for n in _numbers(given.blows)))
    if given.tenants is not None:
        storm = replace(storm, jobs=tuple(storm.jobs[n] for n in _numbers(given.tenants)))
    return replace(storm, blows=tuple(b for b in storm.blows if b.kind not in without))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _all(storms: list[Storm], given: argparse.Namespace) -> Iterator[Outcome]:
    end_s = math.inf if given.minutes is None else time.monotonic() + 60 * given.minutes
    in_time = itertools.takewhile(lambda _: time.monotonic() < end_s, storms)
    if given.jobs == 1 or given.verbose:
        say = print if given.verbose else None
        yield from (run(storm, say, given.patience) for storm in in_time)
        return
    with ProcessPoolExecutor(given.jobs) as pool:
        running: set[Future[Outcome]] = set()
        while True:
            more = itertools.islice(in_time, given.jobs - len(running))
            running |= {pool.submit(run, storm, None, given.patience) for storm in more}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (one.result() for one in done)


def _tell(outcome: Outcome, storm: Storm, given: argparse.Namespace) -> None:
    """Name what was broken, and the least storm found that breaks it."""
    print(f"seed {outcome.seed}: broken", *outcome.broken, sep="\n    ")
    if given.whole or given.verbose:
        return
    if outcome.stuck:  # each try would take as long
        again = "" if given.hours is None else f" ARGS='--hours {given.hours:g}'"
        print(f"    make simulate-faults SEEDS=1 SEED={storm.seed} VERBOSE=1{again}", flush=True)
        return
    law = outcome.broken[0].split(":")[0]
    least = shrink(storm, lambda s: any(b.split(":")[0] == law for b in run(s).broken))
    full = draw(storm.seed, given.hours)
    blows = ",".join(str(full.blows.index(blow)) for blow in least.blows)
    jobs = ",".join(str(full.jobs.index(job)) for job in least.jobs)
    kinds = ", ".join(blow.kind for blow in least.blows) or "no fault at all"
    print(f"    the least storm found: {len(least.jobs)} jobs, and {kinds}")
    hours = "" if given.hours is None else f" --hours {given.hours:g}"
    print(
        f"    make simulate-faults SEEDS=1 SEED={storm.seed} VERBOSE=1 "
        f"ARGS='--blows={blows} --tenants={jobs}{hours}'",
        flush=True,
    )


def _account(outcomes: list[Outcome], wall_s: float) -> dict[str, object]:
    def total(name: str) -> dict[str, int]:
        counts: Counter[str] = sum((getattr(one, name) for one in outcomes), Counter())
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    broken = [one for one in outcomes if one.broken]
    cpu_s = sum(one.seconds for one in outcomes)
    return {
        "seeds": len(outcomes),
        "broken": len(broken),
        "seeds_per_s": round(len(outcomes) / wall_s, 3),
        "seeds_per_cpu_s": round(len(outcomes) / cpu_s, 3) if cpu_s else None,
        "virtual_hours": round(sum(one.virtual_hours for one in outcomes), 1),
        "jobs": sum(one.jobs for one in outcomes),
        "takeovers": sum(one.takeovers for one in outcomes),
        "faults": total("blows"),
        "facts": total("facts"),
        "fault_and_state": total("pairs"),
        "transitions": coverage.account(total("transitions"), coverage.all_transitions()),
        "commands": coverage.account(total("commands"), coverage.all_commands()),
        "stuck_seeds": [one.seed for one in outcomes if one.stuck],
        "broken_seeds": [{"seed": one.seed, "laws": one.broken} for one in broken],
        "slowest": [
            asdict(one)["seed"] for one in sorted(outcomes, key=lambda one: -one.seconds)[:5]
        ],
    }


def _show(account: dict[str, object]) -> None:
    faults = account["faults"]
    assert isinstance(faults, dict)
    for kind in KINDS:
        print(f"{kind:{_WIDE}} {faults.get(kind, 0):8,}")
    print(
        f"{account['seeds']} seeds, {account['broken']} broken, {account['virtual_hours']} virtual "
        f"hours, {account['jobs']} jobs, {account['seeds_per_s']} seeds/s"
    )
    for what in ("transitions", "commands"):
        covered = account[what]
        assert isinstance(covered, dict)
        print(f"{what}: {covered['seen']} of {covered['of']}", end="; ")
    print(f"stuck seeds: {account['stuck_seeds'] or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
