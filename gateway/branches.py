"""Branches that people ask the gateway for; kept for a while, never stored.

All of it ends with the gateway. Who may see a branch is who asked for it, and who sees everything.
"""

import asyncio
import contextlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.contract import Bus
from gateway import branch_runs
from gateway.assignment import Assignment, ProcessLimits
from gateway.branch_folder import BranchFolder
from gateway.branch_runs import BranchSpec, Journal
from gateway.computation_queue import Computation, ComputationQueue
from gateway.feed import Feed
from gateway.forecasts import CPU_S, Forecasts
from gateway.models_branches import BranchBody, ChangeBody
from gateway.past import guarded
from gateway.problems import Problem, later, used_before, wrong_field
from gateway.subjects import Sight, Subject
from scheduler.core.state import ClusterState
from schemas.requests import ReadLog, SubmitJob
from simulator.branch.change import Change
from simulator.branch.origin import BranchError

#: What a branch is called where it is asked for as a cell, with its id.
BRANCH = "branch-"
#: Branches that are kept; of more, the oldest that is over goes, of whom most are kept.
KEPT_MOST = 20
#: A process reads at least so many entries before the one that it branches at: how agents work is
#: measured on them.
_LEARNS_FROM = 20_000


@dataclass(slots=True)
class KeptBranch:
    """A branch that somebody asked for."""

    id: str
    feed: Feed
    generation: int  #: Of the feed, when it was asked for.
    entry: int
    by: str
    asked: BranchBody
    asked_s: float
    journal: Journal
    computation: Computation
    folder: Path
    #: Whether the log begins where the cell does, so that the branch as a log replays.
    replays: bool
    key: str | None = None  #: By which whoever asked for it may ask for it again.
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def cell(self) -> str:
        """The cell that it is of."""
        return self.feed.cell

    @property
    def owner(self) -> str:
        """Whose it is: a tenant's, or that of somebody who is of none."""
        tenant = self.computation.tenant
        return f"of {tenant}" if tenant is not None else f"by {self.by}"

    @property
    def tail(self) -> Path:
        """The file of its own entries."""
        return self.folder / f"{self.id}.tail"

    @property
    def log(self) -> Path:
        """The file of the branch as a log, once somebody wanted it."""
        return self.folder / f"{self.id}.db"

    def document(self, *, whole: bool) -> dict[str, Any]:
        """Give it as it is answered; with what came of it if `whole`."""
        return {
            "branch": self.id,
            "cell": self.cell,
            "state": self.computation.state,
            "done": self.computation.done,
            "problem": self.computation.problem,
            "asked": self.asked.model_dump(mode="json"),
            "asked_by": self.by,
            "asked_s": self.asked_s,
            "result": self.computation.result if whole else None,
        }


