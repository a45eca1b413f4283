"""The kill matrix with real work: kills at chosen moments of real gangs, and a full account.

    python -m tests.chaos.real_work --minutes 30 --seed 1 --json out.json
                                    [--kills agent:starting,worker:training]

Jobs train on made-up GPUs of a cloud agent and an edge agent, while the tide of an owner's load
makes them start, grow, shrink, leave and come back; an outside witness looks at /proc all the
while. Ends with 0 if nothing was lost, done twice or owned twice, and all weights are those of an
undisturbed run; with 1 if not (the folder is kept then), with 2 if it was called wrongly.
"""

import asyncio
import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from bus.clock import SystemClock
from bus.kafka import KafkaBus
from tests.chaos.account import Account
from tests.chaos.load import Tenant
from tests.chaos.real_account import read_testimony, settle_real
from tests.chaos.real_fleet import CLOUD, ROOT, STEPS, RealFleet
from tests.chaos.real_kills import KILLS, Done, find, kill
from tests.chaos.real_moments import Moment, gpus_of
from tests.chaos.running import hush, parser_of, run_in_folder
from tests.chaos.watch import Watch
from tests.patience import PATIENCE_S

#: Jobs that are open at a time, beside urgent ones.
OPEN = 2
#: How long all jobs may take to finish when nobody is killed any more.
FINISH_S = 300.0
#: Between kills, away from its place, and between changes of the owner's load.
PAUSE_S, AWAY_S, TIDE_S = (0.5, 3.0), (0.5, 4.0), (6.0, 12.0)


@dataclass(frozen=True, slots=True)
class Cause:
    """What brings a phase about: a gang trains on the owner's nodes, and then something changes.

    It must be certain and soon. That a gang grows, or shrinks with what its owner lends, is for the
    policy to weigh; that it shrinks for an urgent job is not. And an urgent gang that has to leave
    goes to the edge at once; another one waits there for an end.
    """

    lent: int  #: Nodes that the owner lends before,
    then: int  #: and after.
    shrinks: bool = False  #: Whether an urgent job comes, for which a larger gang makes room.
    urgent: bool = False  #: Whether the gang must be an urgent one.


#: Of phases that do not come by themselves.
CAUSES = {
    "resizing": Cause(lent=1, then=1, shrinks=True),
    "leaving": Cause(lent=2, then=0),
    "fetching": Cause(lent=2, then=0, urgent=True),
    "reclaiming": Cause(lent=2, then=0),
}
#: A cause may have to wait for a loan and for GPUs of others, its effect for a checkpoint.
CAUSE_S, EFFECT_S = 30.0, 15.0


class RealTenant(Tenant):
    """Submits jobs that train."""

    def __init__(
        self, bus: KafkaBus, rng: np.random.Generator, fleet: RealFleet, steps: int
    ) -> None:
        super().__init__(bus, rng, "chaos")
        self._fleet, self._steps = fleet, steps
        self._numbers = itertools.count()
        self.urgent: list[str] = []

    async def submit(self, *, urgent: bool = False) -> str:
        job = f"job-{next(self._numbers):05d}"
        await self._say(self._fleet.job(job, self._steps, urgent=urgent))
        self.jobs.append(job)
        if urgent:
            self.urgent.append(job)
        return job


