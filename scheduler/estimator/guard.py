"""An estimator that harms nobody: what it raises is counted and logged, and the cell goes on."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from scheduler.core.state import ClusterState
from scheduler.core.stimuli import CurvesLearned, LengthsLearned
from scheduler.estimator.estimator import Estimator
from schemas.events import EventData, JobCancelled
from schemas.requests import CancelJob, Request, SubmitJob

_log = logging.getLogger(__name__)
#: Of failures, the first is logged, and then one in so many.
_LOGGED = 100
_Made = TypeVar("_Made")


class Learning:
    """What a service learns, if it does."""

    def __init__(self, *, on: bool = True) -> None:
        """Begin with nothing; `on`: whether to learn at all."""
        self.failures = 0
        self._on = on
        self._estimator: Estimator | None = None

    def begin(self, state: ClusterState) -> None:
        """Learn of the jobs of a state from now on."""
        if self._on:
            self._estimator = self._try(Estimator, state) or self._estimator

    def hear(self, state: ClusterState, data: EventData | Request, now_s: float) -> None:
        """Take an event, or a person's request, before the engine decides on it."""
        if isinstance(data, Request):
            asked = data.args
            if isinstance(asked, SubmitJob):
                data = asked.spec
            elif isinstance(asked, CancelJob):
                data = JobCancelled(job=asked.job)
            else:
                return
        if self._estimator is not None:
            self._try(self._estimator.hear, state, data, now_s)

    def learn(self, state: ClusterState, now_s: float) -> None:
        """Do a part of what there is to do."""
        if self._estimator is not None:
            self._try(self._estimator.learn, state, now_s)

    def news(self) -> list[CurvesLearned | LengthsLearned]:
        """Give what was learned since this was asked last, if anything was."""
        if self._estimator is None:
            return []
        curves, lengths = self._estimator.take(), self._estimator.take_lengths()
        return [
            *([CurvesLearned(curves)] if curves else ()),
            *([LengthsLearned(lengths)] if lengths else ()),
        ]

    def _try(self, part: Callable[..., _Made], *given: Any) -> _Made | None:
        try:
            return part(*given)
        except Exception:  # noqa: BLE001 - it shall not stop the service
            if self.failures % _LOGGED == 0:
                _log.exception("cannot learn from what was reported; please report this")
            self.failures += 1
            return None
