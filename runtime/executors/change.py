"""A change of size in place as the agent sees it, from the wish until it is over."""

import logging
from typing import Literal

from runtime.executors.live import Live
from runtime.executors.wishes import Wish

#: `freed`: what the gang gives up is free, but not all have met yet.
Outcome = Literal["waits", "freed", "done", "failed"]

_log = logging.getLogger(__name__)


class Change:
    """One change of size in place."""

    def __init__(self, live: Live, wish: Wish, patience_s: float) -> None:
        """Prepare it; the workers are asked at the first look.

        Args:
            live: The workers.
            wish: What they are to become.
            patience_s: How long it may take.
        """
        self.wish = wish
        self._live, self._patience_s = live, patience_s
        self._due_s: float | None = None

    def look(self, now_s: float, *, gone: bool) -> Outcome:
        """Say how it stands; why it failed goes to the log."""
        run, hindrance = self._live.run, None
        if self._due_s is None:
            self._due_s = now_s + self._patience_s
            # Of one that an earlier agent began, this is the reminder.
            hindrance = None if gone else run.resize(self.wish)
        resized = run.resized(self.wish.epoch)
        met = self._live.epoch == self.wish.epoch
        if met and resized.freed:
            return "done"
        if gone:
            hindrance = "its workers ended in the middle of it"
        elif now_s >= self._due_s:
            hindrance = f"it is not complete after {self._patience_s:g} s"
        hindrance = resized.hindrance or hindrance
        if hindrance is not None:
            _log.warning(
                "job %s, epoch %d: not resized in place but restarted: %s",
                run.order.job,
                self.wish.epoch,
                hindrance,
            )
            run.give_up_resize()
            return "failed"
        return "freed" if resized.freed else "waits"
