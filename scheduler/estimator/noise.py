"""How gradient noise grows with the batch: what jobs that are alike saw when they changed theirs.

Pollux takes the gradient noise scale as measured at the present batch for that of every batch. In
its own profiles it grows from the smallest batch to the largest: four times (CIFAR-10, ImageNet),
fifteen times (BERT) or hardly (YOLO, DeepSpeech). So a job on a small batch thinks too little of
large ones, and of many GPUs. A job that changes its batch sees the noise before and after at nearly
the same progress; that says how it grows in between.
"""

import math
from collections import deque
from statistics import median

import numpy as np
from numpy.typing import ArrayLike

from scheduler.policies.interface import Floats

#: Changes of a batch that are remembered, and how many must say something of a stretch.
_CHANGES, _ENOUGH = 64, 3
#: A batch that changed by less, in octaves, says nothing.
_LEAST = 0.1
#: Reports that a job's noise is the median of; and how many there must be at a batch.
_REPORTS, _FEWEST = 9, 3
#: A batch that changed by more, as a part, is another batch.
_SAME_BATCH = 0.01


class Trend:
    """The noise at other batches, from changes of the batch."""

    def __init__(self) -> None:
        """Begin with nothing seen: the noise is the same at all batches."""
        self.version = 0  #: Changes with everything that was seen.
        self._changes: deque[tuple[float, float, float]] = deque(maxlen=_CHANGES)
        self._known = 0
        self._octaves: Floats = np.zeros(2)
        self._log: Floats = np.zeros(2)

    def saw(self, before: float, after: float, ratio: float) -> None:
        """Take that the noise became so many times itself with a change of the batch.

        Args:
            before: Samples of a step.
            after: The same, now.
            ratio: Of the noise scale after to that before. What is no such figure is left out.
        """
        if not (0.0 < ratio < math.inf and before > 0.0 and after > 0.0):
            return
        low, high, grown = math.log2(before), math.log2(after), math.log2(ratio)
        if abs(high - low) > _LEAST:
            self._changes.append((min(low, high), max(low, high), grown / (high - low)))
            self.version += 1

    def times(self, batch: ArrayLike, reference: float) -> Floats:
        """Return how many times the noise at a reference batch it is at others."""
        self._know()
        here = np.interp(math.log2(reference), self._octaves, self._log)
        there = np.interp(np.log2(batch), self._octaves, self._log)
        found: Floats = np.exp2(there - here)
        return found

    def _know(self) -> None:
        """Find the slope of each octave: the median of those that span it, short ones first.

        Between 0 and 1: noise that falls is chance, and with more than 1 no batch is too large.
        """
        if self._known == self.version:
            return
        self._known = self.version
        low, high, slope = np.array(self._changes).T
        order = slope.argsort(kind="stable")
        low, high, slope = low[order], high[order], slope[order].clip(0.0, 1.0)
        # Some more at each end, where it goes on as elsewhere.
        self._octaves = np.arange(math.floor(low.min()) - 8, math.ceil(high.max()) + 9.0)
        middle = (self._octaves[:-1] + 0.5)[:, None]
        spans = (low <= middle) & (high >= middle)  # (octaves, changes)
        weight = (spans / (high - low)).cumsum(axis=1)
        medians = slope[(weight >= weight[:, -1:] / 2).argmax(axis=1)]
        known = np.count_nonzero(spans, axis=1) >= _ENOUGH
        usual = (slope[(len(slope) - 1) // 2] + slope[len(slope) // 2]) / 2
        slopes = np.where(known, medians, usual)
        self._log = np.concatenate(([0.0], slopes.cumsum()))


class Measured:
    """A job's gradient noise of late, and the batch that it was measured with."""

    def __init__(self) -> None:
        """Begin with no report."""
        self._batch = 0.0
        self._here: deque[float] = deque(maxlen=_REPORTS)
        self._before: tuple[float, float] | None = None  # batch and noise

    def show(self, batch: float, noise: float, trend: Trend) -> None:
        """Take a report of the noise scale, and tell the trend once it is known at a new batch."""
        if self._here and abs(batch / self._batch - 1.0) > _SAME_BATCH:
            if len(self._here) >= _FEWEST:
                self._before = self._batch, median(self._here)
            self._here.clear()
        self._batch = batch
        self._here.append(noise)
        if self._before is not None and len(self._here) == _FEWEST:
            before, was = self._before
            self._before = None
            if was > 0.0:
                trend.saw(before, batch, median(self._here) / was)

    def now(self) -> tuple[float, float] | None:
        """Give a batch and the noise scale there, in samples; None: it never said."""
        if self._before is not None:  # too few reports since its batch changed
            return self._before
        return (self._batch, median(self._here)) if self._here else None
