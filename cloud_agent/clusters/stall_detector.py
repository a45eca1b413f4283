"""Notices gangs on a cluster that take no steps, and has them end if the options say so."""

import logging

from cloud_agent.clusters.attempt import Attempt
from cloud_agent.clusters.options import ClusterOptions
from runtime.executors.stall import stalled_since_s

_log = logging.getLogger(__name__)


class StallDetector:
    """Watches one run. All calls come from one thread."""

    def __init__(self, options: ClusterOptions, job: str) -> None:
        #: Since when it has taken no step; None: it takes steps, or never reported any.
        self.since_s: float | None = None
        #: Why and by when it must end because of that; None: it goes on.
        self.kill_reason: str | None = None
        self.end_by_s: float | None = None
        self._options, self._job = options, job
        self._trains_since_s: float | None = None

    def look(self, run: Attempt, now_s: float) -> None:
        """Notice a run that takes no steps, or takes steps again."""
        if run.trains and self._trains_since_s is None:
            self._trains_since_s = now_s
        moved_s = run.progress.moved_s
        if moved_s is None and run.started.step > 0:
            moved_s = self._trains_since_s  # a job that reported steps before is expected to again
        before = self.since_s
        self.since_s = stalled_since_s(
            moved_s, run.progress.step_interval_s, self._options.stuck_after_s, now_s
        )
        if self.since_s is None or before is not None:
            return
        said = f"alive, but no step after {run.step}"
        _log.warning("job %s, epoch %d: %s", self._job, run.started.epoch, said)
        if self._options.end_stuck:
            self.kill_reason, self.end_by_s = f"stuck: {said}", now_s
