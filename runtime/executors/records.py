"""Records of gangs in files, which outlive the agent: dataclasses as JSON, read by their types.

A run has an `Order`, and perhaps a `ResizeRequest`. Each size of a run has a generation: the epoch
of the allocation that requested it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from runtime.core import Placement
from runtime.core.state import without
from schemas.commands import GangSpec
from schemas.parse import first_error

Record = TypeVar("Record")
#: By type, how it is written and read; made once.
_form: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def to_json(record: object) -> dict[str, Any]:
    """Give a record as JSON can hold it."""
    said: dict[str, Any] = _form(type(record)).dump_python(record, mode="json")
    return said


def from_json(kind: type[Record], said: Mapping[str, Any]) -> Record:
    """Read what `to_json` gave; keys that are none of its fields are left out.

    Raises:
        ValueError: it is something else.
    """
    try:
        read: Record = _form(kind).validate_json(json.dumps(said), strict=True)
    except ValidationError as error:
        wrong = first_error(error)
        raise ValueError(f"not one of this release: {wrong.field} {wrong.reason}") from None
    return read


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
