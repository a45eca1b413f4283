"""Learns what is left of jobs that declared no total, a little with every tick.

What it holds is bounded by the jobs of the state. A job that never says a step has a length too:
the time for which it ran since it began, times its declared speed.
"""

from scheduler.core.job_work import declared_rate, least_steps
from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Length
from scheduler.core.transitions import HOLDING, TERMINAL, JobState
from scheduler.estimator.all_kin import AllKin
from scheduler.estimator.due import Due
from scheduler.estimator.kin import Kin
from schemas.events import (
    EventData,
    JobCancelled,
    JobProgressed,
    JobSubmitted,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)

#: What is left stands while it is off by less, as a part of that or of a tenth of what is done.
OFF = 0.1
#: Jobs looked at in a tick, at most some 20 µs each.
_LOOKED_AT = 200
#: A job that says no steps is looked at so often, in seconds; or less, as a part of how long it
#: runs.
_SILENT_S, _SILENT = 60.0, 0.1


class Totals:
    """What is left of the jobs of one cell that declared no total."""

    def __init__(self, kin: AllKin) -> None:
        """Begin with nothing known."""
        self._all_kin = kin
        #: Jobs to look at; those that say no steps, from time to time.
        self._due = Due()
        #: Steps reported last, and in which epoch; the engine need not hear of all of them.
        self._heard: dict[str, tuple[int, int]] = {}
        #: Jobs of which workers left, and what each had done.
        self._leaving: dict[str, float] = {}
        self._ready: dict[str, Length] = {}
        #: Kin of whom there is news, by their ids: looked at once a tick, for they may be many.
        self._told: dict[int, Kin] = {}

    def remember(self, state: ClusterState, job: Job) -> None:
        """Take over what a state says of a job."""
        lengths = self._all_kin.of(state, job).lengths
        if job.state is JobState.COMPLETED:
            lengths.ended(job.id, float(job.step))
        elif job.state not in TERMINAL:
            lengths.came(job.id, _done(job, state.now_s))
            self._due.add(job.id)

    def hear(self, state: ClusterState, data: EventData, now_s: float) -> None:
        """Take an event that the engine is about to take, or would take if it said more."""
        if isinstance(data, JobSubmitted):
            self._due.add(data.job)
            return
        if not isinstance(
            data, JobProgressed | WorkerStarted | WorkerStopped | WorkerFailed | JobCancelled
        ):
            return
        job = state.jobs.get(data.job)
        if job is None or job.state in TERMINAL:
            return
        if isinstance(data, WorkerStarted):
            self._due.add(job.id)
        elif not isinstance(data, JobProgressed):
            self._leaving.setdefault(job.id, _done(job, now_s))
        elif job.epoch == data.epoch and job.state is JobState.RUNNING:
            kin = self._all_kin.of(state, job)
            kin.lengths.came(job.id, float(data.step))
            self._told[id(kin)] = kin
            if job.total_steps is None:
                self._heard[job.id] = data.epoch, data.step
                self._due.add(job.id)

    def learn(self, state: ClusterState, now_s: float) -> None:
        """Take note of jobs that ended; find what is left of some others."""
        if len(self._heard) > len(state.jobs):
            self._heard = {name: one for name, one in self._heard.items() if name in state.jobs}
        for name, done in list(self._leaving.items()):
            job = state.jobs.get(name)
            if job is not None and job.state in HOLDING and job.state is not JobState.RUNNING:
                continue  # others of its workers are to leave, or to come
            del self._leaving[name]
            self._due.add(name)
            if job is not None and job.state in TERMINAL:
                self._end(state, job, done)
        self._tell(state)
        for job in self._due.take(state, now_s, _LOOKED_AT):
            kin = self._all_kin.of(state, job)
            kin.jobs[job.id] = None
            if job.total_steps is None:
                self._look(job, kin, now_s)
            self._told[id(kin)] = kin
        self._tell(state)

    def take(self) -> dict[str, Length]:
        """Give the lengths that changed, each once."""
        ready, self._ready = self._ready, {}
        return ready

    def _end(self, state: ClusterState, job: Job, done: float) -> None:
        """Tell the kin of a job that ended what it took; one that did not end well says nothing."""
        kin = self._all_kin.of(state, job)
        if job.state is JobState.COMPLETED:
            kin.lengths.ended(job.id, float(job.step) or done)
        else:
            kin.lengths.gone(job.id)
        self._told[id(kin)] = kin

    def _tell(self, state: ClusterState) -> None:
        """Let kin be looked at that what is known changed for: all, or one would seem shorter."""

        def is_here(name: str) -> bool:
            job = state.jobs.get(name)
            return job is not None and job.state not in TERMINAL

        told, self._told = self._told, {}
        for kin in told.values():
            kin.lengths.only(is_here)  # a job may fail with its node, whose workers say nothing
            if kin.lengths.news():
                kin.jobs = {name: None for name in kin.jobs if is_here(name)}
                self._due.add(*kin.jobs)

    def _look(self, job: Job, kin: Kin, now_s: float) -> None:
        """Find what a job has left, and whether it is other than what the engine goes by."""
        done, unheard = _done(job, now_s), 0.0
        epoch, step = self._heard.get(job.id, (-1, 0))
        if epoch == job.epoch:
            done = max(done, float(step))
            unheard = done - job.step
        elif _is_silent(job) and job.allocation:
            kin.lengths.came(job.id, done)
            runs_s = now_s - (now_s if job.changed_s is None else job.changed_s)
            self._due.later(job.id, now_s + max(_SILENT_S, _SILENT * runs_s))
        length = kin.lengths.left(job.id, done, least_steps(job))
        left = length["left"] + unheard  # at the step that the engine knows
        if job.length is not None:
            goes_by = job.length["left"] - (job.step - job.length_step)
            if abs(left - goes_by) <= OFF * max(length["left"], OFF * done):
                return
        self._ready[job.id] = Length(**{**length, "left": left})


def _is_silent(job: Job) -> bool:
    """Whether a job never said how far it is."""
    return job.step == 0 and job.rate_at_s is None


def _done(job: Job, now_s: float) -> float:
    """Give the steps that a job took so far; one that says none begins anew with every start."""
    if not _is_silent(job) or not job.allocation or job.changed_s is None:
        return float(job.step)
    rate = declared_rate(job, job.size) or declared_rate(job, job.gpus_min)
    return (now_s - job.changed_s) * rate / job.samples_per_step
