"""What a run executes, stored in its folder for the next agent."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.core import Placement
from runtime.executors.records import from_json, to_json
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
        return to_json(self)

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> "Order":
        """Read what `to_dict` gave.

        Raises:
            ValueError: it is something else.
        """
        return from_json(cls, said)
