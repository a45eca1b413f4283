"""Branches that people ask the gateway for, and forecasts of jobs; kept for a while, never stored.

All of it ends with the gateway. Who may see a branch is who asked for it, and who sees everything.
"""

import asyncio
import contextlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bus.contract import Bus
from gateway import work
from gateway.assignment import Assignment, ProcessLimits
from gateway.branch_folder import BranchFolder
from gateway.feed import Feed
from gateway.models_branches import BranchBody, ChangeBody
from gateway.past import Moment, guarded
from gateway.problems import Problem, later, used_before
from gateway.subjects import Sight, Subject
from gateway.work import BranchSpec, Journal
from gateway.workshop import Computation, ComputationQueue
from scheduler.core.state import ClusterState
from scheduler.core.transitions import TERMINAL
from schemas.requests import ReadLog, SubmitJob
from simulator.branch.change import Change
from simulator.branch.origin import BranchError

#: What a branch is called where it is asked for as a cell, with its id.
BRANCH = "branch-"
#: Branches that are kept, and forecasts; of more, the oldest that is over goes.
KEPT_MOST = 20
FORECASTS_MOST = 50
#: Seconds of a processor for each run.
CPU_S = 60
#: A process reads at least so many entries before the one that it branches at: how agents work is
#: measured on them.
_LEARNS_FROM = 20_000
#: A forecast of now is as good as one of the newest entry for so long, in seconds.
_FRESH_S = 60.0


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


@dataclass(slots=True)
class Forecast:
    """A forecast of all jobs of a state."""

    entry: int
    now_s: float
    runs: int
    #: Jobs that had not ended, and whether they had GPUs.
    jobs: dict[str, bool]
    computation: Computation
    asked_s: float  #: By the clock of the gateway.

    def of(self, job: str) -> dict[str, Any]:
        """Say of a job when it starts and ends."""
        starts, ends = (self._range(name, job) for name in ("starts", "ends"))
        return {
            "entry": self.entry,
            "now_s": self.now_s,
            "starts": None if self.jobs[job] else starts,
            "ends": ends,
            "took_s": self.computation.took_s,
        }

    def _range(self, name: str, job: str) -> dict[str, Any]:
        least_s, most_s, none = self.computation.result[name].get(job, (None, None, self.runs))
        return {"least_s": least_s, "most_s": most_s, "none": none}

    def answers(self, moment: Moment, job: str, now_s: float) -> bool:
        """Whether it answers a question of a moment: of now, it may be a little old."""
        if self.computation.state in ("failed", "ended") and self.asked_s < now_s - _FRESH_S:
            return False  # perhaps it goes better now
        if self.entry == moment.entry:
            return True
        fresh = not self.computation.is_over or self.asked_s > now_s - _FRESH_S
        return not moment.pinned and fresh and job in self.jobs


class Branches:
    """The branches and forecasts of a gateway."""

    def __init__(self, open_cell: Callable[[str], Bus], at_once: int | None = None) -> None:
        """Begin with none; `open_cell` opens a cell of the log, in another process, too."""
        self._open_cell = open_cell
        self._queue = ComputationQueue(at_once)
        #: So long an answer waits for a forecast, in seconds: most small cells need no more.
        self.patience_s = 1.0
        self._kept: OrderedDict[str, KeptBranch] = OrderedDict()
        self._forecasts: OrderedDict[tuple[Any, ...], Forecast] = OrderedDict()
        self._folder: BranchFolder | None = None
        #: Told the name of each branch that is forgotten, as a cell.
        self.forgotten: Callable[[str], None] = lambda _: None

    async def close(self) -> None:
        """End all computations, and forget all."""
        await self._queue.close()
        self._kept.clear()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)

    # --- branches ---------------------------------------------------------------------------

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
            work.run_branch, (journal, spec), ProcessLimits(cpu_s=CPU_S * body.runs)
        )
        computation = self._queue.put(Computation(who.name, assignment))
        replays = feed.index.first == 0
        kept = KeptBranch(name, feed, generation, entry, who.name, asked, now_s, journal,
                          computation, folder, replays, key)  # fmt: skip
        self._kept[name] = kept
        while len(self._kept) > KEPT_MOST and (oldest := self._oldest()):
            self._forget(oldest)
        return kept

    def _oldest(self) -> KeptBranch | None:
        return next((one for one in self._kept.values() if one.computation.is_over), None)

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
            if not self._is_kept(kept):
                _remove_files(kept)
        return kept.log

    async def _make_log(self, kept: KeptBranch, who: Subject) -> None:
        draft = kept.log.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        journal = Journal(self._open_cell, kept.cell, kept.journal.origin_s)
        assignment = Assignment(
            work.save_branch, (journal, kept.entry, kept.tail, draft), ProcessLimits()
        )
        saving = self._queue.put(Computation(f"log of {who.name}", assignment))
        await saving.over()
        if saving.state != "done":
            raise Problem(503, f"its log could not be made: {saving.problem}",
                          headers={"Retry-After": "2"})  # fmt: skip
        draft.replace(kept.log)

    def _is_kept(self, kept: KeptBranch) -> bool:
        return self._kept.get(kept.id) is kept

    def _forget(self, kept: KeptBranch) -> None:
        del self._kept[kept.id]
        self.forgotten(f"{BRANCH}{kept.id}")
        if not kept.saving.locked():  # else whoever makes its log does, once no process needs them
            _remove_files(kept)

    # --- forecasts --------------------------------------------------------------------------

    async def forecast(
        self, feed: Feed, who: Subject, moment: Moment, job: str, hours: float, runs: int,
        now_s: float,
    ) -> Forecast:  # fmt: skip
        """Give a forecast of all jobs of a moment, which may still be under way.

        Raises:
            Problem: 429, who asks has as many computations as it may.
        """
        of = (feed.cell, feed.generation, hours, runs)
        for key, found in reversed(self._forecasts.items()):
            if key[:-1] == of and found.answers(moment, job, now_s):
                return found
        state, entry = moment.state, moment.state.number - 1
        jobs = {
            one.id: bool(one.allocation) for one in state.jobs.values() if one.state not in TERMINAL
        }
        state_s = state.now_s
        journal = await self._journal(feed, entry)
        assignment = Assignment(
            work.run_forecast, (journal, entry, hours, runs), ProcessLimits(cpu_s=CPU_S * runs)
        )
        computation = self._queue.put(Computation(who.name, assignment))
        made = Forecast(entry, state_s, runs, jobs, computation, now_s)
        self._forecasts.pop((*of, entry), None)
        self._forecasts[*of, entry] = made
        while len(self._forecasts) > FORECASTS_MOST:
            over = [key for key, one in self._forecasts.items() if one.computation.is_over]
            if not over:
                break
            del self._forecasts[over[0]]
        return made

    # --- both -------------------------------------------------------------------------------

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
            field_ = f"change.requests[{number}]"
            raise Problem(422, f"{field_}: {verb.verb} is not for a branch; name another verb, or "
                          "add jobs by change.jobs", parameter=field_)  # fmt: skip
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
        raise nobody_leads()
    try:
        change.check(state)
    except BranchError as error:
        name = work.field_of(error)
        raise Problem(422, f"{name}: {error.reason}", parameter=name) from error


def nobody_leads() -> Problem:
    """Refuse an entry from which nobody could decide anything."""
    return Problem(
        409,
        "nobody leads the cell at this entry yet, so that nothing can be decided from there on; "
        "name a later one",
        parameter="entry",
    )
