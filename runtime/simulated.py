"""Simulated workers: gangs that progress, pause, save and fail as closed forms of time.

Steps done at t are `base + rate * (t - resume)` after the last pause, so any moment is reached in
one step of computing, and a simulated day costs only its events. Costs of changing size follow
DeepBoot's fast elastic training (AFE): `first` is the job's start cost, `next` a tenth of it; a
gang that keeps workers pays `next` plus the share of `first - next` that its new workers are.
Whatever is random derives from (seed, job, epoch, ...), never from the order of calls. A job that
declares no total takes an hour on its fewest GPUs, four times that at most, and its kin alike.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from runtime.core import (
    CheckpointDone,
    CheckpointLost,
    CheckpointWorkers,
    GangCompleted,
    GangFailed,
    GangProgress,
    GangStarted,
    GangStopped,
    KeepLease,
    Placement,
    Report,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
    WorkersLeft,
)
from schemas.commands import GangSpec
from schemas.events import RatePoint
from schemas.options import CHECKED, Share

_NEVER = math.inf
#: Guards whole steps against the rounding of a product of floats.
_ROUNDING = 1e-6
#: What simulated gangs call the loss that they report.
LOSS = "simulated loss"


@checked(frozen=True, slots=True, config=CHECKED)
class Physics:
    """How simulated gangs differ from their declarations."""

    seed: int = 0
    #: A job's true rate is its declared one times 1 ± up to this, the same all its life.
    rate_noise: Share = 0.07
    #: Worker failures per GPU and hour.
    failures_per_gpu_hour: Annotated[float, Field(ge=0.0)] = 1e-4
    #: Share of checkpoints that cannot be written.
    checkpoint_failure_share: Share = 0.0
    #: A resize of a gang that keeps its workers, as a share of the start cost.
    resize_share: Share = 0.1
    #: Whether gangs report a loss, under a name that says that it is simulated.
    reports_loss: bool = False


def rate_at(rates: Sequence[RatePoint], gpus: int) -> float:
    """Give samples per second at a size: linear between points, through 0 below, flat above."""
    below_gpus, below_rate = 0, 0.0
    for point in rates:
        if gpus <= point.gpus:
            share = (gpus - below_gpus) / (point.gpus - below_gpus)
            return below_rate + share * (point.samples_per_s - below_rate)
        below_gpus, below_rate = point.gpus, point.samples_per_s
    return below_rate


def draw(*key: object) -> float:
    """Give a number in [0, 1) that depends on the key alone."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56


def hidden_steps(spec: GangSpec, seed: int, job: str) -> float:
    """Give the steps that a job takes in all: as declared, else made up, by model and job."""
    if spec.total_steps is not None:
        return float(spec.total_steps)
    hours = 4.0 ** (2.0 * draw(seed, "steps", spec.model) - 1.0)
    hours *= 0.8 + 0.4 * draw(seed, "steps", spec.model, job)
    steps = 3600.0 * hours * spec.rates[0].samples_per_s / spec.samples_per_step
    return float(math.ceil(steps))


def simulated_loss(seed: int, job: str, share: float) -> float:
    """Give a loss that falls smoothly with the share of the steps done; it means nothing."""
    begins, ends = 2.0 + 0.5 * draw(seed, "from", job), 0.1 + 0.5 * draw(seed, "to", job)
    return round(ends + (begins - ends) / math.pow(1.0 + 30.0 * share, 0.8), 4)


def resize_pause_s(spec: GangSpec, old: Placement, new: Placement, resize_share: float) -> float:
    """Give the pause of going from one placement to another.

    Source: DeepBoot, AFE cost model: shrink `next`; grow from p to q
    `next + floor((first - next)(q - p)/q)`; same size but moved `first`.
    """
    size = sum(map(len, new.values()))
    kept = sum(len(set(gpus) & set(old.get(node, ()))) for node, gpus in new.items())
    first_s = spec.start_cost_s
    next_s = first_s * resize_share
    if kept == size:
        return next_s if sum(map(len, old.values())) > size else 0.0
    if kept == 0:
        return first_s
    return next_s + math.floor((first_s - next_s) * (size - kept) / size)


