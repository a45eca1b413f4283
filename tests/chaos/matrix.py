"""The kill matrix: faults at random moments under load, and a full account afterwards.

    python -m tests.chaos.matrix --minutes 30 --seed 1 --json out.json [--kinds kill-leader,...]

Ends with 0 if nothing was lost, done twice or owned twice, 1 if something was (the folder of the
run is kept then), 2 if it was called wrongly. Brokers and processes are its own.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bus.clock import SystemClock
from bus.kafka import KafkaBus
from tests.chaos.account import Account, settle_accounts
from tests.chaos.faults import KINDS, Fault, Faults
from tests.chaos.fleet import Fleet, Shape
from tests.chaos.load import Tenant, submit_steadily
from tests.chaos.running import hush, parser_of, run_in_folder
from tests.chaos.watch import Watch

#: How long a fleet may take to start, to be well after a fault, and to finish all jobs at the end.
START_S, WELL_S, FINISH_S = 90.0, 90.0, 180.0
#: The pause before each fault is up to this long.
PAUSE_S = 4.0
#: How an agent that cannot write says so at its end: the state file, and the effects file.
_FULL_DISK = ("make room on the disk", "File too large")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    seed: int
    minutes: float | None = None  #: Rounds of all kinds until then; None is one round.
    kinds: Sequence[str] = KINDS
    jobs_per_s: float = 0.4
    jobs_open_max: int = 30
    #: Faults last half as long, and the next one comes before the fleet is well again.
    brief: bool = False


@dataclass(slots=True)
class Run:
    """What has happened so far."""

    plan: Plan
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    full_disk_exits: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def tell(self, text: str) -> None:
        line = f"{time.monotonic() - self.began_s:7.1f} s  {text}"
        self.history.append(line)
        print(line, flush=True)  # noqa: T201

    def wrong(self, text: str) -> None:
        self.problems.append(text)
        self.tell(f"PROBLEM: {text}")

    def ended(self, text: str) -> None:
        """Hear of a process that ended by itself."""
        if any(sign in text for sign in _FULL_DISK):
            self.full_disk_exits += 1
            self.tell(text.partition("\n")[0] + ": its disk was full")
        else:
            self.wrong(text)


async def run(plan: Plan, folder: Path) -> dict[str, Any]:
    """Run the plan in an empty folder; give the figures, with `problems` among them."""
    hush()
    going = Run(plan)
    rng = np.random.default_rng(plan.seed)
    fleet = Fleet(folder, Shape())
    going.tell(f"seed {plan.seed}, folder {folder}")
    try:
        await asyncio.to_thread(fleet.start)
        account = await _with_load(going, fleet, rng)
    finally:
        await asyncio.to_thread(fleet.end)
    going.problems += account.problems
    return figures_of(going, account)


async def _with_load(going: Run, fleet: Fleet, rng: np.random.Generator) -> Account:
    bus = KafkaBus.open(fleet.kafka, SystemClock())
    watch = Watch(fleet.kafka)
    tenant = Tenant(bus, np.random.default_rng([going.plan.seed, 1]), "chaos")
    prober = Tenant(bus, rng, "probe")
    watch.start()
    supervising = asyncio.create_task(fleet.look_after(going.ended))
    load = asyncio.create_task(
        submit_steadily(tenant, going.plan.jobs_per_s, watch.jobs_ended, going.plan.jobs_open_max)
    )
    try:
        await _well(going, watch, prober, Fault.none(fleet), time.time(), START_S)
        going.tell(f"the fleet is up; {watch.leader} leads")
        await _inflict(going, watch, prober, Faults(fleet, rng, lambda: watch.leader))
        load.cancel()
        await asyncio.wait([load])
        going.tell(f"no more faults; {len(tenant.jobs)} jobs were accepted")
        await prober.probe()
        last = prober.confirmed[-1]
        finished = await watch.until(
            lambda: last in watch.probes and watch.over(tenant.jobs), FINISH_S
        )
        going.tell("all jobs are finished" if finished else "some jobs are not finished")
        for name in fleet.processes:
            broken = fleet.metrics(name).get("tidegate_invariant_violations_total", 0.0)
            if broken:
                going.wrong(f"{name} found {broken:.0f} invariants broken")
        supervising.cancel()
        await asyncio.wait([supervising])
        await asyncio.to_thread(fleet.end_agents)
        await _all_is_taken(going, watch, prober)
    finally:
        load.cancel()
        supervising.cancel()
        await watch.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await bus.close()
    return await settle_accounts(fleet, [*tenant.confirmed, *prober.confirmed], tenant.jobs)


async def _inflict(going: Run, watch: Watch, prober: Tenant, faults: Faults) -> None:
    """Let the faults happen, in an order and at moments of chance."""
    plan = going.plan
    rng = np.random.default_rng([plan.seed, 2])
    until_s = None if plan.minutes is None else time.monotonic() + 60.0 * plan.minutes
    recovering: list[asyncio.Task[None]] = []
    try:
        while until_s is None or time.monotonic() < until_s:
            for kind in rng.permutation(list(plan.kinds)):
                await asyncio.sleep(rng.uniform(0.0, PAUSE_S) * (0.2 if plan.brief else 1.0))
                fault = faults.make(str(kind))
                if plan.brief:
                    fault.hold_s *= 0.5
                going.tell(f"{fault.kind} {fault.target} for {fault.hold_s:.1f} s")
                healed_s = await fault.happen()
                recovery = _recover(going, watch, prober, fault, healed_s)
                recovering.append(asyncio.create_task(recovery))
                if not plan.brief:
                    await recovering[-1]
                if until_s is not None and time.monotonic() > until_s:
                    break
            if until_s is None:
                break
        await asyncio.gather(*recovering)
    finally:
        for one in recovering:
            one.cancel()


async def _recover(going: Run, watch: Watch, prober: Tenant, fault: Fault, healed_s: float) -> None:
    took_s = await _well(going, watch, prober, fault, healed_s, WELL_S)
    going.recovery_s.setdefault(fault.kind, []).append(took_s)


async def _well(
    going: Run,
    watch: Watch,
    prober: Tenant,
    fault: Fault,
    healed_s: float,
    patience_s: float,
) -> float:
    """Wait until a probe comes through and the agents concerned are heard; give the time."""
    began_s = time.monotonic()
    sent: list[Any] = []

    async def probe() -> None:
        sent.append(await prober.probe())

    probing = asyncio.create_task(probe())
    well = await watch.until(
        lambda: bool(sent) and sent[0] in watch.probes and watch.heard(fault.agents, healed_s),
        patience_s,
    )
    if not well:
        silent = [name for name in fault.agents if not watch.heard([name], healed_s)]
        going.wrong(
            f"{fault.kind} {fault.target}: not well after {patience_s:.0f} s; "
            f"probe {'lost' if sent else 'not accepted'}, silent: {', '.join(silent) or 'nobody'}"
        )
        probing.cancel()
    await asyncio.wait([probing])
    return time.monotonic() - began_s


async def _all_is_taken(going: Run, watch: Watch, prober: Tenant) -> None:
    """Let the scheduler take what the agents said at their end, before it is counted."""
    await prober.probe()
    last = prober.confirmed[-1]
    if not await watch.until(lambda: last in watch.probes, WELL_S):
        going.wrong("the scheduler no longer takes events")


def figures_of(going: Run, account: Account) -> dict[str, Any]:
    """Put what happened into figures: overall, and by kind of fault."""
    every = [took for many in going.recovery_s.values() for took in many]
    return {
        "seed": going.plan.seed,
        "minutes": round((time.monotonic() - going.began_s) / 60.0, 1),
        "faults": len(every),
        **account.figures,
        "recovery_s_p50": _percentile(every, 50),
        "recovery_s_p99": _percentile(every, 99),
        "full_disk_exits": going.full_disk_exits,
        "by_kind": {
            kind: {
                "faults": len(many),
                "recovery_s_p50": _percentile(many, 50),
                "recovery_s_worst": _percentile(many, 100),  # a p99 of so few says no more
            }
            for kind, many in sorted(going.recovery_s.items())
        },
        "problems": going.problems,
    }


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 2) if values else None


def show(figures: dict[str, Any]) -> str:
    """Write the figures as a table."""
    lines = [f"{'fault':18}{'count':>6}{'recovery p50':>14}{'worst':>8}"]
    for kind, row in figures["by_kind"].items():
        middle, worst = row["recovery_s_p50"], row["recovery_s_worst"]
        lines.append(f"{kind:18}{row['faults']:>6}{middle:>12} s{worst:>6} s")
    plain = {name: value for name, value in figures.items() if not isinstance(value, dict | list)}
    lines += ["", *(f"{name:24}{value}" for name, value in plain.items())]
    lines += ["", *(f"PROBLEM: {text}" for text in figures["problems"])]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("matrix", __doc__)
    parser.add_argument("--minutes", type=float, help="go on for so long; default: one round")
    parser.add_argument("--kinds", default=",".join(KINDS), help="only these, with commas between")
    options = parser.parse_args(arguments)
    kinds = options.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"no fault {unknown[0]!r}; there are {', '.join(KINDS)}")
    plan = Plan(options.seed, options.minutes, kinds)
    return run_in_folder("matrix", options, lambda folder: run(plan, folder), show)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
