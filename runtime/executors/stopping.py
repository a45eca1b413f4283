"""A request to stop a gang. A repeated one can only bring the deadline forward."""

import math
from dataclasses import dataclass

from runtime.core import StopWorkers


@dataclass(frozen=True, slots=True)
class StopRequest:
    """By when the workers must be gone, and whether they save first."""

    deadline_s: float = math.inf
    saves: bool = True

    def tightened(self, order: StopWorkers, now_s: float) -> "StopRequest":
        """Give the request after one more order."""
        deadline_s = min(self.deadline_s, now_s + order.grace_s)
        return StopRequest(deadline_s, self.saves and order.checkpoint)

    def upload_until_s(self, now_s: float, timeout_s: float) -> float:
        """Until when the last checkpoint may be uploaded: `timeout_s` beyond the grace."""
        return self.deadline_s + timeout_s if self.saves else now_s