@dataclass(slots=True)
class _Gang:
    """One gang. Moments are when something will happen, infinite for never."""

    job: str
    epoch: int
    placement: Placement
    spec: GangSpec
    checkpoint_step: int
    base: float
    resume_s: float
    ready_s: float
    total: float  # steps
    rate: float = 0.0  # steps per second
    has_run: bool = False
    leaves: list[tuple[float, int]] = field(default_factory=list)  # (moment, old epoch)
    saved_s: float = _NEVER
    stop_s: float = _NEVER
    fail_s: float = _NEVER
    error: str = ""
    saves: int = 0

    def steps(self, now_s: float) -> float:
        done = self.base + self.rate * max(0.0, now_s - self.resume_s)
        return min(done, self.total)

    def pause(self, now_s: float, until_s: float) -> None:
        """Stand still until the moment; one that stands still already, until the later one."""
        self.base, self.resume_s = self.steps(now_s), max(self.resume_s, until_s)

    @property
    def complete_s(self) -> float:
        if self.resume_s == _NEVER:
            return _NEVER
        return self.resume_s + (self.total - self.base) / self.rate

    @property
    def due_s(self) -> float:
        leave_s = self.leaves[0][0] if self.leaves else _NEVER
        return min(leave_s, self.ready_s, self.saved_s, self.stop_s, self.fail_s, self.complete_s)


