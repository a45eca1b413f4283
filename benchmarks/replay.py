"""How fast a recorded log is decided again, and folded to restart, in CPU time; where it goes."""

import asyncio
import tempfile
import time
from pathlib import Path

from bus.contract import Record
from bus.reading import open_log
from demo.claim import Run, claim
from demo.play import play
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader, fold
from scheduler.policies.interface import Plan, Policy, Snapshot
from scheduler.policies.registry import make_policy
from scheduler.replay import verify
from schemas.topics import JOURNAL

_HOURS = 12.0


class _Timed:
    """A policy that keeps the time spent in it."""

    spent_s = 0.0

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def name(self) -> str:
        return self._policy.name

    def plan(self, snapshot: Snapshot) -> Plan:
        began_s = time.process_time()
        plan = self._policy.plan(snapshot)
        _Timed.spent_s += time.process_time() - began_s
        return plan


def journal(folder: Path, policy: str) -> list[Record]:
    """Run half a simulated day as fast as it goes; give its journal."""
    run = Run(_HOURS, 7, policy, None, None, 1e-3)
    path = folder / f"{policy}.db"
    with claim(path, run):
        asyncio.run(play(path, run, run.scenario(), 0.0, live=False))
    with open_log(path) as log:
        return list(log.records(JOURNAL.name))


def _fold(records: list[Record]) -> float:
    """Fold the journal as a restart does: its facts, without deciding again."""
    began_s = time.process_time()
    reader, state = JournalReader(), ClusterState()
    for record in records:
        entry = reader.read(record)
        if entry is not None:
            fold(state, entry)
    return len(records) / (time.process_time() - began_s)


def run(seconds: float) -> dict[str, float]:
    """Measure the replay of a demo's log: in all, and outside the policy."""
    del seconds  # one run of the log is the measure
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for policy in ("tide", "fifo"):
            records = journal(Path(folder), policy)
            _Timed.spent_s = 0.0
            began_s = time.process_time()
            result = verify(records, policies=lambda name: _Timed(make_policy(name)))
            spent_s = time.process_time() - began_s
            if not result.identical:
                raise RuntimeError(f"the replay of {policy} was not identical")
            if policy == "tide":
                figures["restart_entries_folded_per_s"] = _fold(records)
            name = "replay" if policy == "tide" else f"replay_{policy}"
            figures[f"{name}_stimuli_per_s"] = result.decisions / spent_s
            figures[f"{name}_stimuli_per_s_without_policy"] = result.decisions / (
                spent_s - _Timed.spent_s
            )
            figures[f"{name}_policy_share"] = _Timed.spent_s / spent_s
    return figures
