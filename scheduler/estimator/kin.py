"""What jobs showed of their steps: each for itself, and together with those that are alike.

A tenant's jobs of one model and batch are kin: what one showed holds for the others until they show
otherwise. Figures may be anybody's invention, so each is a median of the newest few, kin have
medians over jobs, and what is off beyond reason counts for nobody but its own job.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from scheduler.core.stimuli import Curve
from scheduler.estimator.lengths import Lengths
from scheduler.estimator.noise import Measured, Trend
from scheduler.estimator.steps import Shape, Steps, Timed

#: Reports of one shape that the median is of; and jobs.
_REPORTS, _JOBS = 9, 15
#: Shapes remembered of a job, and of its kin with their micro-batches; older ones are forgotten.
_SHAPES = 64
#: A batch that changed by more, as a part, is another batch.
_SAME_BATCH = 0.01
#: Samples per GPU and second that are so many times off from all others' are not believed.
_FAR = 100.0
#: A pool's speed that is off by less, as a part, is the one that its nodes declare.
_SAME_SPEED = 0.05


class Row(NamedTuple):
    """Steps on one shape, on nodes of speed 1."""

    batch: float  #: samples of a step in all.
    pass_s: float  #: a pass that exchanges nothing; NaN: not known.
    step_s: float
    at_s: float  #: when it was reported last.


@dataclass(slots=True)
class _Shown:
    """A job's newest reports of one shape in one pool, as they were timed."""

    batch: float
    speed: float  #: that the pool's nodes declare.
    at_s: float = 0.0
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REPORTS))
    pass_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REPORTS))


