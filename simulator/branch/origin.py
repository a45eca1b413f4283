"""What a branch begins from: the state after an entry of a journal, and what the log says comes.

What came from outside after the entry (jobs, requests of people, births and deaths, silence, what
owners needed, failures of gangs) is as recorded in every branch. What followed from decisions
(starts, progress, acknowledgements) is not taken over: agents make it anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

import orjson

from bus.contract import Record, Unreadable
from explain.tide import Tide
from scheduler.blame import blamed_on
from scheduler.core import facts
from scheduler.core.canonical import state_to_json
from scheduler.core.lenders import agent_of, lender_id
from scheduler.core.record import facts_from_dict
from scheduler.core.restore import state_from_dict
from scheduler.core.state import ClusterState, Job, Totals
from scheduler.core.stimuli import (
    CurvesLearned,
    LeaderStarted,
    NodeHeard,
    NodeSilent,
    Requested,
    Stimulus,
)
from scheduler.core.transitions import TERMINAL
from scheduler.journal import JournalReader, fold
from scheduler.replay import entries, stimuli
from schemas.events import (
    CheckpointCommitted,
    InferenceLoad,
    JobCancelled,
    JobSubmitted,
    NodeBorn,
    NodeDied,
    WorkerFailed,
)
from schemas.requests import ReadLog
from simulator.branch.deeds import Deed, deeds_of
from simulator.branch.owners import Shortfall
from simulator.branch.tides import Tides
from simulator.gangs import ESTIMATOR

_OUTSIDE = (
    JobSubmitted, JobCancelled, Requested, InferenceLoad, NodeBorn, NodeDied, NodeSilent, NodeHeard,
    WorkerFailed, LeaderStarted, CurvesLearned,
)  # fmt: skip
#: What agents take where the log has no example, in seconds.
_DRAIN_S = 20.0
#: How often agents that save by themselves do so (`runtime.core.Limits`), in seconds.
_SAVE_EVERY_S = 900.0


#: Jobs, by id and moment of submission: a name may be given again.
Lives = dict[tuple[str, float], Job]
#: What a branch is asked for by: each is an option of the command and a field of the API.
Part = Literal[
    "entry", "runs", "policy", "settings", "add_nodes", "lose", "demand", "requests", "jobs"
]


class BranchError(ValueError):
    """A branch cannot be begun or run as asked; says which part of it, why, and what to do."""

    def __init__(self, part: Part, reason: str) -> None:
        """`part` of what was asked for cannot be, for a reason."""
        super().__init__(part, reason)
        self.part, self.reason = part, reason

    def __str__(self) -> str:
        return f"{self.part}: {self.reason}"


@dataclass(slots=True)
class AgentBehaviour:
    """How the agents of a log work: their pauses and habits, as measured up to the branch's end."""

    #: A change of size pauses a job for this share of the time of a start and a save.
    resize_share: float = 1.0
    instant: bool = False  #: Gangs run in the moment in which they are ordered.
    tells_curves: bool = False  #: Its agents tell what jobs' speeds are; those of a simulation do.
    saves_every_s: float = float("inf")
    drain_s: float = _DRAIN_S  #: From the order to lend a node until it is lent.


