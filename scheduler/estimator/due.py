"""Jobs that are to be looked at: a few with every tick, who came first before others."""

from collections.abc import Iterator

from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import TERMINAL


class Due:
    """Jobs to look at now, each once, and those to look at from a moment on."""

    def __init__(self) -> None:
        """Begin with none."""
        self._now: dict[str, None] = {}
        self._later: dict[str, float] = {}

    def add(self, *names: str) -> None:
        """Look at jobs as soon as it is their turn."""
        self._now |= dict.fromkeys(names)

    def later(self, name: str, at_s: float) -> None:
        """Look at a job when that moment has come."""
        self._later[name] = at_s

    def take(self, state: ClusterState, now_s: float, most: int) -> Iterator[Job]:
        """Give at most so many jobs whose turn it is; those that are over are passed by."""
        for name in [name for name, at_s in self._later.items() if at_s <= now_s]:
            del self._later[name]
            self._now[name] = None
        for name in list(self._now)[:most]:
            del self._now[name]
            job = state.jobs.get(name)
            if job is not None and job.state not in TERMINAL:
                yield job
