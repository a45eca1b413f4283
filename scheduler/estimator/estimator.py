"""Learns from reports how fast each job is at each size, a little with every tick.

What it holds is bounded: jobs that the state has forgotten are dropped, so are the kin that nobody
was of for longest. So is what it does in a tick: one fit, and some curves; the rest waits. After a
restart it begins from the curves and jobs in the state: of pass times, batches, noise, and kin that
are gone nothing is left, and they are learned again. `totals` does the same for lengths.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Curve, Length
from scheduler.core.transitions import TERMINAL, JobState
from scheduler.estimator.all_kin import AllKin
from scheduler.estimator.curves import curve_of
from scheduler.estimator.due import Due
from scheduler.estimator.kin import Kin, Own, Row
from scheduler.estimator.totals import Totals
from schemas.events import EventData, JobProgressed, JobSubmitted

#: A curve that is off by less at every size, as a part, stands.
CHANGE = 0.05
#: One that is off, and has no newly measured size, stands for so long all the same.
QUIET_S = 300.0
#: Curves looked at in a tick, 0.4 ms each; and no two fits are nearer, for one takes some 30 ms.
_LOOKED_AT, _FIT_EVERY_S = 20, 1.0
#: Steps that take less or more, in seconds, are an invention, whatever the schemas let through.
_LEAST_S, _MOST_S = 1e-7, 1e6


class Estimator:
    """What a scheduler learns of the jobs of one cell."""

    def __init__(self, state: ClusterState) -> None:
        """Begin from the curves in a state."""
        self._own: dict[str, Own] = {}
        self._all_kin = AllKin()
        #: Jobs whose curve may have changed, in the order in which it did; and later once more.
        self._due = Due()
        self._ready: dict[str, Curve] = {}
        self._fitted_s = -math.inf
        self._can_fit = True
        #: Kin that were told something, by their ids: looked at once a tick, for they may be many.
        self._told: dict[int, Kin] = {}
        self._totals = Totals(self._all_kin)
        largest = {
            name: max((state.nodes[node].gpu_count for node in pool.nodes), default=1)
            for name, pool in state.pools.items()
        }
        for job in state.jobs.values():
            kin = self._all_kin.of(state, job)
            if _is_here(state, job.id):
                kin.jobs[job.id] = None
            if job.curve is not None:
                known = largest.get(job.pool or "", max(largest.values(), default=1))
                self._remember(job, kin, cast(Curve, job.curve), known)
            self._totals.remember(state, job)

    def hear(self, state: ClusterState, data: EventData, now_s: float) -> None:
        """Take an event that the engine is about to take, or would take if it said more."""
        self._totals.hear(state, data, now_s)
        if isinstance(data, JobSubmitted):
            if data.job not in state.jobs:
                self._own.pop(data.job, None)  # of one that was forgotten
            self._due.add(data.job)
        elif isinstance(data, JobProgressed):
            job = state.jobs.get(data.job)
            if job is not None and job.epoch == data.epoch and job.state is JobState.RUNNING:
                self._progressed(state, job, data, now_s)

    def learn(self, state: ClusterState, now_s: float) -> None:
        """Do a part of what there is to do; what comes of it is given by `take`."""
        if len(self._own) > len(state.jobs):
            self._own = {name: own for name, own in self._own.items() if name in state.jobs}
        told, self._told = self._told, {}
        for kin in told.values():
            kin.jobs = {name: None for name in kin.jobs if _is_here(state, name)}
            self._due.add(*kin.jobs)
        for job in self._due.take(state, now_s, _LOOKED_AT):
            kin = self._all_kin.of(state, job)
            kin.jobs[job.id] = None
            kin.look()
            if self._can_fit and kin.says_more:
                if now_s < self._fitted_s + _FIT_EVERY_S:
                    self._due.add(job.id)
                    continue
                self._fit(kin, now_s)
            self._look(job, kin, now_s)
        self._totals.learn(state, now_s)

    def take(self) -> dict[str, Curve]:
        """Give the curves that changed, each once."""
        ready, self._ready = self._ready, {}
        return ready

    def take_lengths(self) -> dict[str, Length]:
        """Give the lengths that changed, each once."""
        return self._totals.take()

    def _progressed(self, state: ClusterState, job: Job, data: JobProgressed, now_s: float) -> None:
        own = self._own.setdefault(job.id, Own())
        first, stood = own.epoch != data.epoch, data.step <= own.step
        own.epoch, own.step = data.epoch, data.step
        if first or stood:  # what it began with may have been on other GPUs
            return
        batch = data.batch or job.samples_per_step
        step_s = data.step_s
        if step_s is None:
            step_s = batch / data.samples_per_s if data.samples_per_s > 0.0 else 0.0
        said = batch, step_s, data.pass_s or step_s, data.gradient_noise or 0.0
        if (
            not all(map(math.isfinite, said))
            or not _LEAST_S <= step_s <= _MOST_S
            or not job.allocation
        ):
            return
        nodes = [state.nodes[name] for name in job.allocation]
        shape = len(nodes), job.size
        pass_s = step_s if job.size == 1 else math.nan  # one GPU exchanges nothing
        if data.pass_s is not None and _LEAST_S <= data.pass_s <= step_s:
            pass_s = data.pass_s
        speed = min(node.speed_factor for node in nodes)
        row = Row(batch, pass_s, step_s, now_s)
        kin = self._all_kin.of(state, job)
        for gone in own.show(nodes[0].pool, speed, shape, row):
            kin.forget(job.id, gone)
        if data.gradient_noise is not None:
            own.noise.show(batch, data.gradient_noise, kin.trend)
        kin.per_node = max(kin.per_node, *(node.gpu_count for node in nodes))
        self._tell(job, own, kin)
        if own.has_other_affinity(CHANGE) or (
            data.gradient_noise is not None and batch != job.samples_per_step
        ):
            self._due.add(job.id)

    def _tell(self, job: Job, own: Own, kin: Kin) -> None:
        """Let its kin know what it showed, if that is news."""
        news = own.news(CHANGE)
        for shape, row in news.items():
            kin.tell(job.id, shape, row)
        if news:
            kin.jobs[job.id] = None
            self._told[id(kin)] = kin

    def _fit(self, kin: Kin, now_s: float) -> None:
        self._fitted_s = now_s
        self._due.add(*kin.jobs)
        try:
            kin.steps.fit()
        except ModuleNotFoundError:  # a plain install has no scipy: the declared curves serve
            self._can_fit = False

    def _look(self, job: Job, kin: Kin, now_s: float) -> None:
        """Find a job's curve, and whether it is another than the one that the engine has."""
        curve = curve_of(job, self._own.get(job.id) or Own(), kin)
        if curve is None:
            return
        before = job.curve
        is_first = before is None or not set(curve["measured"]) <= set(before["measured"])
        if is_first or _is_other(curve, before):
            if is_first or now_s >= job.curve_at_s + QUIET_S:
                self._ready[job.id] = curve
            else:
                self._due.later(job.id, job.curve_at_s + QUIET_S)

    def _remember(self, job: Job, kin: Kin, curve: Curve, per_node: int) -> None:
        own, kin.per_node = Own(), per_node
        own.remember(curve, job.samples_per_step, kin.per_node)
        self._own[job.id] = own
        for shape, row in own.news(CHANGE).items():
            kin.tell(job.id, shape, row)


def _is_here(state: ClusterState, name: str) -> bool:
    job = state.jobs.get(name)
    return job is not None and job.state not in TERMINAL


def _is_other(curve: Curve, before: Mapping[str, Any] | None) -> bool:
    """Whether a curve differs from one before by enough to say so."""
    if before is None:
        return True
    now, then = curve["points"], before["points"]
    if [size for size, _ in now] != [size for size, _ in then]:
        return True
    pairs = [(work, was) for (_, work), (_, was) in zip(now, then, strict=True)]
    if curve["affinity"].keys() != before["affinity"].keys():
        return True
    pairs += [(curve["affinity"][pool], was) for pool, was in before["affinity"].items()]
    return any(abs(work - was) > CHANGE * was for work, was in pairs)
