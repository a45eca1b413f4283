"""Forecasts that people ask the gateway for: when each job of a moment starts and ends."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gateway import branch_runs
from gateway.assignment import Assignment, ProcessLimits
from gateway.branch_runs import Journal
from gateway.computation_queue import Computation, ComputationQueue
from gateway.feed import Feed
from gateway.past import Moment
from gateway.subjects import Subject
from scheduler.core.transitions import TERMINAL

#: Forecasts that are kept; of more, the oldest that is over goes.
KEPT_MOST = 50
#: Seconds of a processor for each run.
CPU_S = 60
#: A forecast of now is as good as one of the newest entry for so long, in seconds.
_FRESH_S = 60.0


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
        young = 0.0 <= now_s - self.asked_s <= _FRESH_S
        if self.computation.state in ("failed", "ended") and not young:
            return False  # perhaps it goes better now
        if self.entry == moment.entry:
            return True
        fresh = not self.computation.is_over or young
        return not moment.pinned and fresh and job in self.jobs


class Forecasts:
    """The forecasts of a gateway."""

    def __init__(
        self, queue: ComputationQueue, journal_of: Callable[[Feed, int], Awaitable[Journal]]
    ) -> None:
        """Begin with none; `journal_of` says where a process reads that begins at an entry."""
        self._queue, self._journal_of = queue, journal_of
        #: So long an answer waits for a forecast, in seconds: most small cells need no more.
        self.patience_s = 1.0
        self._kept: OrderedDict[tuple[Any, ...], Forecast] = OrderedDict()

    async def ask(
        self, feed: Feed, who: Subject, moment: Moment, job: str, hours: float, runs: int,
        now_s: float,
    ) -> Forecast:  # fmt: skip
        """Give a forecast of all jobs of a moment, which may still be under way.

        Raises:
            Problem: 429, who asks has as many computations as it may.
        """
        of = (feed.cell, feed.generation, hours, runs)
        for key, found in reversed(self._kept.items()):
            if key[:-1] == of and found.answers(moment, job, now_s):
                return found
        state, entry = moment.state, moment.state.number - 1
        jobs = {
            one.id: bool(one.allocation) for one in state.jobs.values() if one.state not in TERMINAL
        }
        state_s = state.now_s
        journal = await self._journal_of(feed, entry)
        assignment = Assignment(
            branch_runs.run_forecast,
            (journal, entry, hours, runs),
            ProcessLimits(cpu_s=CPU_S * runs),
        )
        computation = self._queue.put(Computation(who.name, assignment, tenant=who.tenant))
        made = Forecast(entry, state_s, runs, jobs, computation, now_s)
        self._kept.pop((*of, entry), None)
        self._kept[*of, entry] = made
        while len(self._kept) > KEPT_MOST:
            over = [key for key, one in self._kept.items() if one.computation.is_over]
            if not over:
                break
            del self._kept[over[0]]
        return made
