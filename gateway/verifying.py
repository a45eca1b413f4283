"""Replays the log in a process of its own, once somebody asks: is every decision as recorded?

`tidegate replay` does the same, and holds the log's snapshots against the states as well.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from bus.contract import Bus
from gateway import processes
from gateway.assignment import Assignment, ProcessLimits, Report
from gateway.branch_runs import Journal
from gateway.feed import Feed
from gateway.past import guarded
from scheduler.core.restore import state_from_dict
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader
from scheduler.replay import Difference, Replay, stimuli

#: Of the process: below all others that the gateway starts.
_NICE = 15
#: Progress is reported after so many entries.
_STRETCH = 250
#: Seconds between looks for new entries, and the most where none come.
_LOOK_S, _LOOK_MOST_S = 0.5, 8.0
#: After a failure the next question begins it again, so many seconds later: perhaps its process was
#: only killed.
_AGAIN_S = 300.0


@dataclass(slots=True)
class _Proof:
    """How far a cell's log is replayed."""

    generation: int
    first: int
    caught_up: bool = False  #: Whether it has replayed all that there was, at least once.
    entries: int = 0
    difference: str | None = None
    problem: str | None = None
    failed_s: float = 0.0  #: When, by the loop's clock.
    task: asyncio.Task[None] | None = None

    def on_report(self, said: dict[str, Any]) -> None:
        self.entries = max(self.entries, int(said["entries"]))
        self.difference = said.get("difference")
        self.caught_up |= said.get("caught_up", False)


class Verifying:
    """The proofs of a gateway's cells."""

    def __init__(self, open_cell: Callable[[str], Bus]) -> None:
        """Begin with none; `open_cell` opens a cell of the log, in another process, too."""
        self._open_cell = open_cell
        self._proofs: dict[str, _Proof] = {}
        self._ending: set[asyncio.Task[None]] = set()  #: Proofs that were told to end.
        self.again_s = _AGAIN_S

    def said(self, feed: Feed) -> dict[str, Any]:
        """Say how far the proof of a cell is; the first time, or of another log, it begins."""
        proof = self._proofs.get(feed.cell)
        if proof is not None and proof.generation != feed.generation and proof.task is not None:
            self._end(proof.task)
            proof = None
        if proof is not None and proof.problem is not None:
            if asyncio.get_running_loop().time() >= proof.failed_s + self.again_s:
                proof = None
        if proof is None:
            proof = self._proofs[feed.cell] = _Proof(feed.generation, feed.index.first)
            proof.task = asyncio.create_task(self._prove(feed, proof))
            state = "none"
        elif proof.problem is not None:
            state = "failed"
        elif proof.difference is not None:
            state = "differs"
        else:
            state = "identical" if proof.caught_up else "running"
        return {
            "cell": feed.cell,
            "state": state,
            "entries": proof.entries,
            "of": max(feed.entries - proof.first, proof.entries),
            "first": proof.first,
            "first_difference": proof.difference,
            "problem": proof.problem,
        }

    async def close(self) -> None:
        """End what goes on."""
        for proof in self._proofs.values():
            if proof.task is not None:
                self._end(proof.task)
        if self._ending:
            await asyncio.wait([*self._ending])

    def _end(self, task: asyncio.Task[None]) -> None:
        """Have a proof end, with its process, which `close` waits for."""
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    async def _prove(self, feed: Feed, proof: _Proof) -> None:
        async def find() -> Journal:
            mark = feed.index.mark_before(proof.first) if proof.first else None
            return Journal(self._open_cell, feed.cell, feed.origin_s, mark)

        try:
            journal = await guarded(feed, find)
            assignment = Assignment(verify_journal, (journal,), ProcessLimits(nice=_NICE))
            await processes.run(assignment, proof.on_report)
        except processes.ProcessFailed as failed:
            proof.problem = str(failed)
            proof.failed_s = asyncio.get_running_loop().time()
        except Exception as error:  # noqa: BLE001 - said where it is asked for
            proof.problem = f"it could not begin: {error}"
            proof.failed_s = asyncio.get_running_loop().time()


def verify_journal(journal: Journal, report: Report) -> None:
    """Replay a journal, and what comes to it, until a decision differs; run in its own process.

    Raises:
        Unreadable: the journal is damaged, or of a newer release.
    """
    start, mark = journal.start, journal.mark
    state = ClusterState(cell=journal.cell)
    reader, offset = JournalReader(journal.cell), 0
    if start is not None and mark is not None:
        state = state_from_dict(orjson.loads(start.state))
        reader, offset = JournalReader(journal.cell, state.number, start.digest), mark.place.offset
    replay, first, wait_s = Replay(state), state.number, _LOOK_S
    while True:
        left, news = journal.records(offset), False
        while batch := [*islice(left, _STRETCH)]:
            offset, news = batch[-1].offset + 1, True
            found = [entry for one in batch if (entry := reader.read(one)) is not None]
            for entry, stimulus in stimuli(found):
                if (difference := replay.decide(entry, stimulus)) is not None:
                    report({"entries": entry.number - first, "difference": in_words(difference)})
                    return
            report({"entries": reader.number - first})
        report({"entries": reader.number - first, "caught_up": True})
        wait_s = _LOOK_S if news else min(2.0 * wait_s, _LOOK_MOST_S)
        time.sleep(wait_s)


def in_words(difference: Difference) -> str:
    """Say where a decision differs, and in what; of nobody's job or tenant."""
    where = f"entry {difference.number}, on {difference.stimulus['kind']}"
    if "error" in difference.replayed:
        return f"{where}: deciding it again failed"
    parts = []
    for name in ("facts", "commands", "reasons"):
        before, after = (side.get(name, []) for side in (difference.recorded, difference.replayed))
        if before != after:
            parts.append(f"{name} ({len(before)} recorded, {len(after)} decided again)")
    return f"{where}: other {', '.join(parts) or 'fields'}; `tidegate replay` shows both"
