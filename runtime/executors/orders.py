"""What a run executes, stored in its folder for the next agent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.core import Placement
from runtime.executors.resize_request import placement_of
from schemas.commands import GangSpec


@dataclass(frozen=True, slots=True)
class Order:
    """What a run executes."""

    job: str
    epoch: int
    placement: Placement
    spec: GangSpec
    #: The step it goes on from.
    step: int
    #: The newest step that was durable when it began.
    committed_step: int
    #: The checkpoint of `step` on this machine.
    resume: Path | None = None
    #: Epochs whose workers had left before this one began.
    left: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        return {
            "job": self.job,
            "epoch": self.epoch,
            "placement": {node: list(gpus) for node, gpus in self.placement.items()},
            "spec": self.spec.model_dump(mode="json"),
            "step": self.step,
            "committed_step": self.committed_step,
            "resume": None if self.resume is None else str(self.resume),
            "left": list(self.left),
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> "Order":
        """Read what `to_dict` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(
                said["job"],
                said["epoch"],
                placement_of(said["placement"]),
                GangSpec.model_validate_json(json.dumps(said["spec"])),
                said["step"],
                said["committed_step"],
                None if said["resume"] is None else Path(said["resume"]),
                tuple(said["left"]),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"order: not one of this release: {error!r}") from error
