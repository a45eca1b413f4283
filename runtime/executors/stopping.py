"""The wish that a gang leaves for good: said again, it only ever becomes sooner and harder."""

import math
from dataclasses import dataclass

from runtime.core import StopWorkers


@dataclass(frozen=True, slots=True)
class Stop:
    """By when, and whether after a checkpoint."""

    deadline_s: float = math.inf
    saves: bool = True

    def hurried(self, order: StopWorkers, now_s: float) -> "Stop":
        """Give it as it is after one more order."""
        deadline_s = min(self.deadline_s, now_s + order.grace_s)
        return Stop(deadline_s, self.saves and order.checkpoint)

    def upload_until_s(self, now_s: float, timeout_s: float) -> float:
        """Until when the last checkpoint may be uploaded: `timeout_s` beyond the grace."""
        return self.deadline_s + timeout_s if self.saves else now_s