class SimulatedExecutor:
    """An executor without machines. Its workers end with the process."""

    def __init__(self, speed_factors: Mapping[str, float], physics: Physics | None = None) -> None:
        """Take the speed factor of each node."""
        self._speeds = dict(speed_factors)
        self._physics = physics or Physics()
        self._gangs: dict[str, _Gang] = {}
        self._due_s = _NEVER

    def start(self, order: StartWorkers, now_s: float) -> None:
        if order.job in self._gangs:
            return
        ready_s = now_s + order.spec.start_cost_s + order.transfer_s
        gang = _Gang(
            order.job,
            order.epoch,
            order.placement,
            order.spec,
            checkpoint_step=order.step,
            base=float(order.step),
            resume_s=ready_s,
            ready_s=ready_s,
            total=hidden_steps(order.spec, self._physics.seed, order.job),
        )
        self._settle_in(gang, now_s)
        self._gangs[order.job] = gang
        self._look_ahead()

    def scale(self, order: ScaleWorkers, now_s: float) -> None:
        gang = self._gangs.get(order.job)
        if gang is None or gang.epoch == order.epoch:
            return
        share = self._physics.resize_share
        pause_s = resize_pause_s(gang.spec, gang.placement, order.placement, share)
        gang.pause(now_s, now_s + pause_s)
        if any(set(gpus) - set(order.placement.get(n, ())) for n, gpus in gang.placement.items()):
            # Leavers go at the first step boundary, before new workers are ready.
            leave_s = now_s + min(pause_s, gang.spec.start_cost_s * share)
            gang.leaves.append((leave_s, gang.epoch))
        gang.epoch, gang.placement, gang.ready_s = order.epoch, order.placement, gang.resume_s
        self._settle_in(gang, now_s)
        self._look_ahead()

    def checkpoint(self, order: CheckpointWorkers, now_s: float) -> None:
        gang = self._gangs.get(order.job)
        if gang is None or gang.saved_s != _NEVER or gang.stop_s != _NEVER:
            return
        gang.saved_s = now_s + gang.spec.checkpoint_cost_s
        gang.pause(now_s, gang.saved_s)
        self._look_ahead()

    def stop(self, order: StopWorkers, now_s: float) -> None:
        gang = self._gangs.get(order.job)
        if gang is None:
            return
        # It is higher if the agent ended before it could pass on a change of size.
        gang.epoch = max(gang.epoch, order.epoch)
        gang.pause(now_s, _NEVER)
        gang.ready_s = _NEVER
        if not order.checkpoint or not gang.has_run:
            gang.saved_s, gang.stop_s = _NEVER, now_s
        else:
            # One that is being written holds all there is: nothing was trained since it began.
            saved_s = min(gang.saved_s, now_s + gang.spec.checkpoint_cost_s)
            in_time = saved_s <= now_s + order.grace_s
            gang.saved_s = saved_s if in_time else _NEVER
            gang.stop_s = saved_s if in_time else now_s + order.grace_s
        self._look_ahead()

    def keep_lease(self, lease: KeepLease, now_s: float) -> None:
        """Do nothing: simulated workers are no more once their agent is."""

    def fail(self, job: str, error: str, now_s: float) -> None:
        """Let a worker of the job die now, with this error; for faults on purpose."""
        gang = self._gangs.get(job)
        if gang is not None:
            gang.fail_s, gang.error = now_s, error
            self._look_ahead()

    def progress(self, now_s: float) -> list[GangProgress]:
        return [
            GangProgress(
                job,
                gang.epoch,
                _whole(gang.steps(now_s)),
                gang.rate * gang.spec.samples_per_step,
                metrics=self._metrics(gang, now_s),
            )
            for job, gang in sorted(self._gangs.items())
            if gang.has_run and gang.ready_s == _NEVER and gang.stop_s == _NEVER
        ]

    def _metrics(self, gang: _Gang, now_s: float) -> dict[str, float] | None:
        if not self._physics.reports_loss:
            return None
        share = gang.steps(now_s) / gang.total
        return {LOSS: simulated_loss(self._physics.seed, gang.job, share)}

    def trains_from_s(self, job: str) -> float:
        """When a gang trains, or trains on after its pause; inf while it leaves."""
        return self._gangs[job].resume_s

    def trains(self, now_s: float) -> dict[tuple[str, int], bool]:
        """By (node, GPU) that a gang holds: whether it trains now, or waits in some pause."""
        return {
            (node, gpu): gang.resume_s <= now_s
            for gang in self._gangs.values()
            for node, gpus in gang.placement.items()
            for gpu in gpus
        }

    def advance(self, now_s: float) -> list[Report]:
        reports: list[Report] = []
        while self._due_s <= now_s:
            gang = min(self._gangs.values(), key=lambda gang: (gang.due_s, gang.job))
            self._happen(gang, gang.due_s, reports)
            self._look_ahead()
        return reports

    def next_due_s(self) -> float | None:
        return None if self._due_s == _NEVER else self._due_s

    def running(self) -> tuple[str, ...]:
        return ()

    def _happen(self, gang: _Gang, at_s: float, reports: list[Report]) -> None:
        """Let the gang's next event happen; of several at one moment, in this order."""
        job, epoch = gang.job, gang.epoch
        if gang.leaves and gang.leaves[0][0] <= at_s:
            _, old_epoch = gang.leaves.pop(0)
            reports.append(WorkersLeft(job, old_epoch, _whole(gang.steps(at_s))))
        elif gang.ready_s <= at_s:
            gang.ready_s, gang.has_run = _NEVER, True
            reports.append(GangStarted(job, epoch, _whole(gang.steps(at_s))))
        elif gang.saved_s <= at_s:
            gang.saved_s = _NEVER
            reports.append(self._save(gang))
        elif gang.complete_s <= at_s:
            del self._gangs[job]
            reports.append(GangCompleted(job, epoch, _whole(gang.total)))
        elif gang.stop_s <= at_s:
            del self._gangs[job]
            reports.append(GangStopped(job, epoch, gang.checkpoint_step))
        else:
            del self._gangs[job]
            reports.append(GangFailed(job, epoch, gang.error))

    def _save(self, gang: _Gang) -> Report:
        gang.saves += 1
        share = self._physics.checkpoint_failure_share
        if draw(self._physics.seed, "save", gang.job, gang.epoch, gang.saves) < share:
            return CheckpointLost(gang.job, gang.epoch, "the checkpoint store did not answer")
        gang.checkpoint_step = _whole(gang.base)
        return CheckpointDone(
            gang.job,
            gang.epoch,
            gang.checkpoint_step,
            f"simulated:{gang.job}/{gang.checkpoint_step}",
            gang.spec.checkpoint_mib,
            gang.spec.checkpoint_cost_s,
        )

    def _settle_in(self, gang: _Gang, now_s: float) -> None:
        """Draw what depends on the allocation: its speed, and when a worker dies."""
        physics, spec = self._physics, gang.spec
        gpus = sum(map(len, gang.placement.values()))
        # A gang takes its steps together, at the pace of its slowest node.
        speed = min(self._speeds.get(node, 1.0) for node in gang.placement)
        noise = 1 + physics.rate_noise * (2 * draw(physics.seed, "rate", gang.job) - 1)
        gang.rate = rate_at(spec.rates, gpus) * speed * noise / spec.samples_per_step
        if physics.failures_per_gpu_hour > 0:
            hours = -math.log(1 - draw(physics.seed, "fail", gang.job, gang.epoch))
            hours /= physics.failures_per_gpu_hour * gpus
            gang.fail_s, gang.error = now_s + 3600 * hours, "worker exited: uncorrectable ECC error"

    def _look_ahead(self) -> None:
        self._due_s = min((gang.due_s for gang in self._gangs.values()), default=_NEVER)


def _whole(steps: float) -> int:
    return int(steps + _ROUNDING)
