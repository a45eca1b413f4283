"""A request to resize a gang in place, stored in the run folder for the next agent.

Each size of a run has a generation: the epoch of the allocation that requested it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.core import Placement
from runtime.core.state import without
from runtime.untrusted_files import fits


def placement_of(said: Any) -> Placement:
    """Read a placement as JSON has it.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(said, dict) or not all(fits(gpus, [int]) for gpus in said.values()):
        raise ValueError(f"placement: {said!r} is none")
    return {node: tuple(gpus) for node, gpus in said.items()}


@dataclass(frozen=True, slots=True)
class ResizeStatus:
    """How far the supervisor is with a change of size in place."""

    #: Whether the workers that are to leave have left, so that their GPUs are free.
    freed: bool = False
    #: Why it refused to change the size, if it did.
    blocked_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ResizeRequest:
    """The GPUs that a running gang is to have from now on."""

    epoch: int
    placement: Placement
    #: What was in force when it was requested.
    epoch_before: int
    placement_before: Placement
    #: Epochs whose given-up GPUs had been reported as free by then.
    left: tuple[int, ...] = ()
    #: Whether the workers were asked to leave instead; what they report of this size is ignored.
    given_up: bool = False

    @property
    def gives_up_gpus(self) -> bool:
        """Whether the gang gives up GPUs."""
        return bool(without(self.placement_before, self.placement))

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        return {
            "epoch": self.epoch,
            "placement": {node: list(gpus) for node, gpus in self.placement.items()},
            "epoch_before": self.epoch_before,
            "placement_before": {n: list(gpus) for n, gpus in self.placement_before.items()},
            "left": list(self.left),
            "given_up": self.given_up,
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> "ResizeRequest":
        """Read what `to_dict` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(
                said["epoch"],
                placement_of(said["placement"]),
                said["epoch_before"],
                placement_of(said["placement_before"]),
                tuple(said["left"]),
                said["given_up"],
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"resize: not one of this release: {error!r}") from error
