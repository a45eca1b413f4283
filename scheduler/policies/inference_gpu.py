"""The life of one inference GPU under DeepBoot: free, running, protected, lent (policies.md 10.3).

A pod that has answered stays warm on its GPU for a while, protected from training: the next
request of its app then starts at once. Each such hit protects it longer the next time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum


class Use(IntEnum):
    """What a GPU is used for."""

    FREE = 0  #: nothing; a pod may still be warm on it.
    RUN = 1  #: a pod that answers.
    PROTECT = 2  #: a warm pod; training must not have it.
    LENT = 3  #: a training job.


@dataclass(frozen=True, slots=True)
class Protection:
    """For how long a pod is protected: `base_s` and `hit_s` more per hit, at most `most_s`."""

    base_s: float = 30.0
    hit_s: float = 15.0
    most_s: float = 120.0
    times: float = 1.0  #: all of it, by this.

    def after(self, hits: int) -> float:
        """Return the seconds for a pod that was found protected so many times in a row."""
        return min(self.base_s + self.hit_s * hits, self.most_s) * self.times


@dataclass(frozen=True, slots=True)
class InferenceGpu:
    """One GPU; each transition returns the GPU after it.

    Raises:
        ValueError: A transition that its use does not allow; a bug of the caller.
    """

    use: Use = Use.FREE
    app: str = ""  #: whose pod is on it, warm or running.
    hits: int = 0  #: times in a row that the pod was found protected.
    until_s: float = 0.0  #: end of the protection.

    def request(self, app: str) -> "InferenceGpu":
        """Run a request of an app, on its warm pod or on a new one."""
        self._must(self.use in (Use.FREE, Use.PROTECT), "run a request")
        if self.use == Use.PROTECT and app != self.app:
            raise ValueError(f"a GPU protected for {self.app} cannot run {app}")
        hits = self.hits + 1 if self.use == Use.PROTECT else 0
        return InferenceGpu(Use.RUN, app, hits)

    def answered(self, now_s: float, protection: Protection) -> "InferenceGpu":
        """Protect the pod, which has answered."""
        self._must(self.use == Use.RUN, "end a request")
        return replace(self, use=Use.PROTECT, until_s=now_s + protection.after(self.hits))

    def at(self, now_s: float) -> "InferenceGpu":
        """Let a protection end that is over by now; the pod stays warm until somebody comes."""
        if self.use == Use.PROTECT and now_s >= self.until_s:
            return InferenceGpu(Use.FREE, self.app)
        return self

    def lend(self) -> "InferenceGpu":
        """Give it to training; the warm pod goes."""
        self._must(self.use == Use.FREE, "be lent")
        return InferenceGpu(Use.LENT)

    def give_back(self) -> "InferenceGpu":
        """Take it from training."""
        self._must(self.use == Use.LENT, "be given back")
        return InferenceGpu()

    def starts_warm(self, app: str) -> bool:
        """Whether a request of an app would start at once."""
        return self.app == app and self.use in (Use.FREE, Use.PROTECT)

    def _must(self, holds: bool, act: str) -> None:
        if not holds:
            raise ValueError(f"a GPU in {self.use.name} cannot {act}")


def pick(
    gpus: Sequence[InferenceGpu], app: str, trains: Sequence[int], loss: Sequence[float]
) -> int:
    """Choose the GPU for a request (ATS-I): warm, then empty, then another's warm, then lent.

    Args:
        gpus: All of them, as they are now.
        app: Whose request it is.
        trains: Training GPUs on the node of each.
        loss: Of each lent GPU: the speed-up that its job loses with it.

    Returns:
        The index: of warm pods the one with the most hits, protected ones first; of empty GPUs
        the one whose node trains least; of lent ones that of least loss, to be given back first.
        -1 if all run or are protected for others. The lowest index among equals.
    """
    ranks: list[tuple[int, float, int]] = []
    for at, gpu in enumerate(gpus):
        if gpu.starts_warm(app):
            ranks.append((0 if gpu.use == Use.PROTECT else 1, -gpu.hits, at))
        elif gpu.use == Use.FREE:
            ranks.append((3 if gpu.app else 2, trains[at], at))
        elif gpu.use == Use.LENT:
            ranks.append((4, loss[at], at))
    return min(ranks)[2] if ranks else -1
