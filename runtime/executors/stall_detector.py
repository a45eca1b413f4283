"""Notices gangs that take no steps, and says that they are to end if the options say so."""

import logging
from typing import Protocol

from runtime.executors.sections import WorkerOptions

#: A gang is stuck only after this many of its usual step intervals.
_INTERVALS = 20

_log = logging.getLogger(__name__)


class Steps(Protocol):
    """What is known of a run's steps."""

    @property
    def moved_s(self) -> float | None:
        """When it took its last step, or should have; None: it never reported one."""
        ...

    @property
    def step_interval_s(self) -> float | None:
        """What a step usually takes; None: not known."""
        ...


class StallDetector:
    """Watches one run. All calls come from one thread."""

    def __init__(self, options: WorkerOptions, job: str, *, is_resumed: bool = False) -> None:
        """Watch a run of this job; one that is resumed has reported steps before."""
        #: Since when it has taken no step; None: it takes steps, or never reported any.
        self.since_s: float | None = None
        #: Why and by when it must end because of that; None: it goes on.
        self.kill_reason: str | None = None
        self.end_by_s: float | None = None
        self._options, self._job, self._is_resumed = options, job, is_resumed

    def look(
        self, steps: Steps, now_s: float, *, begun_s: float | None, step: int, epoch: int
    ) -> bool:
        """Notice that it takes no steps, or takes steps again; give whether it must end now.

        Args:
            steps: What is known of its steps.
            now_s: The present moment.
            begun_s: When its workers had begun; None: they have not, as far as is known.
            step: Its last step, and
            epoch: its epoch, for people.
        """
        before, moved_s = self.since_s, steps.moved_s
        if moved_s is None and self._is_resumed:
            moved_s = begun_s  # a job that reported steps before is expected to again
        least_s = max(self._options.stuck_after_s, _INTERVALS * (steps.step_interval_s or 0.0))
        is_stuck = moved_s is not None and now_s - moved_s >= least_s
        self.since_s = moved_s if is_stuck else None
        if not is_stuck or before is not None:
            return False
        said = f"alive, but no step after {step}"
        _log.warning("job %s, epoch %d: %s", self._job, epoch, said)
        if self._options.end_stuck:
            self.kill_reason, self.end_by_s = f"stuck: {said}", now_s
        return self._options.end_stuck
