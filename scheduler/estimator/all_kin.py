"""Which jobs of a cell are kin: those of one tenant, model and batch.

Estimator and totals share it, so that neither need refer to the other: what is in a cycle outlives
the leader that learned it, see `garbage`.
"""

from scheduler.core.state import ClusterState, Job
from scheduler.estimator.kin import Kin

#: Kin remembered; more where more jobs are.
_MOST = 1024
#: The name of models that have none (`tidegate submit`): such jobs are not alike.
_UNNAMED = "unnamed"


class AllKin:
    """The kin of one cell; of too many, those that nobody was of for longest are forgotten."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kin: dict[tuple[str, str, float], Kin] = {}

    def of(self, state: ClusterState, job: Job) -> Kin:
        """Give what jobs like this one showed."""
        model = job.id if job.model == _UNNAMED else job.model
        key = job.tenant, model, job.samples_per_step
        kin = self._kin.pop(key, None) or Kin()
        self._kin[key] = kin  # the newest is the last
        if len(self._kin) > max(_MOST, 2 * len(state.jobs)):
            del self._kin[next(iter(self._kin))]
        return kin