@dataclass(slots=True)
class Recorded:
    """What the log says of the time of the branch."""

    until_s: float  #: The moment of its last entry that was read.
    totals: Totals  #: At the end of the branch, or of the log.
    jobs: Lives  #: As they were last.
    deeds: list[Deed] = field(default_factory=list)
    short_gpu_s: float = 0.0
    waiting: int = 0  #: Jobs that wait at the end.
    tide: list[Tide] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether anything was done after the entry."""
        return bool(self.deeds)


@dataclass(slots=True)
class Origin:
    """A moment of a log, with all that a branch needs of it."""

    cell: str
    entry: int
    state: bytes  #: After the entry, in the canonical form.
    digest: str  #: Of the entry.
    at_s: float
    origin_s: float  #: When the log began.
    until_s: float  #: When branches end.
    future: list[Stimulus]  #: From outside, in order.
    behaviour: AgentBehaviour
    record: Recorded
    #: By lender, what it needed by slots until the log goes on no more (`state.Lender.history`).
    needs: dict[str, tuple[int, list[float | None]]]

    @property
    def is_past(self) -> bool:
        """Whether the log tells all of the time of the branch."""
        return self.record.until_s >= self.until_s - 120.0


@dataclass(frozen=True, slots=True)
class StartState:
    """An earlier state of the log, so that it need not be read from its beginning."""

    state: bytes  #: As JSON.
    digest: str  #: Of its last entry.
    origin_s: float  #: When the log began.


def read_origin(
    records: Iterable[Record],
    entry: int | None,
    hours: float,
    *,
    cell: str | None = None,
    start: StartState | None = None,
) -> Origin:
    """Read a journal: the state after an entry, and what came until the branch's end.

    Args:
        records: The records of the journal, in order.
        entry: Number of the entry; None: the newest.
        hours: How long branches are.
        cell: Which cell; None if there is only one.
        start: What `records` go on from. How agents work is measured from there on.

    Raises:
        BranchError: there is no such entry.
        Unreadable: the journal is missing, damaged, incomplete or of a newer version.
    """
    state, origin, began_s = ClusterState(), None, 0.0
    reader = JournalReader(cell)
    if start is not None:
        state, began_s = state_from_dict(orjson.loads(start.state)), start.origin_s
        reader = JournalReader(cell or state.cell, state.number, start.digest)
    seen, tides = _Seen(), Tides(0.0, 0.0)
    if start is not None and state.number - 1 == entry:
        origin = _origin_at(state, start.digest, began_s, hours)
        tides = Tides(origin.at_s, origin.until_s)
        tides.look(state)
    for one, stimulus in stimuli(entries(records, reader, None, None)):
        if not state.number:
            state.cell, began_s = reader.cell or "", one.at_s
        if origin is not None and one.at_s > origin.until_s:
            break
        with blamed_on(one.number):
            fold(state, one)
            facts_now = facts_from_dict(orjson.loads(one.decision))
            seen.saw(stimulus, facts_now, state)
            if origin is not None:
                origin.record.deeds += deeds_of(stimulus.at_s, one.number, facts_now)
                _take_outside(origin, stimulus)
                tides.look(state)
            elif one.number == entry:
                origin = _origin_at(state, one.digest, began_s, hours)
                seen.shortfall.begin(state)
                tides = Tides(origin.at_s, origin.until_s)
                tides.look(state)
    if not state.number:
        of = "" if reader.cell is None else f" of cell {reader.cell}"
        raise Unreadable(f"the log has no journal{of}: there is nothing to branch from")
    if origin is None:
        if entry is not None:
            raise BranchError(
                "entry",
                f"there is no entry {entry}; the log ends at entry {state.number - 1}",
            )
        with blamed_on(state.number - 1):
            origin = _origin_at(state, reader.digest, began_s, hours)
    _finish(origin, state, seen)
    origin.record.tide = tides.rows if origin.record.goes_on else []
    return origin


def _origin_at(state: ClusterState, digest: str, began_s: float, hours: float) -> Origin:
    at_s = state.now_s
    return Origin(
        cell=state.cell,
        entry=state.number - 1,
        state=state_to_json(state),
        digest=digest,
        at_s=at_s,
        origin_s=began_s,
        until_s=at_s + 3600.0 * hours,
        future=[],
        behaviour=AgentBehaviour(),
        record=Recorded(at_s, Totals(), {}),
        needs={},
    )


def _take_outside(origin: Origin, stimulus: Stimulus) -> None:
    data = stimulus.data
    if not isinstance(data, _OUTSIDE):
        return
    if isinstance(data, Requested) and isinstance(data.request.args, ReadLog):
        return
    origin.future.append(stimulus)


def _finish(origin: Origin, state: ClusterState, seen: "_Seen") -> None:
    """Note the state of the log at the end of the branch, or at its own end if that is earlier."""
    record, end_s = origin.record, min(state.now_s, origin.until_s)
    record.until_s, record.totals = state.now_s, state.totals
    record.jobs = seen.jobs | {(job.id, job.submit_s): job for job in state.jobs.values()}
    record.waiting = waiting(state)
    record.short_gpu_s = seen.shortfall.until(end_s)
    origin.needs = {name: (one.slot, list(one.history)) for name, one in state.lenders.items()}
    origin.behaviour = seen.behaviour()


def waiting(state: ClusterState) -> int:
    """Count the jobs that wait for GPUs."""
    jobs = state.jobs.values()
    return sum(not job.allocation and job.state not in TERMINAL for job in jobs)


class _Seen:
    """Measures how the agents of a log work."""

    def __init__(self) -> None:
        self.shortfall = Shortfall()
        self.jobs: Lives = {}  #: The state may have forgotten them since.
        self._behaviour = AgentBehaviour()
        self._changed: dict[str, tuple[float, bool]] = {}  # when, and whether it was a change
        self._shares: list[float] = []
        self._starts: list[float] = []
        self._asked: dict[str, float] = {}
        self._drained: list[float] = []

    def saw(self, stimulus: Stimulus, found: list[object], state: ClusterState) -> None:
        """Take an entry, once it is folded."""
        at_s, data, behaviour = stimulus.at_s, stimulus.data, self._behaviour
        if isinstance(data, CurvesLearned):
            behaviour.tells_curves |= stimulus.cause.source == ESTIMATOR
        elif isinstance(data, CheckpointCommitted):
            behaviour.saves_every_s = _SAVE_EVERY_S
        elif isinstance(data, InferenceLoad):
            agent = agent_of(stimulus.cause.source)
            lender = data.node or lender_id(state, data.pool, agent)
            self.shortfall.needs(lender, float(data.gpus_needed), float(data.gpus_serving), at_s)
        for fact in found:
            match fact:
                case facts.LenderRenamed():
                    self.shortfall.renamed(fact.lender, fact.to, at_s)
                case facts.JobAccepted():
                    self._knows(state.jobs[fact.job])
                case facts.GangStarting():
                    self._changed[fact.job] = at_s, False
                case facts.GangScaling():
                    self._changed[fact.job] = at_s, True
                case facts.GangRunning():
                    self._settled(state.jobs[fact.job], at_s)
                case facts.JobQueued() | facts.JobCompleted():
                    self._changed.pop(fact.job, None)
                    self._knows(state.jobs[fact.job])
                case facts.LoanRequested():
                    self._asked[fact.node] = at_s
                case facts.LoanGranted() if fact.node in self._asked:
                    self._drained.append(at_s - self._asked.pop(fact.node))
                case _:
                    pass

    def _knows(self, job: Job) -> None:
        self.jobs[job.id, job.submit_s] = job

    def _settled(self, job: Job, at_s: float) -> None:
        began_s, changed = self._changed.pop(job.id, (at_s, False))
        whole_s = job.start_cost_s + (job.checkpoint_cost_s if changed else 0.0)
        if whole_s > 0.0:
            (self._shares if changed else self._starts).append((at_s - began_s) / whole_s)

    def behaviour(self) -> AgentBehaviour:
        """Give what was measured."""
        behaviour = self._behaviour
        if self._shares:
            behaviour.resize_share = min(1.0, round(fmean(self._shares), 2))
        if self._drained:
            behaviour.drain_s = round(fmean(self._drained), 1)
        behaviour.instant = bool(self._starts) and max(self._starts) == 0.0
        return behaviour