class Run:
    """A deployment under its witness, and what has happened so far."""

    tenant: RealTenant
    watch: Watch

    def __init__(self, folder: Path, seed: int, steps: int = STEPS) -> None:
        self.folder, self.seed, self.steps = folder, seed, steps
        self.fleet = RealFleet(folder)
        self.kills: list[Done] = []
        self.missed: Counter[str] = Counter()
        self.problems: list[str] = []
        self._began_s = time.monotonic()
        self._bus: KafkaBus | None = None
        self._witness: subprocess.Popen[bytes] | None = None
        self._supervising: asyncio.Task[None] | None = None

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {text}", flush=True)  # noqa: T201

    def wrong(self, text: str) -> None:
        self.problems.append(text)
        self.tell(f"PROBLEM: {text}")

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await asyncio.to_thread(self.fleet.end)
            raise
        return self

    async def _start(self) -> None:
        await asyncio.to_thread(self.fleet.start)
        command = [sys.executable, "-m", "tests.chaos.real_witness"]
        command += [str(self.folder), str(self.testimony)]
        self._witness = subprocess.Popen(command, cwd=ROOT)
        self._bus = KafkaBus.open(self.fleet.kafka, SystemClock())
        self.watch = Watch(self.fleet.kafka)
        self.watch.start()
        self.tenant = RealTenant(
            self._bus, np.random.default_rng(self.seed), self.fleet, self.steps
        )
        self._supervising = asyncio.create_task(self.fleet.look_after(self.wrong))

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._end_supervising()
            await self.watch.stop()
            self._end_witness()
            assert self._bus is not None
            with suppress(TimeoutError):
                async with asyncio.timeout(10.0):
                    await self._bus.close()
        finally:
            await asyncio.to_thread(self.fleet.end)

    @property
    def testimony(self) -> Path:
        return self.folder / "witness.jsonl"

    async def strike(self, victim: str, moment: Moment, away_s: float) -> Done:
        """Kill, and tell."""
        done = await kill(self.fleet, victim, moment, away_s)
        if done.problem == "it had ended":
            self.missed[f"{victim} {moment.phase}"] += 1
            return done
        self.kills.append(done)
        self.tell(f"{done}, away for {away_s:.1f} s")
        if done.problem:
            self.wrong(f"{done}: {done.problem}")
        return done

    async def steer(self, phase: str, patience_s: float = PATIENCE_S) -> Moment:
        """Give such a moment as soon as there is one; what needs a cause is brought about."""
        deadline_s = time.monotonic() + patience_s
        cause = CAUSES.get(phase)
        while time.monotonic() < deadline_s:
            moment = None if cause is None else await self._bring_about(phase, cause)
            if moment is None:
                moment = await find(self.fleet, lambda one: one.phase == phase, EFFECT_S)
            if moment is not None:
                return moment
        raise AssertionError(f"nothing was {phase} in {patience_s:.0f} s")

    async def _bring_about(self, phase: str, cause: Cause) -> Moment | None:
        """Let the cause come; give a moment of the phase if there is one before."""
        self.fleet.tide(cause.lent)
        urgent = self.tenant.urgent
        if cause.urgent and self.watch.over(urgent):
            await self.tenant.submit(urgent=True)

        def may_go(one: Moment) -> bool:
            if (one.phase, one.agent) != ("training", CLOUD):
                return one.phase == phase
            is_wide = not cause.shrinks or gpus_of(self.fleet, one) > 1
            return is_wide and (not cause.urgent or one.job in urgent)

        found = await find(self.fleet, may_go, CAUSE_S)
        if found is None or found.phase == phase:
            return found
        self.fleet.tide(cause.then)
        if cause.shrinks:
            await self.tenant.submit(urgent=True)
        return None

    async def settle(self) -> Account:
        """Wait until all jobs are finished, end the agents, and draw up the account."""
        self.fleet.tide(2)
        jobs = self.tenant.jobs
        if not await self.watch.until(lambda: self.watch.over(jobs), FINISH_S):
            self.wrong(f"not finished after {FINISH_S:.0f} s: {len(jobs)} jobs were accepted")
        await self._end_supervising()
        await asyncio.to_thread(self.fleet.end_agents)
        assert self._bus is not None
        prober = Tenant(self._bus, np.random.default_rng(self.seed), "probe")
        last = await prober.probe()
        if not await self.watch.until(lambda: last in self.watch.probes, FINISH_S):
            self.wrong("the scheduler no longer takes events")
        self._end_witness()
        said, confirmed = read_testimony(self.testimony), [*self.tenant.confirmed, last]
        account = await settle_real(self.fleet, said, confirmed, jobs, self.steps)
        self.problems += account.problems
        return account

    def _end_witness(self) -> None:
        if self._witness is not None:
            self._witness.terminate()
            if self._witness.wait(30) != 0:
                self.wrong("the witness ended badly")
            self._witness = None

    async def _end_supervising(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.wait([self._supervising])
            self._supervising = None


async def run(
    folder: Path, seed: int, minutes: float, kills: Sequence[tuple[str, str]] = KILLS
) -> dict[str, Any]:
    """Kill at random moments for so long; give the figures, with `problems` among them."""
    hush()
    rng = np.random.default_rng(seed)
    going = Run(folder, seed)
    going.tell(f"seed {seed}, folder {folder}")
    async with going:
        beside = [asyncio.create_task(keep_busy(going)), asyncio.create_task(_tide(going, rng))]
        try:
            until_s = time.monotonic() + 60.0 * minutes
            while time.monotonic() < until_s:
                for index in rng.permutation(len(kills)):
                    await _one(going, rng, *kills[index])
                    if time.monotonic() > until_s or any(task.done() for task in beside):
                        break
                for task in beside:
                    if task.done():
                        task.result()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
        going.tell(f"no more kills; {len(going.tenant.jobs)} jobs were accepted")
        account = await going.settle()
    return figures_of(going, account, minutes)


async def _one(going: Run, rng: np.random.Generator, victim: str, phase: str) -> None:
    await asyncio.sleep(rng.uniform(*PAUSE_S))
    moment = await find(going.fleet, lambda one: one.phase == phase)
    if moment is None:
        going.missed[f"{victim} {phase}"] += 1
        return
    # Not always at once: a phase has a middle, too.
    await asyncio.sleep(rng.choice([0.0, rng.uniform(0.0, 0.5)]))
    await going.strike(victim, moment, rng.uniform(*AWAY_S))


async def keep_busy(going: Run) -> None:
    """Submit a job whenever there are too few beside urgent ones, until cancelled."""
    while True:
        usual = set(going.tenant.jobs).difference(going.tenant.urgent)
        if sum(not going.watch.over([job]) for job in usual) < OPEN:
            await going.tenant.submit()
        await asyncio.sleep(0.5)


async def _tide(going: Run, rng: np.random.Generator) -> None:
    lent = 2
    while True:
        going.fleet.tide(lent)
        await asyncio.sleep(rng.uniform(*TIDE_S))
        lent = int(rng.choice([one for one in (0, 1, 2) if one != lent]))


def figures_of(going: Run, account: Account, minutes: float) -> dict[str, Any]:
    """Put what happened into figures: overall, by victim and by phase."""
    table: dict[str, Counter[str]] = {}
    for done in going.kills:
        table.setdefault(done.victim, Counter())[done.moment.phase] += 1
    return {
        "seed": going.seed,
        "minutes": minutes,
        "kills": len(going.kills),
        **account.figures,
        "by_victim": {victim: dict(sorted(row.items())) for victim, row in sorted(table.items())},
        "missed": dict(sorted(going.missed.items())),
        "problems": going.problems,
    }


def show(figures: dict[str, Any]) -> str:
    """Write the figures as a table."""
    lines = []
    for victim, row in figures["by_victim"].items():
        told = ", ".join(f"{phase} {count}" for phase, count in row.items())
        lines.append(f"{victim:12}{sum(row.values()):>5}   {told}")
    plain = {name: value for name, value in figures.items() if not isinstance(value, dict | list)}
    lines += ["", *(f"{name:32}{value}" for name, value in plain.items())]
    lines += ["", *(f"PROBLEM: {text}" for text in figures["problems"])]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("real_work", __doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="go on for so long")
    parser.add_argument("--kills", help="only these, as agent:starting,worker:training")
    options = parser.parse_args(arguments)
    chosen = list(KILLS)
    if options.kills:
        parts = (one.partition(":") for one in options.kills.split(","))
        chosen = [(victim, phase) for victim, _, phase in parts]
    if unknown := [one for one in chosen if one not in KILLS]:
        parser.error(f"no kill {':'.join(unknown[0])}; there are {', '.join(map(':'.join, KILLS))}")

    async def work(folder: Path) -> dict[str, Any]:
        return await run(folder, options.seed, options.minutes, chosen)

    return run_in_folder("real-work", options, work, show)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
