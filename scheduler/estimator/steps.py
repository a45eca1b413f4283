"""Steps that were timed, by the GPUs they ran on, and what they say of shapes not seen."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from scheduler.estimator.goodput import Observations, StepTime, fit
from scheduler.policies.interface import Floats

#: Times that changed by less, as a logarithm, need no other fit.
_MOVED = 0.2
#: Nodes, and GPUs on them in all.
Shape = tuple[int, int]


class Timed:
    """Steps that were timed on one shape. m micro-batches, ascending."""

    def __init__(self, times: Mapping[float, tuple[float, float]]) -> None:
        """Take by micro-batch the seconds of a pass (NaN: not known) and of a step."""
        ordered = sorted(times)
        self.micro: Floats = np.array(ordered, dtype=np.float64)
        both = np.array([times[micro] for micro in ordered])
        self.pass_s, self.step_s = both[:, 0], both[:, 1]


class Seen:
    """A fitted step time, put right by what was seen.

    Where steps were timed, what the fit is off by stays as a factor, between micro-batches on a
    line. For other shapes the factor is the mean at that number of GPUs, on a line between numbers
    along their logarithm. If it is bold, exchanging gradients is taken to cost no more beyond the
    largest number that was seen than there, so that a policy tries it.
    """

    def __init__(
        self, time: StepTime, seen: Mapping[Shape, Timed], *, is_bold: bool = False
    ) -> None:
        """Put `time` right by what was seen, which is not nothing."""
        self._time, self._seen, self._is_bold = time, seen, is_bold
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
            if len(timed.micro) > 1 and not np.isnan(timed.pass_s).any():
                forth = np.interp(micro, timed.micro, timed.pass_s)
        else:
            off = np.interp(np.log(gpus), np.log(self._gpus), self._mean)
        if self._is_bold and gpus > self._gpus[-1]:
            nodes, gpus = self._most_nodes, int(self._gpus[-1])
        found: Floats = extra * forth + self._time.step_s(nodes, gpus, micro) * np.exp(off)
        return found


class Steps:
    """What was seen of jobs that are alike, and the step time fitted to it."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.seen: dict[Shape, Timed] = {}
        self.time: StepTime | None = None
        self._fitted: dict[Shape, Timed] = {}

    @property
    def says_more(self) -> bool:
        """Whether a fit now would say more than the last one: more shapes, or other times.

        One more shape of many says little of others: fitting again would only cost time.
        """
        if len(self.seen) >= 1.25 * len(self._fitted):
            return bool(self.seen)
        both = ((timed, self._fitted[s]) for s, timed in self.seen.items() if s in self._fitted)
        return any(_moved(now, before) for now, before in both)

    def fit(self) -> None:
        """Fit a step time to what was seen, which is not nothing.

        Raises:
            ModuleNotFoundError: scipy is not installed.
        """
        rows = tuple(
            (nodes, gpus, *each)
            for (nodes, gpus), timed in self.seen.items()
            for each in zip(timed.micro, timed.pass_s, timed.step_s, strict=True)
        )
        self._fitted, self.time = dict(self.seen), None
        self.time = _fitted(rows)


def _moved(now: Timed, before: Timed) -> bool:
    """Whether steps take a fifth more or less than they took."""
    if now is before:
        return False
    ratio = now.step_s / np.interp(now.micro, before.micro, before.step_s)
    return bool((np.abs(np.log(ratio)) > _MOVED).any())


@lru_cache(maxsize=4096)  # runs of one process often see the same shapes first
def _fitted(rows: tuple[tuple[float, ...], ...]) -> StepTime:
    nodes, gpus, micro, pass_s, step_s = np.array(rows).T
    return fit(Observations(nodes, gpus, micro, pass_s, step_s))
