"""What a figure does over a long run: its quarters, and the line through it."""

from typing import Any

import numpy as np


class Trend:
    """A series of samples; those before `warm_s` are left out of the trend."""

    def __init__(self, warm_s: float = 0.0) -> None:
        self._warm_s = warm_s
        self._at_s: list[float] = []
        self._values: list[float] = []

    def add(self, at_s: float, value: float) -> None:
        self._at_s.append(at_s)
        self._values.append(value)

    def summary(self) -> dict[str, Any]:
        """Give means of the first and the last quarter, the greatest value, and the slope."""
        at_s, values = np.array(self._at_s), np.array(self._values)
        warm = at_s >= self._warm_s
        if warm.sum() >= 2:
            at_s, values = at_s[warm], values[warm]
        quarter = max(1, len(values) // 4)
        slope = float(np.polyfit(at_s, values, 1)[0]) if len(values) > 1 else 0.0
        return {
            "samples": len(values),
            "first_quarter": round(float(values[:quarter].mean()), 3),
            "last_quarter": round(float(values[-quarter:].mean()), 3),
            "max": round(float(values.max()), 3),
            "per_hour": round(3600.0 * slope, 3),
        }
