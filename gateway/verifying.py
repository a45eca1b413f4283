"""Deciding the log again beside the gateway, once somebody asks: is every decision as recorded?

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
from gateway import children
from gateway.assignment import Bounds, Task, Tell
from gateway.feed import Feed
from gateway.past import guarded
from gateway.work import Journal
from scheduler.core.restore import state_from_dict
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader
from scheduler.replay import Difference, Replay, stimuli

#: Below all else that the gateway has done for it.
_NICE = 15
#: So many entries are decided before it is told.
_STRETCH = 250
#: How often it is looked for new ones, in seconds, and how seldom where nothing comes.
_LOOK_S, _LOOK_MOST_S = 0.5, 8.0
#: One that came to nothing is begun again if it is asked for so many seconds later: perhaps its
#: process was only killed.
_AGAIN_S = 300.0


@dataclass(slots=True)
class _Proof:
    """How far a cell's log is decided again."""

    generation: int
    first: int
    level: bool = False  #: Whether all was decided again that there was, at least once.
    entries: int = 0
    difference: str | None = None
    problem: str | None = None
    failed_s: float = 0.0  #: When, by the loop's clock.
    task: asyncio.Task[None] | None = None

    def told(self, said: dict[str, Any]) -> None:
        self.entries = max(self.entries, int(said["entries"]))
        self.difference = said.get("difference")
        self.level |= said.get("level", False)


class Verifying:
    """The proofs of a gateway's cells."""

    def __init__(self, opening: Callable[[str], Bus]) -> None:
        """Begin with none; `opening` opens a cell of the log, in another process, too."""
        self._opening = opening
        self._proofs: dict[str, _Proof] = {}
        self.again_s = _AGAIN_S

    def said(self, feed: Feed) -> dict[str, Any]:
        """Say how far the proof of a cell is; the first time, or of another log, it begins."""
        proof = self._proofs.get(feed.cell)
        if proof is not None and proof.generation != feed.generation and proof.task is not None:
            proof.task.cancel()
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
            state = "identical" if proof.level else "running"
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
        tasks = [proof.task for proof in self._proofs.values() if proof.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _prove(self, feed: Feed, proof: _Proof) -> None:
        async def find() -> Journal:
            mark = feed.index.mark_before(proof.first) if proof.first else None
            return Journal(self._opening, feed.cell, feed.origin_s, mark)

        try:
            journal = await guarded(feed, find)
            task = Task(verified, (journal,), Bounds(nice=_NICE))
            await children.work(task, proof.told)
        except children.Failed as failed:
            proof.problem = str(failed)
            proof.failed_s = asyncio.get_running_loop().time()
        except Exception as error:  # noqa: BLE001 - said where it is asked for
            proof.problem = f"it could not begin: {error}"
            proof.failed_s = asyncio.get_running_loop().time()


def verified(journal: Journal, tell: Tell) -> None:
    """Decide a journal again, and what comes to it, until a decision differs; a process's work.

    Raises:
        Unreadable: the journal is damaged, or of a newer release.
    """
    begun, mark = journal.begun, journal.mark
    state = ClusterState(cell=journal.cell)
    reader, offset = JournalReader(journal.cell), 0
    if begun is not None and mark is not None:
        state = state_from_dict(orjson.loads(begun.state))
        reader, offset = JournalReader(journal.cell, state.number, begun.digest), mark.place.offset
    replay, first, wait_s = Replay(state), state.number, _LOOK_S
    while True:
        left, news = journal.records(offset), False
        while batch := [*islice(left, _STRETCH)]:
            offset, news = batch[-1].offset + 1, True
            found = [entry for one in batch if (entry := reader.read(one)) is not None]
            for entry, stimulus in stimuli(found):
                if (difference := replay.decide(entry, stimulus)) is not None:
                    tell({"entries": entry.number - first, "difference": in_words(difference)})
                    return
            tell({"entries": reader.number - first})
        tell({"entries": reader.number - first, "level": True})
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
