"""A request to resize a gang in place, stored in the run folder for the next agent.

Each size of a run has a generation: the epoch of the allocation that requested it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.core import Placement
from runtime.core.state import without
from runtime.executors.records import from_json, to_json


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
        return to_json(self)

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> "ResizeRequest":
        """Read what `to_dict` gave.

        Raises:
            ValueError: it is something else.
        """
        return from_json(cls, said)
