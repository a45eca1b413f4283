"""One large cell: `python -m benchmarks.scale --sizes 2500x12500,5000x25000,10000x50000`."""

import argparse
import asyncio
import gc
import json
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.large_cell import CYCLE_S, START_S, Cost, Fleet, LargeCell
from benchmarks.provenance import provenance
from bus.clock import PacedClock
from bus.contract import Record
from bus.open import open_bus
from scheduler import garbage
from scheduler.contact import Contact
from scheduler.core.evolve import apply
from scheduler.core.facts import NodeJoined
from scheduler.core.settings import Settings
from scheduler.core.state import SLOTS, ClusterState, Lender
from scheduler.dedupe import Dedupe
from scheduler.intake import Intake
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, event
from schemas.events import CommandAcknowledged, EventData
from schemas.topics import EVENTS


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
            contact.orders(state, intake.spoke, intake.dedupe, START_S, Settings())
            garbage.look()
        found[f"{name}_us"] = round(1e6 * (time.process_time() - began_s) / count, 1)
    if intake.counts["duplicates"] != count or intake.counts["dead_letters"]:
        raise RuntimeError(f"not every message was taken once: {dict(intake.counts)}")
    return {"sources": count, **found}


def _record(data: EventData, source: str, sequence: int) -> Record:
    said = event(data, source=source, sequence=sequence, bootid=1, time_s=START_S)
    return Record(EVENTS.name, sequence, "default", encode(said), {}, START_S)


async def measure(
    nodes: int, jobs: int, address: str, seed: int, budget_s: float, cycles: int
) -> dict[str, Any]:
    clock = PacedClock(START_S, None)
    bus = open_bus(address, clock)
    fleet = Fleet(nodes, seed)
    config = ServiceConfig(cycle_budget_s=budget_s)
    cell = LargeCell(clock, bus, fleet, config)
    row: dict[str, Any] = {"nodes": nodes, "jobs": jobs}
    costs: dict[str, Cost] = {}

    def note(name: str, **more: Any) -> Cost:
        cost = costs[name] = Cost()
        return cost

    def say(name: str, **more: Any) -> None:
        row[name] = {**{k: round(v, 4) for k, v in asdict(costs[name]).items()}, **more}
        print(nodes, jobs, name, row[name], file=sys.stderr, flush=True)

    async with cell.running(note("begin")) as service:
        said = fleet.births(clock.now_s())
        await cell.hear(said, note("births"))
        assert len(service.engine.state.nodes) == nodes
        say("births")
        state = service.engine.state
        for name in ["infer", *(n for n, (_, pool, _) in fleet.nodes.items() if pool == "edge")]:
            tide = [
                8.0 * nodes * 0.3 * (0.25 + 0.2 * float(np.sin(slot / 46.0)))
                for slot in range(SLOTS)
            ]
            if name != "infer":
                tide = [float(slot % 60 < 20) for slot in range(SLOTS)]
            slot = int(clock.now_s() // 300.0)
            state.lenders[name] = Lender(name, tide[-1], tide[-1], clock.now_s(), slot, list(tide))
        cell.forget()
        await cell.hear(fleet.loads(clock.now_s()), note("loads"))
        await cell.settle(costs["loads"])
        say("loads")
        # Jobs come within one second, between two cycles.
        cell.cycles.clear()
        await cell.hear(fleet.submissions(jobs, clock.now_s()), note("submissions"))
        say("submissions", cycles=len(cell.cycles))
        cell.cycles.clear()
        cell.plans_s.clear()
        await cell.go_on(clock.now_s() + 5.5, note("first_plan"))
        first = [list(map(lambda s: round(s, 3), one)) for one in cell.cycles[:3]]
        say("first_plan", cycles=first, plans=list(cell.plans_s), cut=service.asker.cut)
        await cell.settle(note("starts"))
        say("starts", running=len(fleet.gangs), cycles=len(cell.cycles), cut=service.asker.cut)
        spent = []
        for number in range(cycles):
            cell.cycles.clear()
            now_s = clock.now_s()
            said = fleet.loads(now_s) + fleet.work(now_s) + fleet.submissions(jobs // 1000, now_s)
            name = "settling" if number < 3 else "steady"
            cost = costs.setdefault(name, Cost())
            await cell.hear(said, cost)
            await cell.settle(cost)
            await cell.go_on((now_s // CYCLE_S + 1) * CYCLE_S + 1.0, cost)
            if number >= 3:
                spent += cell.cycles
            await cell.settle(cost)
            print(
                len(fleet.gangs),
                [tuple(round(s, 3) for s in c) for c in cell.cycles],
                file=sys.stderr,
            )
        of = np.array(spent)
        say(
            "steady",
            cycles=len(spent),
            cycle_p50_s=float(np.quantile(of[:, 0], 0.5)),
            cycle_p99_s=float(np.quantile(of[:, 0], 0.99)),
            plan_p50_s=float(np.quantile(of[:, 1], 0.5)),
            running=len(fleet.gangs),
            cut=service.asker.cut,
        )
        async with cell.watch.over(note("snapshot")):
            await service.snapshot()
        say("snapshot")
        said = fleet.work(clock.now_s() + CYCLE_S)
        await cell.hear(said, note("after"))
        before = service.engine.state.number
    # It is not said goodbye: the next one finds what a crash leaves.
    gc.collect()
    cell.plans_s.clear()
    async with cell.running(note("recovery")) as service:
        say("recovery", entries=service.recovered_entries)
        await cell.settle(costs["after"])
        for name, later_s in (("silence", 300.0), ("leases_end", 1500.0), ("edge", 900.0)):
            cell.cycles.clear()
            await cell.go_on(clock.now_s() + later_s, note(name))
            cell.forget()
            states = {}
            for node in service.engine.state.nodes.values():
                states[str(node.state)] = states.get(str(node.state), 0) + 1
            say(
                name,
                nodes=states,
                cut=service.asker.cut,
                cycles=[round(c[0], 3) for c in cell.cycles[:20]],
            )
    row["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await bus.close()
    return row


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="2500x12500,5000x25000,10000x50000")
    parser.add_argument("--bus", default="memory:")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cycles", type=int, default=13)
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--sources", type=int, nargs="*", default=[])
    parser.add_argument("--json")
    options = parser.parse_args()
    garbage.put_off()
    rows = []
    counts = [sources(count) for count in options.sources]
    print(counts, file=sys.stderr)
    for size in filter(None, options.sizes.split(",")):
        nodes, jobs = map(int, size.split("x"))
        rows.append(
            asyncio.run(
                measure(nodes, jobs, options.bus, options.seed, options.budget, options.cycles)
            )
        )
    if options.json:
        Path(options.json).write_text(json.dumps({**provenance(), "cells": rows, "sources": counts}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
