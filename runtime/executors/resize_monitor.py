"""A change of size in place as the agent sees it, from its request until it is done or failed."""

import logging
from typing import Literal

from runtime.executors.live_run import LiveRun
from runtime.executors.records import ResizeRequest

#: `freed`: the GPUs that are given up are free, but not all workers have joined the new size yet.
Outcome = Literal["waits", "freed", "done", "failed"]

_log = logging.getLogger(__name__)


class ResizeMonitor:
    """Follows one change of size in place."""

    def __init__(self, live: LiveRun, request: ResizeRequest, timeout_s: float) -> None:
        """Prepare it; the supervisor is asked at the first `look`.

        Args:
            live: The workers.
            request: The size that they are to have.
            timeout_s: How long the change may take.
        """
        self.request = request
        self._live, self._timeout_s = live, timeout_s
        self._deadline_s: float | None = None

    def look(self, now_s: float, *, gone: bool) -> Outcome:
        """Say how far the change is; the reason of a failure goes to the log."""
        run, blocked_reason = self._live.run, None
        if self._deadline_s is None:
            self._deadline_s = now_s + self._timeout_s
            # This also repeats a request that an agent made before it was restarted.
            blocked_reason = None if gone else run.resize(self.request)
        status = run.resize_status(self.request.epoch)
        joined = self._live.epoch == self.request.epoch
        if joined and status.freed:
            return "done"
        if gone:
            blocked_reason = "its workers ended in the middle of it"
        elif now_s >= self._deadline_s:
            blocked_reason = f"it is not complete after {self._timeout_s:g} s"
        blocked_reason = status.blocked_reason or blocked_reason
        if blocked_reason is not None:
            _log.warning(
                "job %s, epoch %d: not resized in place but restarted: %s",
                run.order.job,
                self.request.epoch,
                blocked_reason,
            )
            run.give_up_resize()
            return "failed"
        return "freed" if status.freed else "waits"
