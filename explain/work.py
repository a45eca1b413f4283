"""A job's work in what people count: steps of its program, or units of simulated work.

The simulator cuts a unit of a job's work, such as an iteration of its trace, into thousands of
steps, so that the scheduler sees parts of one. Nobody counts in those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from explain.shares import few

#: Steps of fewer samples are the simulator's: no program counts so.
_PART = 1 / 64


@dataclass(frozen=True, slots=True)
class Work:
    """How to write the steps of a job whose steps take so many samples each."""

    samples_per_step: float = 1.0

    @property
    def is_simulated(self) -> bool:
        """Whether its steps are parts of a unit of simulated work."""
        return self.samples_per_step < _PART

    def place(self, step: float) -> str:
        """Write how far it is."""
        if self.is_simulated:
            return f"unit {self.count(step)} of its work"
        return f"step {self.count(step)}"

    def amount(self, steps: float) -> str:
        """Write so many steps."""
        return f"{self.count(steps)} {'units of work' if self.is_simulated else 'steps'}"

    def speed(self, steps_per_s: float) -> str:
        """Write how fast it is."""
        if self.is_simulated:
            return f"{few(steps_per_s * self.samples_per_step)} units/s"
        return f"{few(steps_per_s)} steps/s"

    def count(self, steps: float) -> str:
        """Write the number alone."""
        return few(steps * self.samples_per_step) if self.is_simulated else f"{steps:,.0f}"


def work_of(spec: Mapping[str, Any]) -> Work:
    """Say how the steps of a job are written, by what its tenant asked for."""
    return Work(spec.get("samples_per_step", 1.0))


#: Of a job of which nothing is known.
STEPS = Work()
#: What a unit of simulated work is.
UNIT = (
    "A unit of a simulated job's work is an iteration, as its workload counts them; where that "
    "counts none, a second as it was recorded, or on one GPU."
)
