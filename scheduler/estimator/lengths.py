"""How long jobs will be that declared no total, from those that are like them.

A job that came to some step will go on for the mean of what its kin went on for that came as far:
their mean residual life. Kin that run on, further than it, count with what is known of them, that
they take at least so much (Kaplan and Meier 1958, "Nonparametric estimation from incomplete
observations"). Kin that failed or were cancelled say nothing.

Where nobody has ended yet, what was attained is all that is known. Whoever of the kin is furthest,
the job itself or another, is taken to end at the next level: the least length times a power of
`GROWS`. Levels let a job go on for a while with what it is taken to have left, as those of Tiresias
do (Gu et al., NSDI '19, section 3.2), and kin are of one level, so that the one in front is the
first to end and to show how long they are.
"""

from collections.abc import Callable
from statistics import median

from scheduler.core.stimuli import Length

#: From one level to the next.
GROWS = 4.0
#: Kin remembered, of those that ended the last, of those that run the furthest.
_KIN = 64
#: Kin that took so many times the median of those that ended are not believed.
_FAR = 10.0
#: The furthest is news to those behind when it is further by so much, as a part.
_FURTHER = 0.1


class Lengths:
    """How far jobs came that are alike. All figures in one unit of work, such as steps."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._ended: dict[str, float] = {}  # by job, the newest last
        self._running: dict[str, float] = {}
        self._least = 0.0  # nobody is remembered with less
        self._furthest = 0.0
        self._is_news = False

    def came(self, job: str, done: float) -> None:
        """Take note of how far a job is that runs."""
        if job not in self._running and len(self._running) == _KIN and done <= self._least:
            return  # as most jobs, it has not begun
        self._running[job], self._least = done, min(self._least, done)
        if len(self._running) > _KIN:
            del self._running[min(self._running, key=lambda name: self._running[name])]
            self._least = min(self._running.values())
        if done > (1.0 + _FURTHER) * self._furthest:
            self._furthest, self._is_news = done, True

    def ended(self, job: str, took: float) -> None:
        """Take note of what a job took in all that ended well."""
        self._running.pop(job, None)
        if took > 0.0:
            self._ended[job] = took
            self._is_news = True
        if len(self._ended) > _KIN:
            del self._ended[next(iter(self._ended))]

    def gone(self, job: str) -> None:
        """Let go of a job that will not go on, or whose steps did not count."""
        came = self._running.pop(job, 0.0)
        if came and came >= max(self._running.values(), default=0.0):
            # Whoever waited behind it hears so, and of who is in front now.
            self._furthest, self._is_news = max(self._running.values(), default=0.0), True

    def only(self, is_here: Callable[[str], bool]) -> None:
        """Let go of jobs that are not there any more, whose end nobody reported."""
        for job in [job for job in self._running if not is_here(job)]:
            self.gone(job)

    def news(self) -> bool:
        """Whether all jobs are to be looked at anew, not only those that went on; asked once."""
        found, self._is_news = self._is_news, False
        return found

    def left(self, job: str, done: float, least: float) -> Length:
        """Say what a job has left.

        Args:
            job: Which; what itself did is no evidence.
            done: What it did so far.
            least: What a job takes that nothing is known of, at least; above 0.
        """
        most = _FAR * median(self._ended.values()) if self._ended else float("inf")
        ended = [took for took in self._ended.values() if done < took <= most]
        running = [
            came for name, came in self._running.items() if name != job and done < came <= most
        ]
        furthest = max([done, *running])
        marks = sorted([*((end, False) for end in ended), *((came, True) for came in running)])
        if not ended or furthest > max(ended):
            marks = [*marks[:-1], (_level(furthest, least), False)]
        took = [min(ended), max(ended)] if ended else []
        left = _mean_residual(done, marks)
        return Length(left=left, ended=len(ended), took=took, running=len(running))


def _level(done: float, least: float) -> float:
    """Give the first level above `done`."""
    level = least
    while level <= done:
        level *= GROWS
    return level


def _mean_residual(done: float, marks: list[tuple[float, bool]]) -> float:
    """Integrate the share of kin that go on, over what they do beyond `done`.

    Args:
        done: Where to begin.
        marks: Of each, ascending, where it ended, or where it runs now and that it does.
    """
    left, share, before = 0.0, 1.0, done
    for at, (mark, runs) in enumerate(marks):
        left += share * (mark - before)
        before = mark
        if not runs:
            share *= 1.0 - 1.0 / (len(marks) - at)
    return left
