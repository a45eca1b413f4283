"""Branches that people ask the gateway for, and forecasts of jobs: kept for a while, never stored.

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
from gateway.assignment import Bounds, Task
from gateway.branch_folder import BranchFolder
from gateway.feed import Feed
from gateway.models_branches import BranchBody, ChangeBody
from gateway.past import Moment, guarded
from gateway.problems import Problem, later
from gateway.subjects import Sight, Subject
from gateway.work import Journal, Wanted
from gateway.workshop import Work, Workshop
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
class Kept:
    """A branch that somebody asked for."""

    id: str
    feed: Feed
    generation: int  #: Of the feed, when it was asked for.
    entry: int
    by: str
    asked: BranchBody
    asked_s: float
    journal: Journal
    work: Work
    folder: Path
    whole: bool  #: Whether the log begins where the cell does, so that a branch of it replays.
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def cell(self) -> str:
        """The cell that it is of."""
        return self.feed.cell

    @property
    def tail(self) -> Path:
        """Its own entries."""
        return self.folder / f"{self.id}.tail"

    @property
    def log(self) -> Path:
        """It as a log, once somebody wanted it."""
        return self.folder / f"{self.id}.db"

    def document(self, *, whole: bool) -> dict[str, Any]:
        """Give it as it is answered; with what came of it if `whole`."""
        return {
            "branch": self.id,
            "cell": self.cell,
            "state": self.work.state,
            "done": self.work.done,
            "problem": self.work.problem,
            "asked": self.asked.model_dump(mode="json"),
            "asked_by": self.by,
            "asked_s": self.asked_s,
            "result": self.work.result if whole else None,
        }


@dataclass(slots=True)
class Foretold:
    """A forecast of all jobs of a state."""

    entry: int
    now_s: float
    runs: int
    #: Jobs that had not ended, and whether they had GPUs.
    jobs: dict[str, bool]
    work: Work
    asked_s: float  #: By the clock of the gateway.

    def of(self, job: str) -> dict[str, Any]:
        """Say of a job when it starts and ends."""
        starts, ends = (self._range(name, job) for name in ("starts", "ends"))
        return {
            "entry": self.entry,
            "now_s": self.now_s,
            "starts": None if self.jobs[job] else starts,
            "ends": ends,
            "took_s": self.work.took_s,
        }

    def _range(self, name: str, job: str) -> dict[str, Any]:
        least_s, most_s, none = self.work.result[name].get(job, (None, None, self.runs))
        return {"least_s": least_s, "most_s": most_s, "none": none}

    def answers(self, moment: Moment, job: str, now_s: float) -> bool:
        """Whether it answers a question of a moment: of now, it may be a little old."""
        if self.work.state in ("failed", "ended") and self.asked_s < now_s - _FRESH_S:
            return False  # perhaps it goes better now
        if self.entry == moment.entry:
            return True
        fresh = not self.work.is_over or self.asked_s > now_s - _FRESH_S
        return not moment.pinned and fresh and job in self.jobs


class Branches:
    """The branches and forecasts of a gateway."""

    def __init__(self, opening: Callable[[str], Bus], at_once: int | None = None) -> None:
        """Begin with none; `opening` opens a cell of the log, in another process, too."""
        self._opening = opening
        self._shop = Workshop(at_once)
        #: So long an answer waits for a forecast, in seconds: most small cells need no more.
        self.patience_s = 1.0
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._foretold: OrderedDict[tuple[Any, ...], Foretold] = OrderedDict()
        self._folder: BranchFolder | None = None
        #: Told the name of each branch that is forgotten, as a cell.
        self.forgotten: Callable[[str], None] = lambda _: None

    async def close(self) -> None:
        """End all works, and forget all."""
        await self._shop.close()
        self._kept.clear()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)

    # --- branches ---------------------------------------------------------------------------

    async def ask(
        self, feed: Feed, who: Subject, body: BranchBody, entry: int, now_s: float
    ) -> Kept:
        """Take on a branch that goes on after an entry.

        Raises:
            Problem: 429, who asks has as many as it may, or all places are taken.
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
        change, tail = change_of(body.change), folder / f"{name}.tail"
        wanted = Wanted(entry, body.hours, body.runs, change, feed.log.name, tail)
        task = Task(work.branched, (journal, wanted), Bounds(cpu_s=CPU_S * body.runs))
        begun = self._shop.put(Work(who.name, task))
        whole = feed.index.first == 0
        kept = Kept(
            name, feed, generation, entry, who.name, asked, now_s, journal, begun, folder, whole
        )
        self._kept[name] = kept
        while len(self._kept) > KEPT_MOST and (oldest := self._oldest()):
            self._forget(oldest)
        return kept

    def _oldest(self) -> Kept | None:
        return next((one for one in self._kept.values() if one.work.is_over), None)

    def seen(self, who: Subject) -> list[Kept]:
        """List the branches that somebody may see, newest first."""
        return [one for one in reversed(self._kept.values()) if _sees(who, one)]

    def one(self, who: Subject, name: str, parameter: str = "branch_id") -> Kept:
        """Give a branch.

        Raises:
            Problem: 404, there is none that who asks may see.
        """
        found = self._kept.get(name)
        if found is None or not _sees(who, found):
            raise Problem(
                404,
                f"there is no branch {name[:64]!r}; the gateway keeps {KEPT_MOST}, until it ends: "
                "GET /api/v1/branches lists yours",
                parameter=parameter,
            )
        return found

    def end(self, kept: Kept) -> None:
        """End a branch that waits or runs; forget one that is over."""
        if kept.work.is_over:
            self._forget(kept)
        else:
            self._shop.end(kept.work)

    async def log(self, kept: Kept, who: Subject) -> Path:
        """Give a branch as a log that replays, which is made when it is first wanted.

        Raises:
            Problem: it is not done, or it cannot be made.
        """
        if kept.work.state != "done":
            raise Problem(409, f"the branch is {kept.work.state}; its log is there once it is done")
        if not kept.whole:
            raise Problem(409, "the log that was branched has lost its beginning, so that nothing "
                          "that goes on from it can be replayed")  # fmt: skip
        if kept.feed.generation != kept.generation and not kept.log.exists():
            raise Problem(409, "the log that was branched is another one now, so that its entries "
                          "before the branch are gone")  # fmt: skip
        async with kept.saving:
            if not kept.log.exists():
                draft = kept.log.with_suffix(".draft")
                draft.unlink(missing_ok=True)
                journal = Journal(self._opening, kept.cell, kept.journal.origin_s)
                task = Task(work.saved, (journal, kept.entry, kept.tail, draft), Bounds())
                saving = self._shop.put(Work(f"log of {who.name}", task))
                await saving.over()
                if saving.state != "done":
                    raise Problem(503, f"its log could not be made: {saving.problem}",
                                  headers={"Retry-After": "2"})  # fmt: skip
                draft.replace(kept.log)
        return kept.log

    def _forget(self, kept: Kept) -> None:
        del self._kept[kept.id]
        self.forgotten(f"{BRANCH}{kept.id}")
        for path in (kept.tail, kept.log):
            with contextlib.suppress(OSError):
                path.unlink()

    # --- forecasts --------------------------------------------------------------------------

    async def foretold(
        self, feed: Feed, who: Subject, moment: Moment, job: str, hours: float, runs: int,
        now_s: float,
    ) -> Foretold:  # fmt: skip
        """Give a forecast of all jobs of a moment, which may be under way.

        Raises:
            Problem: 429, who asks has as many works as it may.
        """
        of = (feed.cell, feed.generation, hours, runs)
        for key, found in reversed(self._foretold.items()):
            if key[:-1] == of and found.answers(moment, job, now_s):
                return found
        state, entry = moment.state, moment.state.number - 1
        jobs = {
            one.id: bool(one.allocation) for one in state.jobs.values() if one.state not in TERMINAL
        }
        state_s = state.now_s
        journal = await self._journal(feed, entry)
        task = Task(work.foretold, (journal, entry, hours, runs), Bounds(cpu_s=CPU_S * runs))
        begun = self._shop.put(Work(who.name, task))
        made = Foretold(entry, state_s, runs, jobs, begun, now_s)
        self._foretold.pop((*of, entry), None)
        self._foretold[*of, entry] = made
        while len(self._foretold) > FORECASTS_MOST:
            over = [key for key, one in self._foretold.items() if one.work.is_over]
            if not over:
                break
            del self._foretold[over[0]]
        return made

    # --- both -------------------------------------------------------------------------------

    async def _journal(self, feed: Feed, entry: int) -> Journal:
        """Say where a process begins to read that is to branch at an entry."""

        async def find() -> Journal:
            index = feed.index
            mark = index.mark_before(entry + 1 - _LEARNS_FROM)
            if mark is None and index.first:
                mark = index.mark_before(index.first)
            return Journal(self._opening, feed.cell, feed.origin_s, mark)

        return await guarded(feed, find)


def _sees(who: Subject, kept: Kept) -> bool:
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
