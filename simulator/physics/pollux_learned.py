"""What may be known of a job without its profile: step times that its kin were seen to take.

Jobs of one application are kin: they share the times of every step that any of them took, and the
step time fitted to them (`scheduler.goodput`). A job knows its own gradient noise, as Pollux's jobs
do, and how much progress it was declared to need; or, if lengths are unknown, how far the kin got
that got furthest: as far shall it go, and whoever leads has got half-way. The first of its kind
begins on one GPU; nobody is told of sizes more than four times the largest that any of its kin ran.

The first of its kin to run on so many GPUs of so many nodes tries a few micro-batches there before
it goes on. The steps of these trials are charged as a longer pause; all of their work is thrown
away, which a real job need not do.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from scheduler.goodput import (
    Batches,
    Best,
    Noise,
    Observations,
    StepTime,
    Tried,
    best_of,
    fit,
    goodputs,
    tried,
)
from scheduler.policies.interface import Floats
from simulator.physics.base import Room, Told
from simulator.physics.pollux_app import App, Batch

#: Micro-batches tried where no kin ran yet, in geometric steps, and the steps that each is timed.
_TRIALS, _TRIAL_STEPS = 5, 3
#: Sizes up to so many times the largest that was seen are offered.
_AHEAD = 4
#: A job of unknown length that leads its kin has at least so much left, on one GPU.
_LEAST_S = 600.0
#: Nodes and GPUs on them.
_Shape = tuple[int, int]


class Timed:
    """Steps that were timed on one shape. m micro-batches, ascending."""

    def __init__(self, times: Mapping[int, tuple[float, float]]) -> None:
        self.micro = np.array(sorted(times), dtype=np.float64)
        both = np.array([times[int(micro)] for micro in self.micro])
        self.pass_s, self.step_s = both[:, 0], both[:, 1]


class Seen:
    """A fitted step time, put right by what was seen.

    Where steps were timed, what the fit is off by stays as a factor, between micro-batches on a
    line. For other shapes the factor is the mean at that number of GPUs, on a line between numbers
    along their logarithm. Beyond the largest number that was seen, exchanging gradients is taken to
    cost no more than there, so that a policy tries it.
    """

    def __init__(self, time: StepTime, seen: Mapping[_Shape, Timed]) -> None:
        self._time, self._seen = time, seen
        self._off = {
            (nodes, gpus): np.log(timed.step_s / time.step_s(nodes, gpus, timed.micro))
            for (nodes, gpus), timed in seen.items()
        }
        gpus = sorted({gpus for _, gpus in seen})
        means = [np.mean([off.mean() for (_, g), off in self._off.items() if g == n]) for n in gpus]
        self._gpus, self._mean = np.array(gpus, dtype=np.float64), np.array(means)
        self._most_nodes = min(nodes for nodes, count in seen if count == gpus[-1])

    def step_s(self, nodes: int, gpus: int, micro: Floats, extra: Floats) -> Floats:
        """Return (m,) times of steps on one shape, as `StepTime.step_s`."""
        timed = self._seen.get((nodes, gpus))
        forth = self._time.pass_s(micro)
        if timed is not None:
            off = np.interp(micro, timed.micro, self._off[nodes, gpus])
            if len(timed.micro) > 1:
                forth = np.interp(micro, timed.micro, timed.pass_s)
        else:
            off = np.interp(np.log(gpus), np.log(self._gpus), self._mean)
        if gpus > self._gpus[-1]:
            nodes, gpus = self._most_nodes, int(self._gpus[-1])
        found: Floats = extra * forth + self._time.step_s(nodes, gpus, micro) * np.exp(off)
        return found


class Kin:
    """What was seen of one application, in one run of the simulator."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.batches = Batches(app.batch0, app.batch_max, app.local_min, app.local_max)
        #: Changes with every new shape.
        self.version = 0
        self.most_gpus = 0
        self.furthest = 0.0  #: progress
        self._seen: dict[_Shape, Timed] = {}
        self._fit: StepTime | None = None
        self._fitted = 0  # shapes that the fit knows
        self._time: Seen | None = None
        self._known = 0  # the version that it knows
        self._tried: dict[tuple[int, ...], Tried] = {}  # batches, by the sizes they are for
        # What follows from the fit: predicted steps of the batches tried, and the best of these.
        self._steps: dict[_Shape, Floats] = {}
        self._tables: dict[tuple[object, ...], tuple[Tried, Floats]] = {}
        self._best: dict[tuple[_Shape, int], Best] = {}

    def try_out(self, gpus: tuple[int, ...]) -> float:
        """Time a few micro-batches on a shape if no kin ran there; return how long that takes."""
        shape = len(gpus), sum(gpus)
        if shape in self._seen:
            return 0.0
        app = self.app
        most = min(app.local_max, max(app.batch_max // shape[1], app.local_min))
        micro = np.unique(np.rint(np.geomspace(app.local_min, most, _TRIALS)))
        times: dict[int, tuple[float, float]] = {}
        for each, (step_s, sync_s) in zip(
            micro.tolist(), app.step_times(gpus, micro).tolist(), strict=True
        ):
            if step_s > sync_s >= 0.0:
                times[int(each)] = step_s - sync_s, step_s
        if not times:  # it cannot run so
            return 0.0
        self._seen[shape] = Timed(times)
        self.most_gpus = max(self.most_gpus, shape[1])
        self.version += 1
        return _TRIAL_STEPS * sum(step_s for _, step_s in times.values())

    def _know(self) -> None:
        """Bring what is predicted up to what was seen."""
        if self._known == self.version:
            return
        # One more shape of many says little of others: fitting again would only cost time.
        if self._fit is None or len(self._seen) >= 1.25 * self._fitted:
            self._fit, self._fitted = _fitted(self._observations()), len(self._seen)
        self._time, self._known = Seen(self._fit, self._seen), self.version
        self._steps.clear()
        self._tables.clear()
        self._best.clear()

    def _observations(self) -> tuple[tuple[float, ...], ...]:
        return tuple(
            (nodes, gpus, *each)
            for (nodes, gpus), timed in self._seen.items()
            for each in zip(timed.micro, timed.pass_s, timed.step_s, strict=True)
        )

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
            steps = self._predict(self._time, nodes, gpus)
            self._best[key] = best_of(self._try(gpus), steps, Noise(sqr[:, None], var[:, None]))
        return self._best[key]

    def rates(self, noise: Noise, sizes: tuple[int, ...], per_node: int) -> Floats:
        """Return (k,) predicted best goodput at each size, ascending, on the fewest nodes."""
        self._know()
        if self._time is None:  # no unit of time is known: progress counts as seconds
            return np.where(np.array(sizes) == 1, 1.0, 0.0)
        key = sizes, per_node
        if key not in self._tables:
            near = tuple(size for size in sizes if size <= _AHEAD * self.most_gpus)
            steps = [self._predict(self._time, -(-size // per_node), size) for size in near]
            self._tables[key] = self._try(*near), np.concatenate(steps)
        found = np.zeros(len(sizes))
        best = goodputs(*self._tables[key], noise).max(axis=1)
        found[: len(best)] = best
        return found


@lru_cache(maxsize=4096)  # runs of one process often see the same shapes first
def _fitted(rows: tuple[tuple[float, ...], ...]) -> StepTime:
    nodes, gpus, micro, pass_s, step_s = np.array(rows).T
    return fit(Observations(nodes, gpus, micro, pass_s, step_s))


class Learner:
    """What one job knows."""

    def __init__(self, kin: Kin, room: Room, declared: bool) -> None:
        self._kin, self._declared = kin, declared
        self._app = kin.app
        self._per_node = room.gpus_per_node
        self._batch = 0
        self._sees(self._app.batch0)

    @property
    def stamp(self) -> int:
        return self._kin.version

    def _sees(self, batch: int) -> None:
        if batch != self._batch:
            self._batch = batch
            self._sqr, self._var = self._app.noise_at(batch)  # (E,) at the batch that it had last

    def _noise(self, epoch: int) -> Noise:
        return Noise(float(self._sqr[epoch]), float(self._var[epoch]))

    def prepare(self, gpus: tuple[int, ...]) -> float:
        """Try out batches where no kin ran yet; return for how long."""
        return self._kin.try_out(gpus)

    def choose(self, gpus: tuple[int, ...], epoch: int) -> Batch:
        """Choose the batch of best predicted goodput; the least while nothing is known."""
        app, count = self._app, sum(gpus)
        best = self._kin.best(len(gpus), count, self._batch)
        if best is not None and best.goodput[epoch] > 0.0:
            return Batch(int(best.micro[epoch]), int(best.extra[epoch]) + 1)
        least = app.fixed(max(app.batch0, app.local_min * count), count)
        return least or Batch(app.local_min, 1)

    def told(self, progress: float, sizes: tuple[int, ...]) -> Told:
        """Say what its kin's steps and its own noise predict."""
        epoch = self._app.epoch(progress)
        rates = self._kin.rates(self._noise(epoch), sizes, self._per_node)
        if self._declared:
            return Told(rates, float(self._app.ends[-1]) - progress)
        self._kin.furthest = max(self._kin.furthest, progress)
        left = self._kin.furthest - progress
        return Told(rates, left if left > 0.0 else max(progress, _LEAST_S * float(rates[0])))

    def measure(self, gpus: tuple[int, ...], batch: Batch) -> None:
        """Measure its noise at this batch from now on."""
        self._sees(sum(gpus) * batch.micro * batch.passes)


class Learning:
    """Makes what jobs know; one for each run, since jobs learn from each other."""

    def __init__(self, declared: bool = True) -> None:
        """Begin to learn; `declared`: whether jobs declare how much progress they need."""
        self._declared = declared
        self._kin: dict[str, Kin] = {}

    def __call__(self, app: App, room: Room) -> Learner:
        """Return what a new job of an application knows."""
        return Learner(self._kin.setdefault(app.name, Kin(app)), room, self._declared)
