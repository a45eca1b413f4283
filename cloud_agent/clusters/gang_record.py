"""The record of each gang on a cluster, in a file that outlives the agent.

A record is written before the gang is submitted, and removed when the agent has stored how the gang
ended. So a restarted agent knows at once what may still run, without asking the cluster.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from runtime.core import CheckpointDone, GangCompleted, GangFailed, GangStopped, Placement
from runtime.durable import write_json
from runtime.executors.folder import read_json
from runtime.executors.records import from_json, to_json
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
#: How many reports of left workers are repeated after a restart: the newest.
_LEFT_MAX = 64


@dataclass(slots=True)
class StartedRun:
    """A run that was submitted to the cluster, or is about to be."""

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
    #: What the cluster runs, perhaps still under an older epoch; None: nothing.
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

    def move_end(self, epoch: int) -> bool:
        """Put its end under the epoch of an order that came after it; False if there is none.

        The core has taken that epoch, and ignores an end that is reported under an earlier one.
        """
        if self.final is None or epoch <= self.final.epoch:
            return False
        self.epoch, self.final = epoch, replace(self.final, epoch=epoch)
        return True

    def write(self, folder: Path) -> None:
        """Write it down.

        Raises:
            OSError: the shared folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        del self.left[:-_LEFT_MAX]
        said = to_json(self)
        if self.final is not None:
            said["final"]["kind"] = type(self.final).__name__
        if self.saved is not None:
            del said["saved"]["job"]  # as earlier releases wrote it
        write_json(file_of(folder, self.job), said)


def load(folder: Path) -> Iterator[GangRecord]:
    """Give the records that an earlier agent left.

    Raises:
        ValueError: a file is not one of this release.
    """
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        said = read_json(path)
        if said is None:
            raise ValueError(
                f"{path}: cannot be read; end what the cluster runs of the job, then move it away"
            )
        for part in ("saved", "final"):
            if isinstance(said.get(part), dict):
                said[part]["job"] = said.get("job")
        try:
            yield from_json(GangRecord, said)
        except ValueError as error:
            raise ValueError(
                f"{path}: is {error}; end what the cluster runs of the job, then move it away"
            ) from error


def forget(folder: Path, job: str) -> None:
    """Remove the file of a gang that has ended."""
    file_of(folder, job).unlink(missing_ok=True)


def file_of(folder: Path, job: str) -> Path:
    """Name the file of a gang."""
    return folder / f"{job}.json"