class Branches:
    """The branches of a gateway, and its forecasts, which are computed in turn with them."""

    def __init__(self, open_cell: Callable[[str], Bus], at_once: int | None = None) -> None:
        """Begin with none; `open_cell` opens a cell of the log, in another process, too."""
        self._open_cell = open_cell
        self._queue = ComputationQueue(at_once)
        self.forecasts = Forecasts(self._queue, self._journal)
        self._kept: OrderedDict[str, KeptBranch] = OrderedDict()
        self._folder: BranchFolder | None = None
        #: Told the name of each branch that is forgotten, as a cell.
        self.forgotten: Callable[[str], None] = lambda _: None

    async def close(self) -> None:
        """End all computations, and forget all."""
        await self._queue.close()
        self._kept.clear()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)

    def begun(
        self, feed: Feed, who: Subject, body: BranchBody, key: str | None
    ) -> KeptBranch | None:
        """Give the branch that somebody asked for with a key before; None: there is none.

        Raises:
            Problem: 422, it is another one than is asked for now.
        """
        for kept in self._kept.values():
            if key is None or (kept.key, kept.by) != (key, who.name):
                continue
            entry = kept.entry if body.entry is None else body.entry
            if kept.cell != feed.cell or kept.asked != body.model_copy(update={"entry": entry}):
                raise used_before(key, "branch")
            return kept
        return None

    async def ask(
        self, feed: Feed, who: Subject, body: BranchBody, entry: int, now_s: float,
        key: str | None = None,
    ) -> KeptBranch:  # fmt: skip
        """Begin a branch that goes on after an entry, once its turn comes; once for each key.

        Raises:
            Problem: 429, who asks has as many as it may, or all places are taken; 422, the key was
                used for another.
        """
        asked = body.model_copy(update={"entry": entry})
        if len(self._kept) >= KEPT_MOST and not self._oldest():
            raise later(
                f"{KEPT_MOST} branches wait or run already; ask again once one is done", 5.0, 429
            )
        if self._folder is None:
            made = await asyncio.to_thread(BranchFolder)
            if self._folder is None:
                self._folder = made
            else:  # somebody else asked meanwhile
                made.remove()
        name, folder, generation = secrets.token_hex(4), self._folder.path, feed.generation
        journal = await self._journal(feed, entry)
        if (begun := self.begun(feed, who, body, key)) is not None:
            return begun  # asked for meanwhile
        change, tail = change_of(body.change), folder / f"{name}.tail"
        spec = BranchSpec(entry, body.hours, body.runs, change, feed.log.name, tail)
        assignment = Assignment(
            branch_runs.run_branch, (journal, spec), ProcessLimits(cpu_s=CPU_S * body.runs)
        )
        computation = self._queue.put(Computation(who.name, assignment, tenant=who.tenant))
        replays = feed.index.first == 0
        kept = KeptBranch(name, feed, generation, entry, who.name, asked, now_s, journal,
                          computation, folder, replays, key)  # fmt: skip
        self._kept[name] = kept
        while len(self._kept) > KEPT_MOST and (oldest := self._oldest()):
            self._forget(oldest)
        return kept

    def _oldest(self) -> KeptBranch | None:
        """Give the oldest that is over, of whom most are kept: nobody's go for who asks much."""
        over = [one for one in self._kept.values() if one.computation.is_over]
        kept = Counter(one.owner for one in self._kept.values())
        # Of equal ones, the first.
        return max(over, key=lambda one: kept[one.owner], default=None)

    def seen(self, who: Subject) -> list[KeptBranch]:
        """List the branches that somebody may see, newest first."""
        return [one for one in reversed(self._kept.values()) if _may_see(who, one)]

    def one(self, who: Subject, name: str, parameter: str = "branch_id") -> KeptBranch:
        """Give a branch.

        Raises:
            Problem: 404, there is none that who asks may see.
        """
        found = self._kept.get(name)
        if found is None or not _may_see(who, found):
            raise Problem(
                404,
                f"there is no branch {name[:64]!r}; the gateway keeps {KEPT_MOST}, until it ends: "
                "GET /api/v1/branches lists yours",
                parameter=parameter,
            )
        return found

    def end(self, kept: KeptBranch) -> None:
        """End a branch that waits or runs; forget one that is over."""
        if kept.computation.is_over:
            self._forget(kept)
        else:
            self._queue.end(kept.computation)

    async def log(self, kept: KeptBranch, who: Subject) -> Path:
        """Give a branch as a log that replays, which is made when it is first wanted.

        Raises:
            Problem: it is not done, it is forgotten meanwhile, or its log cannot be made.
        """
        if kept.computation.state != "done":
            raise Problem(
                409, f"the branch is {kept.computation.state}; its log is there once it is done"
            )
        if not kept.replays:
            raise Problem(409, "the log that was branched has lost its beginning, so that nothing "
                          "that goes on from it can be replayed")  # fmt: skip
        if kept.feed.generation != kept.generation and not kept.log.exists():
            raise Problem(409, "the log that was branched is another one now, so that its entries "
                          "before the branch are gone")  # fmt: skip
        try:
            async with kept.saving:
                self.one(who, kept.id)  # it may be forgotten while its log waits, or is made
                if not kept.log.exists():
                    await self._make_log(kept, who)
                self.one(who, kept.id)
        finally:
            if self._kept.get(kept.id) is not kept:
                _remove_files(kept)
        return kept.log

    async def _make_log(self, kept: KeptBranch, who: Subject) -> None:
        draft = kept.log.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        journal = Journal(self._open_cell, kept.cell, kept.journal.origin_s)
        assignment = Assignment(
            branch_runs.save_branch, (journal, kept.entry, kept.tail, draft), ProcessLimits()
        )
        saving = self._queue.put(Computation(f"log of {who.name}", assignment))
        await saving.over()
        if saving.state != "done":
            raise Problem(503, f"its log could not be made: {saving.problem}",
                          headers={"Retry-After": "2"})  # fmt: skip
        draft.replace(kept.log)

    def _forget(self, kept: KeptBranch) -> None:
        del self._kept[kept.id]
        self.forgotten(f"{BRANCH}{kept.id}")
        if not kept.saving.locked():  # else whoever makes its log does, once no process needs them
            _remove_files(kept)

    async def _journal(self, feed: Feed, entry: int) -> Journal:
        """Say where in the journal a process begins to read that is to branch at an entry."""

        async def find() -> Journal:
            index = feed.index
            mark = index.mark_before(entry + 1 - _LEARNS_FROM)
            if mark is None and index.first:
                mark = index.mark_before(index.first)
            return Journal(self._open_cell, feed.cell, feed.origin_s, mark)

        return await guarded(feed, find)


def _remove_files(kept: KeptBranch) -> None:
    for path in kept.folder.glob(f"{kept.id}.*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _may_see(who: Subject, kept: KeptBranch) -> bool:
    # Who may not begin one any more does not see what it tells of others' jobs either.
    mine = who.name == kept.by and who.sight is not Sight.OWN_NAMES
    return mine or who.sight is Sight.EVERYTHING


def change_of(body: ChangeBody) -> Change:
    """Give the change that is asked for.

    Raises:
        Problem: 422, a request of it is not for a branch.
    """
    for number, verb in enumerate(body.requests):
        if isinstance(verb, (SubmitJob, ReadLog)):
            reason = "is not for a branch; name another verb, or add jobs by change.jobs"
            raise wrong_field(f"change.requests[{number}]", f"{verb.verb} {reason}")
    return Change(
        policy=body.policy,
        settings=body.settings,
        add=tuple(body.add_nodes.items()),
        lose=tuple(body.lose),
        demand=body.demand,
        requests=tuple(body.requests),
        jobs=tuple((one.like, one.count) for one in body.jobs),
    )


def check(change: Change, state: ClusterState) -> None:
    """Refuse what cannot be at a state.

    Raises:
        Problem: 409, nobody leads yet; 422, and which field is wrong.
    """
    if not state.leader.policy:
        raise before_any_leader()
    try:
        change.check(state)
    except BranchError as error:
        raise wrong_field(branch_runs.field_of(error), error.reason) from error


def before_any_leader() -> Problem:
    """Refuse an entry from which nobody could decide anything."""
    return Problem(
        409,
        "nobody leads the cell at this entry yet, so that nothing can be decided from there on; "
        "name a later one",
        parameter="entry",
    )
