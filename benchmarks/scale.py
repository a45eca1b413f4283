"""One large cell: `python -m benchmarks.scale`.

A real `SchedulerService` on a bus, in virtual time: nodes are born in random order, jobs come all
at once, gangs start, report and end, a snapshot is taken, the scheduler dies and another recovers,
and in the end all agents fall silent until their leases are over. Of each it says CPU time (the
policy's thread included), wall time, and the longest stretch in which the event loop let nobody
else on: in wall time, and in CPU time of its own thread, which other work on the machine does not
lengthen. `--sources` measures what a message costs at the intake with so many sources.
"""

import asyncio
import gc
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import parser_of, write
from benchmarks.large_cell import CYCLE_S, START_S, Cost, Fleet, LargeCell
from bus.clock import PacedClock
from bus.contract import Bus, Record
from bus.sqlite import SqliteBus
from scheduler import garbage
from scheduler.contact import Contact
from scheduler.core.evolve import apply
from scheduler.core.facts import NodeJoined
from scheduler.core.settings import Settings
from scheduler.core.state import SLOT_S, SLOTS, ClusterState, Lender
from scheduler.dedupe import Dedupe
from scheduler.intake import Intake
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, event
from schemas.events import CommandAcknowledged, EventData
from schemas.topics import EVENTS
from tests.memory_bus import MemoryBus

Say = Callable[..., None]
#: Minutes before what is measured is steady.
_SETTLING = 3


def sources(count: int) -> dict[str, float]:
    """Measure the intake and the contact with so many sources that take turns, none of them known.

    Each message is of another source than the one before. CPU time for each message: of the first
    of each source, of the next, and of the same again.
    """
    intake, contact, state = Intake("default", "bench", Dedupe()), Contact(), ClusterState()
    for number in range(1000):
        one = f"node-{number:05d}"
        joined = NodeJoined(one, one, "train", "training", 8, "a100", 80_000, 1.0, 1e3, 1)
        apply(state, joined)
    made = []
    for sequence in range(2):
        for number in range(count):
            said = CommandAcknowledged(command="nothing", outcome="done")
            made.append(_record(said, f"/agents/e{number:06d}", sequence))
    found = {}
    for name, part in (("first", made[:count]), ("next", made[count:]), ("again", made[count:])):
        began_s = time.process_time()
        for start in range(0, count, 2000):
            intake.read(part[start : start + 2000], state, START_S)
            contact.hear(intake.spoke, START_S)
            contact.orders(state, intake.spoke, {}, intake.dedupe, START_S, Settings())
            garbage.look_at_new()
        found[f"{name}_us"] = round(1e6 * (time.process_time() - began_s) / count, 1)
    if intake.counts["duplicates"] != count or intake.counts["dead_letters"]:
        raise RuntimeError(f"not every message was taken once: {dict(intake.counts)}")
    return {"sources": count, **found}


def _record(data: EventData, source: str, sequence: int) -> Record:
    said = event(data, source=source, sequence=sequence, bootid=1, time_s=START_S)
    return Record(EVENTS.name, sequence, "default", encode(said), {}, START_S)