class Own:
    """What one job showed."""

    def __init__(self) -> None:
        """Begin with nothing shown."""
        self.epoch = self.step = -1  #: of its newest report.
        self.noise = Measured()
        self._told: dict[Shape, Row] = {}
        self._affinity: dict[str, float] = {}
        self._told_affinity: dict[str, float] = {}
        self._remembered: dict[Shape, Row] = {}
        self._shown: dict[str, dict[Shape, _Shown]] = {}  # by pool

    def remember(self, curve: Curve, batch: float, per_node: int) -> None:
        """Take over what an estimator of before learned of it."""
        rates = {int(gpus): rate for gpus, rate in curve["points"]}
        known_s = curve.get("at_s") or [0.0] * len(curve["measured"])
        for gpus, at_s in zip(curve["measured"], known_s, strict=True):
            if rates.get(gpus, 0.0) > 0.0:
                shape = -(-gpus // per_node), gpus
                self._remembered[shape] = Row(batch, math.nan, 1.0 / rates[gpus], at_s)
        self._affinity = dict(curve["affinity"])

    def show(self, pool: str, speed: float, shape: Shape, row: Row) -> list[Shape]:
        """Add a report; `row` as it was timed on nodes that declare `speed`.

        Give the shapes that no longer count: of what was remembered, nobody noted on how many
        nodes it was.
        """
        gone = [one for one in self._remembered if one[1] == shape[1]]
        for one in gone:
            del self._remembered[one]
            self._told.pop(one, None)
        shapes = self._shown.setdefault(pool, {})
        shown = shapes.pop(shape, None)
        if shown is None or abs(row.batch / shown.batch - 1.0) > _SAME_BATCH:
            shown = _Shown(row.batch, speed)
        shapes[shape] = shown  # the newest is the last
        shown.speed, shown.at_s = speed, row.at_s
        shown.step_s.append(row.step_s)
        if not math.isnan(row.pass_s):
            shown.pass_s.append(row.pass_s)
        if sum(map(len, self._shown.values())) > _SHAPES:
            oldest = min(self._shown, key=lambda name: next(iter(self._shown[name].values())).at_s)
            del self._shown[oldest][next(iter(self._shown[oldest]))]
            if not self._shown[oldest]:
                del self._shown[oldest]
        return gone

    def rows(self) -> dict[Shape, Row]:
        """Give its steps by shape: of the pool that it knows best, else as they would be there."""
        found = dict(self._remembered)
        home, speeds = self._speeds()
        for pool, shapes in self._shown.items():
            for shape, shown in shapes.items():
                if pool == home or shape not in self._shown[home]:
                    pass_s = median(shown.pass_s) * speeds[pool] if shown.pass_s else math.nan
                    step_s = median(shown.step_s) * speeds[pool]
                    found[shape] = Row(shown.batch, pass_s, step_s, shown.at_s)
        return found

    def news(self, change: float) -> dict[Shape, Row]:
        """Give the rows that changed by more than this part since they were given last."""
        found = {
            s: row for s, row in self.rows().items() if _is_news(row, self._told.get(s), change)
        }
        self._told |= found
        return found

    def affinity(self) -> dict[str, float]:
        """Give the pools in which it is faster or slower than their nodes declare, and how fast."""
        found = dict(self._affinity)
        for pool, speed in self._speeds()[1].items():
            declared = next(iter(self._shown[pool].values())).speed
            if abs(speed / declared - 1.0) > _SAME_SPEED:
                found[pool] = speed
            else:
                found.pop(pool, None)
        return found

    def has_other_affinity(self, change: float) -> bool:
        """Whether `affinity` changed by more than this part since this was asked last."""
        now, before = self.affinity(), self._told_affinity
        if now.keys() == before.keys() and all(
            abs(speed / before[pool] - 1.0) <= change for pool, speed in now.items()
        ):
            return False
        self._told_affinity = now
        return True

    def _speeds(self) -> tuple[str, dict[str, float]]:
        """Give the pool that it knows best, and its speed in each that it ran in."""
        home = max(self._shown, key=lambda name: len(self._shown[name]), default="")
        found = {}
        for pool, shapes in self._shown.items():
            declared = next(iter(shapes.values())).speed
            found[pool] = self._affinity.get(pool, declared)
        for pool, shapes in self._shown.items():
            ratios = [
                median(self._shown[home][shape].step_s) / median(shown.step_s)
                for shape, shown in shapes.items()
                if pool != home and shape in self._shown[home]
            ]
            if ratios:
                found[pool] = median(ratios) * found[home]
        return home, found


def _is_news(row: Row, before: Row | None, change: float) -> bool:
    if before is None:
        return True
    batch, step_s = row.batch / before.batch, row.step_s / before.step_s
    return abs(batch - 1.0) > _SAME_BATCH or abs(step_s - 1.0) > change


class Kin:
    """What jobs that are alike showed together."""

    def __init__(self) -> None:
        """Begin with nothing shown."""
        self.steps = Steps()
        self.trend = Trend()  #: Of their gradient noise, with the batch.
        self.lengths = Lengths()  #: How far each came, in steps.
        #: Their steps by shape, as of the last `look`; of several micro-batches the newest.
        self.rows: dict[Shape, Row] = {}
        self.per_node = 1  #: GPUs of the largest node that any of them ran on.
        self.jobs: dict[str, None] = {}  #: Those who are to hear of it.
        #: By shape and micro-batch, the rows of the newest jobs that showed some.
        self._told: dict[tuple[Shape, float], dict[str, Row]] = {}
        self._has_news = False

    @property
    def says_more(self) -> bool:
        """Whether it is time to fit a step time: two sizes were seen, and it would be another."""
        return len({gpus for _, gpus in self.steps.seen}) > 1 and self.steps.says_more

    def tell(self, job: str, shape: Shape, row: Row) -> None:
        """Take what a job showed of a shape in place of what it showed before."""
        self.forget(job, shape)
        key = shape, float(f"{row.batch / shape[1]:.3g}")
        rows = self._told[key] = {**self._told.pop(key, {}), job: row}  # the newest is the last
        if len(rows) > _JOBS:
            del rows[next(iter(rows))]
        if len(self._told) > _SHAPES:
            del self._told[next(iter(self._told))]

    def forget(self, job: str, shape: Shape) -> None:
        """Let go of what a job showed of a shape."""
        self._has_news = True
        for key in [key for key, rows in self._told.items() if key[0] == shape and job in rows]:
            del self._told[key][job]
            if not self._told[key]:
                del self._told[key]

    def look(self) -> None:
        """Bring `steps.seen` and `rows` up to what was told."""
        if not self._has_news:
            return
        self._has_news = False
        seen: dict[Shape, dict[float, tuple[float, float]]] = {}
        self.rows = {}
        for (shape, micro), row in self._believed().items():
            seen.setdefault(shape, {})[micro] = row.pass_s, row.step_s
            if shape not in self.rows or row.at_s > self.rows[shape].at_s:
                self.rows[shape] = row
        self.steps.seen = {shape: Timed(times) for shape, times in seen.items()}

    def _believed(self) -> dict[tuple[Shape, float], Row]:
        """Give the median row over jobs of each shape and micro-batch, in order of shape."""
        per_gpu: dict[str, list[float]] = {}
        for (_, micro), rows in self._told.items():
            for job, row in rows.items():
                per_gpu.setdefault(job, []).append(math.log(micro / row.step_s))
        if not per_gpu:
            return {}
        usual = median(median(mine) for mine in per_gpu.values())
        found = {}
        for key, rows in sorted(self._told.items(), key=lambda item: item[0]):
            off = math.log(_FAR)
            near = [r for r in rows.values() if abs(math.log(key[1] / r.step_s) - usual) <= off]
            if near:
                found[key] = _middle(near)
        return found


def _middle(rows: list[Row]) -> Row:
    passes = [row.pass_s for row in rows if not math.isnan(row.pass_s)]
    return Row(
        median(row.batch for row in rows),
        median(passes) if passes else math.nan,
        median(row.step_s for row in rows),
        max(row.at_s for row in rows),
    )


def level(own: Mapping[Shape, Row], kin: Mapping[Shape, Row]) -> float:
    """Give how many times as long a job's steps take as its kin's, where both ran; 1: unknown."""
    ratios = [
        (row.step_s / row.batch) / (kin[shape].step_s / kin[shape].batch)
        for shape, row in own.items()
        if shape in kin
    ]
    return median(ratios) if ratios else 1.0
