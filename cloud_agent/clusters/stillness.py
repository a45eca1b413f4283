"""Workers on a cluster that live and take no steps: noticed, and ended if that is wished for."""

import logging

from cloud_agent.clusters.attempt import Attempt
from cloud_agent.clusters.terms import Terms
from runtime.executors.stall import stalled_since_s

_log = logging.getLogger(__name__)


class Stillness:
    """Of one run. All calls come from one thread."""

    def __init__(self, terms: Terms, job: str) -> None:
        #: Since when it lives without a step; None: it moves, or never said steps.
        self.since_s: float | None = None
        #: Why and until when it shall end for that; None: it may go on.
        self.kill_reason: str | None = None
        self.end_by_s: float | None = None
        self._terms, self._job = terms, job
        self._trains_since_s: float | None = None

    def look(self, run: Attempt, now_s: float) -> None:
        """Notice a run that stands still, or moves again."""
        if run.trains and self._trains_since_s is None:
            self._trains_since_s = now_s
        moved_s = run.progress.moved_s
        if moved_s is None and run.started.step > 0:
            moved_s = self._trains_since_s  # one that has said steps before is expected to again
        before = self.since_s
        self.since_s = stalled_since_s(
            moved_s, run.progress.step_interval_s, self._terms.stuck_after_s, now_s
        )
        if self.since_s is None or before is not None:
            return
        said = f"alive, but no step after {run.step}"
        _log.warning("job %s, epoch %d: %s", self._job, run.started.epoch, said)
        if self._terms.end_stuck:
            self.kill_reason, self.end_by_s = f"stuck: {said}", now_s