async def measure(
    nodes: int, jobs: int, log: Path | None, seed: int, budget_s: float, cycles: int
) -> dict[str, Any]:
    """Measure a cell of this size."""
    clock = PacedClock(START_S, None)
    bus: Bus = MemoryBus(clock) if log is None else SqliteBus.open(log, clock)
    fleet = Fleet(nodes, seed)
    cell = LargeCell(clock, bus, fleet, ServiceConfig(cycle_budget_s=budget_s))
    row: dict[str, Any] = {"nodes": nodes, "jobs": jobs}

    def say(name: str, cost: Cost, **more: Any) -> None:
        row[name] = {**{part: round(took, 4) for part, took in asdict(cost).items()}, **more}
        print(nodes, jobs, name, row[name], file=sys.stderr, flush=True)

    async with cell.running(Cost()) as service:
        cost = Cost()
        await cell.hear(fleet.births(clock.now_s()), cost)
        say("births", cost, born=len(service.engine.state.nodes))
        _remember(fleet, service.engine.state, clock.now_s())
        cost = Cost()
        await cell.hear(fleet.submissions(jobs, clock.now_s()), cost)
        say("submissions", cost)
        cell.plans_s.clear()
        cost = Cost()
        await cell.go_on(clock.now_s() + 5.5, cost)
        say("first_plan", cost, plan_s=cell.plans_s[0], cut=service.cycle_runner.cut)
        cost = Cost()
        await cell.settle(cost)
        say("starts", cost, running=len(fleet.gangs))
        if cycles > _SETTLING:
            await _ordinary(cell, jobs // 1000, cycles, say)
        cost = Cost()
        async with cell.watch.over(cost):
            await service.snapshot()
        say("snapshot", cost)
        await _a_minute(cell, jobs // 1000, Cost())
    # It said no goodbye: the next one finds what a crash leaves.
    gc.collect()
    cost = Cost()
    async with cell.running(cost) as service:
        say("recovery", cost, entries=service.recovered_entries)
        for name, later_s in (("silence", 300.0), ("leases_end", 1500.0)):
            cost = Cost()
            await cell.go_on(clock.now_s() + later_s, cost)
            cell.forget()
            found = Counter(str(node.state) for node in service.engine.state.nodes.values())
            say(name, cost, nodes=dict(found))
    row["rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    await bus.close()
    return row


async def _ordinary(cell: LargeCell, jobs: int, cycles: int, say: Say) -> None:
    """Let so many minutes pass, and say what cycles took in those after the first."""
    settling, cost = Cost(), Cost()
    spent: list[tuple[float, float]] = []
    for number in range(cycles):
        cell.cycles.clear()
        await _a_minute(cell, jobs, settling if number < _SETTLING else cost)
        spent += cell.cycles if number >= _SETTLING else []
    say("settling", settling)
    whole, plan = np.array(spent).T
    say(
        "steady",
        cost,
        cycles=len(spent),
        cycle_p50_s=round(float(np.quantile(whole, 0.5)), 4),
        cycle_p99_s=round(float(np.quantile(whole, 0.99)), 4),
        plan_p50_s=round(float(np.quantile(plan, 0.5)), 4),
        running=len(cell.fleet.gangs),
    )


def _remember(fleet: Fleet, state: ClusterState, now_s: float) -> None:
    """Give each owner two days of history, as its reports would have."""
    slot = int(now_s // SLOT_S)
    waves = [0.25 + 0.2 * float(np.sin(slot / 46.0)) for slot in range(SLOTS)]
    for name, gpus in fleet.owners():
        history: list[float | None] = [float(round(gpus * wave)) for wave in waves]
        needed = history[-1] or 0.0
        state.lenders[name] = Lender(name, needed, needed, now_s, slot, history)


async def _a_minute(cell: LargeCell, jobs: int, cost: Cost) -> None:
    """Let a minute pass: gangs and owners report, some gangs end, and so many jobs come."""
    now_s, fleet = cell.clock.now_s(), cell.fleet
    said = fleet.loads(now_s) + fleet.work(now_s) + fleet.submissions(jobs, now_s)
    await cell.hear(said, cost)
    await cell.settle(cost)
    await cell.go_on((now_s // CYCLE_S + 1) * CYCLE_S + 1.0, cost)
    await cell.settle(cost)


def main() -> int:
    """Measure."""
    parser = parser_of("scale", __doc__)
    sizes = "2500x12500,5000x25000,10000x50000"
    parser.add_argument("--sizes", default=sizes, help=f"nodes x jobs of each cell ({sizes})")
    parser.add_argument("--sources", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--log", type=Path, help="a new SQLite log (else in memory)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--cycles", type=int, default=13, help="minutes of ordinary work, more than 3; 0: none (13)"
    )
    parser.add_argument("--budget", type=float, default=10.0, help="of a plan, in seconds (10)")
    options = parser.parse_args()
    garbage.put_off()  # as in the scheduler's process
    counts = [sources(count) for count in options.sources]
    print(counts, file=sys.stderr)
    rows = []
    for size in filter(None, options.sizes.split(",")):
        nodes, jobs = map(int, size.split("x"))
        cell = measure(nodes, jobs, options.log, options.seed, options.budget, options.cycles)
        rows.append(asyncio.run(cell))
        write(options.json, cells=rows, sources=counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
