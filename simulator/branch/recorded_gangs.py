"""The gangs of a recorded state, which go on as ideal agents run them (`simulator.gangs`).

Progress is in steps. A job's speed at a size is what was learned of it, else what it declares times
the factor by which it was seen to differ. Its length is what it declares, else what the log knows
from later, else what was expected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scheduler.core.job_work import declared_rate, expected_steps
from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Cause, Curve, Input
from scheduler.core.transitions import LEAVING, JobState
from scheduler.relevance import PROGRESS_S
from schemas.events import JobSubmitted, StopReason, WorkerFailed
from simulator.branch.draws import Draws
from simulator.branch.origin import AgentBehaviour, Lives
from simulator.branch.places import Places
from simulator.driver import START_S
from simulator.gang import Allocation, Gang, Witness, can
from simulator.gangs import Gangs
from simulator.options import Options
from simulator.physics.base import Entry, Observed, Placement, Segment

_UP = (JobState.STARTING, JobState.SCALING, JobState.RUNNING)


class RecordedModel:
    """A job's speed and length, as far as they are known. Progress is in steps."""

    stamp = None

    def __init__(self, job: Job, total: float, factor: float, behaviour: AgentBehaviour) -> None:
        """Take what a state knows of a job.

        Args:
            job: The job.
            total: Its steps in all.
            factor: Its speed over what is known.
            behaviour: What pauses its agents make.
        """
        self.total, self._factor, self._behaviour = total, factor, behaviour
        self.job, self.curve = job, job.curve
        learned = self.curve is not None and any(rate > 0.0 for _, rate in self.curve["points"])
        if self.curve is not None and learned:
            points, per_step = self.curve["points"], self.curve["per_step"]
            self._speeds = {int(size): rate / per_step for size, rate in points}
        else:
            self._speeds = {}
        self.affinity: Mapping[str, float] = {} if self.curve is None else self.curve["affinity"]

    def speed(self, size: int) -> float:
        """Steps a second at a size, in a pool of speed 1; 0 if it cannot have it."""
        if self._speeds:
            return self._factor * _between(self._speeds, size)
        declared = declared_rate(self.job, size) / self.job.samples_per_step
        return self._factor * declared * self.job.rate_factor

    def segment(self, progress: float, gpus: tuple[int, ...]) -> Segment:
        return Segment(self.speed(sum(gpus)), self.total)

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        raise NotImplementedError("a curve is told as it was learned")

    def pause_s(self, before: Placement, after: Placement) -> float:
        job = self.job
        if not before:
            return job.start_cost_s
        return (job.start_cost_s + job.checkpoint_cost_s) * self._behaviour.resize_share


def _between(speeds: Mapping[int, float], size: int) -> float:
    if size in speeds:
        return speeds[size]
    below = max((one for one in speeds if one < size), default=None)
    above = min((one for one in speeds if one > size), default=None)
    if below is None or above is None or not speeds[below] or not speeds[above]:
        return 0.0
    share = (size - below) / (above - below)
    return speeds[below] + share * (speeds[above] - speeds[below])


#: A job that is submitted later: when, its submission, and the input with its cause.
Arrival = tuple[float, JobSubmitted, Input, Cause]


