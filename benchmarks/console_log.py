"""The log of a large cell that goes on for long: what the console is measured on.

A real scheduler writes the beginning, in virtual time: all nodes join, all jobs come, as many as
fit begin, and some minutes of work pass (`benchmarks.gateway_cell`). From there on the running jobs
tell again how far they are, a step further each time, and owners what they need, by a tide: entries
that any scheduler would write, without a cycle of the policy in between, which would take hours.
"""

import asyncio
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import gateway_cell
from benchmarks.gateway import append
from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from scheduler.core.state import ClusterState
from scheduler.core.transitions import JobState
from scheduler.journal import recover
from schemas.journal import JournalEntry, chain, decode_entry
from schemas.parse import Rejected
from schemas.topics import JOURNAL

#: A running job tells how far it is so often, in seconds.
_TELLS_S = 900.0
#: An owner tells what it needs so often.
_LOAD_S = 60.0
_DAY_S = 86_400.0


def write(path: Path, nodes: int, jobs: int, entries: int, minutes: int) -> None:
    """Write the log of a cell of this size, until its journal has so many entries."""
    began_s = time.perf_counter()
    asyncio.run(gateway_cell.write(path, nodes, jobs, minutes))
    sys.stderr.write(f"the cell began, in {time.perf_counter() - began_s:.0f} s\n")
    append(path, _goes_on(path, entries))
    sys.stderr.write(f"its log is written, in {time.perf_counter() - began_s:.0f} s\n")


def _goes_on(path: Path, entries: int) -> Iterator[JournalEntry]:
    state, digest, told = asyncio.run(_begun(path))
    runs = {job.id for job in state.jobs.values() if job.state is JobState.RUNNING}
    jobs = [one for name, one in told.items() if name in runs]
    lenders = [one for name, one in told.items() if name in state.lenders]
    if not jobs:
        raise ValueError("no running job told how far it is; give the cell more minutes")
    apart_s, at_s = _TELLS_S / len(runs), state.now_s
    #: Of so many entries one is an owner's.
    between = max(2, round(_LOAD_S / apart_s / max(1, len(lenders))))
    for number in range(state.number, entries):
        at_s += apart_s
        turn, is_owner = divmod(number, between)
        if lenders and is_owner == 0:
            like = lenders[turn % len(lenders)]
            decision = _needs(like.decision, at_s)
        else:
            like = jobs[number % len(jobs)]
            decision = _further(like.decision, 1 + number // len(jobs))
        entry = chain(digest, number, at_s, like.stimulus, decision, policy=like.policy)
        digest = entry.digest
        yield entry


async def _begun(path: Path) -> tuple[ClusterState, str, dict[str, JournalEntry]]:
    """Give where the log ends, and by job or lender the newest entry that tells of it alone."""
    bus = SqliteBus.open_readonly(path, SystemClock())
    try:
        found = await recover(bus, "default")
        told: dict[str, JournalEntry] = {}
        async for record in bus.read(JOURNAL.name):
            value = record.value or b""
            if b'"JobAdvanced"' not in value and b'"LoadObserved"' not in value:
                continue
            entry = decode_entry(value)
            facts = [] if isinstance(entry, Rejected) else entry.decision["facts"]
            if isinstance(entry, Rejected) or len(facts) != 1:
                continue
            ((kind, fields),) = facts
            if kind in ("JobAdvanced", "LoadObserved"):
                told[fields["job" if kind == "JobAdvanced" else "lender"]] = entry
        return found.state, found.digest, told
    finally:
        await bus.close()


def _further(decision: dict[str, Any], steps: int) -> dict[str, Any]:
    ((kind, fields),) = decision["facts"]
    step = fields["step"] + steps
    return {**decision, "facts": [[kind, {**fields, "step": step, "checkpoint_step": step}]]}


def _needs(decision: dict[str, Any], at_s: float) -> dict[str, Any]:
    ((kind, fields),) = decision["facts"]
    tide = 1.0 + 0.4 * math.sin(2.0 * math.pi * at_s / _DAY_S)
    gpus = float(round(fields["gpus_needed"] * tide))
    return {**decision, "facts": [[kind, {**fields, "gpus_needed": gpus, "gpus_serving": gpus}]]}
