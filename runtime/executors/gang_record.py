"""What is known and wanted of one gang: all that the next agent needs to go on with it.

Where gangs run on a cluster, it is a file. On one machine the run folders say the same.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from runtime.core import CheckpointDone, GangCompleted, GangFailed, GangStopped, Placement
from schemas.commands import GangSpec


def _kind(final: Any) -> str:
    return str(final.get("kind")) if isinstance(final, dict) else type(final).__name__


Final = GangCompleted | GangFailed | GangStopped
_Final = Annotated[
    Annotated[GangCompleted, Tag("GangCompleted")]
    | Annotated[GangFailed, Tag("GangFailed")]
    | Annotated[GangStopped, Tag("GangStopped")],
    Discriminator(_kind),
]


@dataclass(slots=True)
class StartedRun:
    """A run that was started, or is about to be."""

    epoch: int
    placement: Placement
    #: The step it goes on from.
    step: int
    #: The checkpoint of that step.
    resume: Path | None


@dataclass(slots=True)
class GangRecord:
    """What is known and wanted of one gang."""

    job: str
    #: The newest epoch that was ordered, and the GPUs of that epoch.
    epoch: int
    placement: Placement
    spec: GangSpec
    #: The newest step that is durable.
    committed_step: int
    #: The last run that was started, perhaps still under an older epoch; None: there was none.
    started: StartedRun | None = None
    #: The step to start again from, whatever `started` still saves; None: it goes on.
    anew_step: int | None = None
    #: Epochs whose GPUs are given up and whose workers have not left yet.
    giving_up: list[int] = field(default_factory=list)
    #: Epochs whose workers have left, with the step they had reached.
    left: list[tuple[int, int]] = field(default_factory=list)
    #: The last durable checkpoint, until the agent has stored that it is.
    saved: CheckpointDone | None = None
    #: How it ended, until that is stored.
    final: _Final | None = None
