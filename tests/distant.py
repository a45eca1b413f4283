"""A store that cannot always be reached."""

from typing import Any

from runtime.checkpoints.store import Checkpoint, CheckpointError, CheckpointStore


class Distant(CheckpointStore):
    """A store beyond a link that comes and goes; at first it is away."""

    away = True
    #: How often something was to be stored.
    tries = 0

    def commit(self, *what: Any, **more: Any) -> Checkpoint:
        self.tries += 1
        if self.away:
            raise CheckpointError("no route to the store")
        return super().commit(*what, **more)

    def find(self, job: str, step: int, first_epoch: int = 0) -> Checkpoint | None:
        if self.away:
            raise CheckpointError("no route to the store")
        return super().find(job, step, first_epoch)
