"""Notices gangs that take no steps, and says that they are to end if the options say so."""

import logging

from runtime.executors.sections import WorkerOptions

#: A gang is stuck only after this many of its usual step intervals.
_INTERVALS = 20
#: Of a longer time between two looks only so much counts: the machine was suspended, or its clock
#: was set.
_GAP_MAX_S = 60.0

_log = logging.getLogger(__name__)


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
        self._looked_s: float | None = None
        self._moved_s: float | None = None
        #: Since its last step, how much of the time does not count.
        self._unseen_s = 0.0

    def look(
        self,
        now_s: float,
        *,
        moved_s: float | None,
        step_interval_s: float | None,
        begun_s: float | None,
        step: int,
        epoch: int,
    ) -> None:
        """Notice that it takes no steps, or takes steps again.

        Args:
            now_s: The present moment.
            moved_s: When it took its last step, or should have; None: it never reported one.
            step_interval_s: What a step usually takes; None: not known.
            begun_s: When its workers had begun; None: they have not, as far as is known.
            step: Its last step, and
            epoch: its epoch, for people.
        """
        before = self.since_s
        if moved_s is None and self._is_resumed:
            moved_s = begun_s  # a job that reported steps before is expected to again
        least_s = max(self._options.stuck_after_s, _INTERVALS * (step_interval_s or 0.0))
        gap_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        if moved_s != self._moved_s:
            self._unseen_s = 0.0
        else:
            self._unseen_s += max(0.0, gap_s - _GAP_MAX_S)
        self._looked_s, self._moved_s = now_s, moved_s
        is_stuck = moved_s is not None and now_s - moved_s - self._unseen_s >= least_s
        self.since_s = moved_s if is_stuck else None
        if not is_stuck or before is not None:
            return
        said = f"alive, but no step after {step}"
        _log.warning("job %s, epoch %d: %s", self._job, epoch, said)
        if self._options.end_stuck:
            self.kill_reason, self.end_by_s = f"stuck: {said}", now_s
