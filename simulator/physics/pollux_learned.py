"""What may be known of a job without its profile: step times that its kin were seen to take.

Jobs of one application are kin: they share the times of every step that any of them took, and the
step time fitted to them, by the estimator of the service (`scheduler.estimator`). A job knows its
own gradient noise, as Pollux's jobs do; how noise grows with the batch, kin learn from each other.
It knows how much progress it needs, which it need not declare (`PolluxPhysics.hides`). The first of
its kind begins on one GPU; nobody is told of sizes more than four times the largest that any of its
kin ran.

The first of its kin to run on so many GPUs of so many nodes tries a few micro-batches there before
it goes on. The steps of these trials are charged as a longer pause; all of their work is thrown
away, which a real job need not do.
"""

import numpy as np

from scheduler.estimator.goodput import Batches, Best, Noise, Tried, best_of, goodputs, tried
from scheduler.estimator.noise import Trend
from scheduler.estimator.steps import Seen, Shape, Steps, Timed
from scheduler.policies.interface import Floats
from simulator.physics.base import Cluster, Observed, Placement
from simulator.physics.pollux import PolluxJob
from simulator.physics.pollux_app import App, Batch

#: Micro-batches tried where no kin ran yet, in geometric steps, and the steps that each is timed.
_TRIALS, _TRIAL_STEPS = 5, 3
#: Sizes up to so many times the largest that was seen are offered.
_AHEAD = 4