class RecordedGangs(Gangs):
    """The jobs of a state, and those that come later."""

    def __init__(
        self,
        state: ClusterState,
        arrivals: Sequence[Arrival],
        known_later: Lives,
        places: Places,
        behaviour: AgentBehaviour,
        draws: Draws,
    ) -> None:
        """Take them over; nothing goes on before `begin`.

        Args:
            state: Of the engine.
            arrivals: Jobs that come later, in order.
            known_later: Jobs as the log knew them last: lengths that nobody declared, and speeds of
                jobs to come.
            places: The nodes.
            behaviour: How agents work.
            draws: What of speeds and lengths is drawn.
        """
        self._state, self._behaviour, self._places = state, behaviour, places
        self._jobs = [job for job in state.jobs.values() if job.end_s is None]
        self._submissions = [(data, cause) for _, _, data, cause in arrivals]
        known = []
        for job in self._jobs:
            later = known_later.get((job.id, job.submit_s))
            if behaviour.tells_curves and job.curve is None and later is not None:
                # It came in this moment, and its agents were still to tell how fast it is.
                job = replace(job, curve=later.curve)
            known.append(_model_of(job, later, behaviour, draws))
        for at_s, said, _, _ in arrivals:
            job = _job_of(said)
            later = known_later.get((said.job, at_s))
            if later is not None:
                job = replace(job, rate_factor=later.rate_factor, curve=later.curve)
            known.append(_model_of(job, later, behaviour, draws))
        moments = [0.0] * len(self._jobs) + [at_s - START_S for at_s, *_ in arrivals]
        entries = [_entry(one, at_s) for one, at_s in zip(known, moments, strict=True)]
        options = Options(
            sizes=(1,), instant=behaviour.instant, checkpoint_every_s=behaviour.saves_every_s
        )
        # Nobody counts: the engine's own totals say what came of a branch.
        super().__init__(entries, places, Witness(), options)
        self._came = len(self._jobs)
        for gang, one in zip(self.gangs, known, strict=True):
            gang.steps, gang.samples = 1.0, one.job.samples_per_step

    def resume(self, now_s: float) -> None:
        """Continue the gangs of the state."""
        for gang, job in zip(self.gangs, self._jobs, strict=False):
            self._take_over(gang, job, now_s)

    def _take_over(self, gang: Gang, job: Job, now_s: float) -> None:
        gang.epoch, gang.site = job.epoch, self._places.site_of(job)
        gang.done = gang.until = gang.saved = float(job.step)
        gang.from_s = gang.saved_s = now_s
        gang.said = job.step, min(job.step, job.checkpoint_step)
        if self._behaviour.tells_curves and (job.curve is None or _is_stale(job)):
            self._stale[gang.number] = None
        if not job.allocation and not job.leaving:
            return
        gang.allocation = {node: list(gpus) for node, gpus in job.allocation.items()}
        on = self._places.placement(job.allocation or job.leaving)
        gang.agent = f"/agents/{self._places.agent_of(on[0][0])}"
        gang.gpus = tuple(sorted((count for _, count in on), reverse=True))
        gang.pace = self._places.speed(gang.site, gang.entry.affinity)
        if job.state in LEAVING:
            self._leaves(gang, job, now_s)
        elif job.state in _UP:
            self._works(gang, job, now_s)

    def _works(self, gang: Gang, job: Job, now_s: float) -> None:
        changed_s, total = job.changed_s or 0.0, gang.entry.model.total
        speed = gang.entry.model.segment(0.0, gang.gpus).speed * gang.pace
        gang.runs, gang.saved = True, float(min(job.checkpoint_step, job.step))
        saves = max(0.0, changed_s + self._leave_s(gang) - now_s)
        if job.state is JobState.RUNNING and not (
            self._behaviour.instant and not job.samples_per_s
        ):
            gang.is_up, gang.ready_s, gang.saved_s = True, job.step_at_s, job.step_at_s
            stale = gang.number in self._stale
            self._leg(gang, min(float(job.step), total), job.step_at_s)
            if not stale:
                self._stale.pop(gang.number, None)
            if job.samples_per_s:
                self._moved.pop(gang.number, None)  # it was told how fast it is
        else:
            starts = job.state is JobState.STARTING
            pause_s = gang.entry.model.pause_s((), ()) if starts else self._resize_s(gang)
            gang.ready_s = gang.saved_s = max(now_s, changed_s + pause_s)
            done = float(job.step)
            if (
                not starts and not self._behaviour.tells_curves
            ):  # what it did since it was last heard
                done += speed * max(0.0, changed_s - job.step_at_s)
            gang.is_up = job.state is JobState.RUNNING
            if not gang.is_up:
                self._then(gang, gang.ready_s, self._up)
            self._leg(gang, min(done, total), gang.ready_s)
        if job.leaving:
            gang.leaving = self._parts(job)
            self._then(gang, now_s + saves, self._left)

    def _resize_s(self, gang: Gang) -> float:
        some = ((0, 1),)
        return gang.entry.model.pause_s(some, some)

    def _leaves(self, gang: Gang, job: Job, now_s: float) -> None:
        since_s, saves = job.stop_since_s, job.state is JobState.CHECKPOINTING
        gang.saves = saves
        gang.done = gang.until = float(job.step if saves else min(job.step, job.checkpoint_step))
        gang.leaving = self._parts(job)
        reason: StopReason = "preempted"
        if job.stop_reason in ("migrated", "completed"):
            reason = "migrated" if job.stop_reason == "migrated" else "completed"
        if reason == "completed":
            gang.is_over, gang.done = True, gang.entry.model.total
        due_s = max(now_s, since_s + self._leave_s(gang)) if saves else now_s
        self._then(gang, due_s, partial(self._gone, reason=reason))

    def _parts(self, job: Job) -> list[tuple[int, Allocation]]:
        """Give the GPUs that a job is leaving, with the epoch that it had them at."""
        found: dict[int, Allocation] = {}
        for node, gpus in job.leaving.items():
            for gpu in gpus:
                epoch = self._state.nodes[node].epoch[gpu]
                found.setdefault(epoch, {}).setdefault(node, []).append(gpu)
        return sorted(found.items())

    # --- what is said -------------------------------------------------------------------------

    def _submit(self, gang: Gang) -> None:
        data, cause = self._submissions[gang.number - len(self._jobs)]
        self._say(data, cause)
        job = self._state.jobs.get(gang.entry.id)
        if job is not None and job.submit_s == self._state.now_s:
            self.at[gang.entry.id] = gang  # no longer the one that had the name before
            self._stale[gang.number] = None

    def report(self, now_s: float) -> None:
        """Report the progress of gangs that changed, or that were not heard of for long."""
        for number, gang in enumerate(self.gangs[: self._came]):
            if not gang.is_up or self._behaviour.tells_curves:
                continue
            job = self._state.jobs.get(gang.entry.id)
            if job is not None and now_s >= job.step_at_s + PROGRESS_S:
                self._moved[number] = None
        if not self._behaviour.tells_curves:
            self._stale.clear()
        super().report(now_s)

    def _curve(self, gang: Gang, now_s: float) -> Curve:
        model = gang.entry.model
        assert isinstance(model, RecordedModel)
        if model.curve is None:
            speeds = [[size, can(rate)] for size, rate in model.job.rates]
            per_step = model.job.samples_per_step
        else:
            speeds, per_step = model.curve["points"], model.curve["per_step"]
        return Curve(
            points=speeds,
            per_step=per_step,
            left=(model.total - gang.progress(now_s)) * per_step,
            measured=[],
            affinity=dict(model.affinity),
        )

    # --- what befalls them --------------------------------------------------------------------

    def fail(self, job: str, error: str, now_s: float) -> None:
        """Have a worker of a job fail, if the job runs; the engine tells the others to leave."""
        gang = self.at.get(job)
        if gang is None or not gang.runs or not gang.allocation:
            return
        node = min(gang.allocation)
        self._lose(gang, now_s)
        self._halt(gang, now_s, gang.done)
        gpus = gang.allocation.pop(node)
        self._say(
            WorkerFailed(
                job=job, epoch=gang.epoch, node=node, gpus=gpus, error=error, step=int(gang.done)
            ),
            gang.agent,
        )


