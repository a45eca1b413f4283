"""Random factors of one run, for what nobody has measured.

They follow from the seed and the names of jobs and owners, so that a branch and its control of one
seed meet the same.
"""

from dataclasses import dataclass

from runtime.simulated import draw

#: A job whose speed nobody has measured may be so much faster or slower than it declares, as
#: simulated workers are (`runtime.simulated.Physics`).
SPEED_SPREAD = 0.07
#: One whose length nobody declared may be up to so many times as long or as short as expected.
LENGTH_SPREAD = 1.5
#: An owner whose need is taken from the day before may need so much more or less, hour by hour.
NEED_SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class Draws:
    """Factors of one run; of seed 0 all are 1."""

    seed: int = 0

    def speed(self, job: str) -> float:
        """Give the factor of a job's speed."""
        return 1.0 + SPEED_SPREAD * self._even("speed", job)

    def length(self, job: str) -> float:
        """Give the factor of a job's length."""
        return float(LENGTH_SPREAD ** self._even("length", job))

    def need(self, lender: str, at_s: float) -> float:
        """Give the factor of what an owner needs in an hour."""
        return 1.0 + NEED_SPREAD * self._even("need", lender, int(at_s // 3600.0))

    def _even(self, *key: object) -> float:
        """Give a number from -1 to 1."""
        return 2.0 * draw(self.seed, *key) - 1.0 if self.seed else 0.0