class Kin:
    """What was seen of one application, in one run of the simulator."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.batches = Batches(app.batch0, app.batch_max, app.local_min, app.local_max)
        #: Changes with every new shape.
        self.version = 0
        self.most_gpus = 0
        self.trend = Trend()
        self._trend_known = 0
        self._learned = Steps()
        self._time: Seen | None = None
        self._known = 0  # the version that it knows
        self._tried: dict[tuple[int, ...], Tried] = {}  # batches, by the sizes they are for
        # What follows from the fit: predicted steps of the batches tried, and the best of these.
        self._steps: dict[Shape, Floats] = {}
        self._tables: dict[tuple[object, ...], tuple[Tried, Floats, Floats]] = {}
        self._best: dict[tuple[Shape, int], Best] = {}

    def try_out(self, gpus: tuple[int, ...]) -> float:
        """Time a few micro-batches on a shape if no kin ran there; return how long that takes."""
        shape = len(gpus), sum(gpus)
        if shape in self._learned.seen:
            return 0.0
        app = self.app
        most = min(app.local_max, max(app.batch_max // shape[1], app.local_min))
        micro = np.unique(np.rint(np.geomspace(app.local_min, most, _TRIALS)))
        times: dict[float, tuple[float, float]] = {}
        for each, (step_s, sync_s) in zip(
            micro.tolist(), app.step_times(gpus, micro).tolist(), strict=True
        ):
            if step_s > sync_s >= 0.0:
                times[each] = step_s - sync_s, step_s
        if not times:  # it cannot run so
            return 0.0
        self._learned.seen[shape] = Timed(times)
        self.most_gpus = max(self.most_gpus, shape[1])
        self.version += 1
        return _TRIAL_STEPS * sum(step_s for _, step_s in times.values())

    def _know(self) -> None:
        """Bring what is predicted up to what was seen."""
        if self._trend_known != self.trend.version:
            self._trend_known = self.trend.version
            self._tables.clear()
            self._best.clear()
        if self._known == self.version:
            return
        learned = self._learned
        if learned.says_more:
            learned.fit()
        if learned.time is not None:
            self._time = Seen(learned.time, learned.seen, is_bold=True)
        self._known = self.version
        self._steps.clear()
        self._tables.clear()
        self._best.clear()

    def _try(self, *gpus: int) -> Tried:
        if gpus not in self._tried:
            self._tried[gpus] = tried(self.batches, gpus)
        return self._tried[gpus]

    def _predict(self, time: Seen, nodes: int, gpus: int) -> Floats:
        """Return (1, 50) predicted steps of the batches tried on a shape."""
        if (nodes, gpus) not in self._steps:
            batch = self._try(gpus)
            micro, extra = batch.micro[0].astype(np.float64), batch.extra[0].astype(np.float64)
            self._steps[nodes, gpus] = time.step_s(nodes, gpus, micro, extra)[None]
        return self._steps[nodes, gpus]

    def best(self, nodes: int, gpus: int, batch: int) -> Best | None:
        """Return what is best on a shape in each epoch, by the noise at a batch; None: unknown."""
        self._know()
        if self._time is None:
            return None
        key = (nodes, gpus), batch
        if key not in self._best:
            sqr, var = self.app.noise_at(batch)
            batches, steps = self._try(gpus), self._predict(self._time, nodes, gpus)
            times = self.trend.times(batches.scale * self.app.batch0, batch)
            self._best[key] = best_of(batches, steps, Noise(sqr[:, None], var[:, None] * times))
        return self._best[key]

    def rates(
        self, noise: tuple[float, float], batch: int, sizes: tuple[int, ...], per_node: int
    ) -> Floats:
        """Return (k,) predicted best goodput at each size, ascending, on the fewest nodes.

        Args:
            noise: Squared norm and variance of the gradient at a batch.
            batch: That one.
            sizes: GPUs.
            per_node: GPUs of a node.
        """
        self._know()
        if self._time is None:  # no unit of time is known: progress counts as seconds
            return np.where(np.array(sizes) == 1, 1.0, 0.0)
        key = sizes, per_node
        if key not in self._tables:
            near = tuple(size for size in sizes if size <= _AHEAD * self.most_gpus)
            steps = [self._predict(self._time, -(-size // per_node), size) for size in near]
            batches = self._try(*near)
            times = self.trend.times(batches.scale * self.app.batch0, self.app.batch0)
            self._tables[key] = batches, np.concatenate(steps), times
        found = np.zeros(len(sizes))
        batches, steps_s, times = self._tables[key]
        sqr, var = noise
        times = times / self.trend.times(batch, self.app.batch0)
        best = goodputs(batches, steps_s, Noise(sqr, var * times)).max(axis=1)
        found[: len(best)] = best
        return found


class Learner(PolluxJob):
    """A job that tunes its batch by what it and its kin saw."""

    def __init__(self, kin: Kin, cluster: Cluster) -> None:
        super().__init__(kin.app, cluster)
        self._kin = kin
        self._batch, self._has_run = 0, False
        self._sees(kin.app.batch0)

    @property
    def stamp(self) -> int:
        return self._kin.version

    def _sees(self, batch: int) -> None:
        """Measure its noise at this batch from now on."""
        if batch != self._batch:
            self._batch = batch
            self._sqr, self._var = self._app.noise_at(batch)  # (E,)

    def pause_s(self, before: Placement, after: Placement) -> float:
        """Try out batches where no kin ran yet, too."""
        gpus = tuple(sorted((count for _, count in after), reverse=True))
        return super().pause_s(before, after) + self._kin.try_out(gpus)

    def choose(self, gpus: tuple[int, ...], epoch: int) -> Batch:
        """Choose the batch of best predicted goodput; the least while nothing is known."""
        app, count = self._app, sum(gpus)
        best = self._kin.best(len(gpus), count, self._batch)
        if best is not None and best.goodput[epoch] > 0.0:
            batch = Batch(int(best.micro[epoch]), int(best.extra[epoch]) + 1)
        else:
            least = app.fixed(max(app.batch0, app.local_min * count), count)
            batch = least or Batch(app.local_min, 1)
        before, was = self._batch, self._scale(epoch)
        self._sees(count * batch.micro * batch.passes)
        if self._has_run and was > 0.0:
            self._kin.trend.saw(before, self._batch, self._scale(epoch) / was)
        self._has_run = True
        return batch

    def _scale(self, epoch: int) -> float:
        """Return its gradient noise scale at its batch; 0: there is none."""
        sqr, var = float(self._sqr[epoch]), float(self._var[epoch])
        return var / sqr if sqr > 0.0 else 0.0

    def observed(self, progress: float, sizes: tuple[int, ...]) -> Observed:
        """Say what its kin's steps and its own noise predict."""
        epoch = self._app.epoch(progress)
        noise = float(self._sqr[epoch]), float(self._var[epoch])
        rates = self._kin.rates(noise, self._batch, sizes, self._per_node)
        return Observed(rates, self.total - progress)


class Learning:
    """Makes jobs that learn from each other; one for each run."""

    def __init__(self) -> None:
        """Begin to learn."""
        self._kin: dict[str, Kin] = {}

    def __call__(self, app: App, cluster: Cluster) -> Learner:
        """Return a new job of an application."""
        return Learner(self._kin.setdefault(app.name, Kin(app)), cluster)