def _is_stale(job: Job) -> bool:
    return job.changed_s is not None and job.curve_at_s < job.changed_s


def _model_of(
    job: Job, later: Job | None, behaviour: AgentBehaviour, draws: Draws
) -> RecordedModel:
    factor = 1.0 if job.rate_at_s is not None else draws.speed(job.id)
    if job.total_steps is not None:
        return RecordedModel(job, float(job.total_steps), factor, behaviour)
    if later is not None and later.state is JobState.COMPLETED:
        total = float(max(1, later.step))
    else:
        total = max(expected_steps(job), job.step + 1.0) * draws.length(job.id)
    return RecordedModel(job, max(total, job.step + 1.0), factor, behaviour)


def _job_of(said: JobSubmitted) -> Job:
    alike = JobSubmitted.model_fields.keys() - {"job", "rates", "program"}
    fields: dict[str, Any] = {name: getattr(said, name) for name in alike}
    rates = [[point.gpus, point.samples_per_s] for point in said.rates]
    return Job(id=said.job, rates=rates, submit_s=0.0, **fields)


def _entry(known: RecordedModel, submit_s: float) -> Entry:
    job = known.job
    return Entry(
        id=job.id,
        submit_s=submit_s,
        model=known,
        requested=job.gpus or job.gpus_min,
        tenant=job.tenant,
        start_cost_s=job.start_cost_s,
        checkpoint_cost_s=job.checkpoint_cost_s,
        checkpoint_mib=float(job.checkpoint_mib),
        affinity=known.affinity,
    )
