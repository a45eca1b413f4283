"""Jobs of the Pollux workloads: measured T4 profiles, statistical efficiency, restarts of 30 s.

The ground truth is that of the simulator published with Pollux (OSDI '21), rebuilt from a
description: an epoch ends when progress reaches the least that any measured batch made in it, at a
whole second; a job ends after its last epoch. Any change to a non-empty allocation, the first
start too, costs 30 s without progress.

Jobs keep their row's batch, or tune it (`adaptive`). What tuning jobs know is a plug-in: `Oracle`
knows the profiles.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from scheduler.policies.interface import Floats
from simulator.physics.base import Cluster, Entry, Observed, Placement, Segment
from simulator.physics.pollux_app import App, Batch, compact, load_app
from simulator.trace_formats import read_jobs

RESTART_S = 30.0
#: In the published simulators this one never tunes its batch, nor runs on more than one GPU
#: where others tune theirs.
_UNTUNED, _UNTUNED_BATCH = "ncf", 32_768


class PolluxJob:
    """A job of an application, that makes progress epoch by epoch."""

    def __init__(self, app: App, cluster: Cluster) -> None:
        self._app = app
        self._per_node = cluster.gpus_per_node
        self.total = float(app.ends[-1])

    @property
    def stamp(self) -> int | None:
        return None

    def choose(self, gpus: tuple[int, ...], epoch: int) -> Batch | None:
        """Choose the batch to run with on a placement; None: it cannot run there."""
        raise NotImplementedError

    def segment(self, progress: float, gpus: tuple[int, ...]) -> Segment:
        epoch = self._app.epoch(progress)
        batch = self.choose(gpus, epoch)
        speed = 0.0 if batch is None else self._app.goodput(gpus, batch, epoch)
        return Segment(speed, float(self._app.ends[epoch]))

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        raise NotImplementedError

    def pause_s(self, before: Placement, after: Placement) -> float:
        return RESTART_S


class FixedJob(PolluxJob):
    """A job that keeps its batch. What is told is in iterations of this batch."""

    def __init__(self, app: App, batch: int, cluster: Cluster) -> None:
        super().__init__(app, cluster)
        self._batch = batch
        self._gain = app.gain(batch)
        work = np.diff(app.ends, prepend=0.0) / self._gain
        #: (E,) iterations from the end of each epoch to that of the job.
        self._after = np.cumsum(work[::-1])[::-1] - work

    def choose(self, gpus: tuple[int, ...], epoch: int) -> Batch | None:
        return self._app.fixed(self._batch, sum(gpus))

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        epoch = self._app.epoch(progress)
        per_progress = 1.0 / float(self._gain[epoch])
        left = (float(self._app.ends[epoch]) - progress) * per_progress
        return Observed(self._rates(sizes), left + float(self._after[epoch]), per_progress)

    def _rates(self, sizes: tuple[int, ...]) -> Floats:
        key = sizes, self._per_node, self._batch
        if key not in self._app.tables:
            rates = np.zeros(len(sizes))
            for k, size in enumerate(sizes):
                batch = self._app.fixed(self._batch, size)
                if batch is not None:
                    takes_s = self._app.iteration_s(compact(size, self._per_node), batch)
                    rates[k] = 1.0 / takes_s if takes_s > 0.0 else 0.0
            self._app.tables[key] = rates
        return self._app.tables[key]


class Oracle(PolluxJob):
    """A job that tunes its batch, and knows the true goodput of every placement in an epoch.

    What it tells is in units of progress.
    """

    def choose(self, gpus: tuple[int, ...], epoch: int) -> Batch:
        """Choose the best batch; any, if none is known."""
        tuned = self._app.tuned(gpus)
        return tuned.batch[epoch] if tuned is not None else Batch(self._app.local_min, 1)

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        return Observed(self._goodputs(sizes)[self._app.epoch(progress)], self.total - progress)

    def _goodputs(self, sizes: tuple[int, ...]) -> Floats:
        """(E, k) best goodput in each epoch at each size on the fewest nodes."""
        tables, key = self._app.tables, (sizes, self._per_node)
        if key not in tables:
            columns = [self._app.tuned(compact(size, self._per_node)) for size in sizes]
            nothing = np.zeros(self._app.epochs)
            found = [nothing if one is None else one.goodput for one in columns]
            tables[key] = np.stack(found, axis=1)
        return tables[key]


class UntunedJob(FixedJob):
    """A job that keeps its batch, and one GPU, among jobs that tune theirs."""

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        observed = super().observed(progress, sizes)
        rates = np.where(np.array(sizes) == 1, observed.rates, 0.0)
        return Observed(rates, observed.remaining, observed.per_progress)


@dataclass(frozen=True, slots=True)
class PolluxPhysics:
    """The Pollux artifact's physics."""

    profiles: Path  #: With a folder for each application.
    #: Makes jobs that tune their batch.
    tuning: Callable[[App, Cluster], PolluxJob] = Oracle
    #: Whether jobs do not say how much progress they need; those of an application are kin then.
    hides: bool = False
    tick_s: ClassVar[float] = 1.0
    instant: ClassVar[bool] = True

    def entries(self, workload: Path, cluster: Cluster, *, adaptive: bool) -> list[Entry]:
        """Read a Pollux workload; inference rows are left out."""
        made = []
        for row in read_jobs(workload, "pollux"):
            app = load_app(self.profiles / row.model)
            model: PolluxJob
            if not adaptive:
                model = FixedJob(app, int(row.batch), cluster)
            elif row.model == _UNTUNED:
                model = UntunedJob(app, _UNTUNED_BATCH, cluster)
            else:
                model = self.tuning(app, cluster)
            kin = row.model if self.hides else ""
            made.append(
                Entry(row.job, row.submit_s, model, row.gpus, start_cost_s=RESTART_S, kin=kin)
            )
        return made
