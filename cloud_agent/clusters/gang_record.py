"""The record of each gang on a cluster, in a file that outlives the agent.

A record is written before the gang is submitted, and removed when the agent has stored how the gang
ended. So a restarted agent knows at once what may still run, without asking the cluster.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runtime.core import CheckpointDone, GangCompleted, GangFailed, GangStopped, Placement
from runtime.durable import write_json
from runtime.executors.folder import read_json
from schemas.commands import GangSpec

Final = GangCompleted | GangFailed | GangStopped
_FINALS: dict[str, type[Final]] = {
    one.__name__: one for one in (GangCompleted, GangFailed, GangStopped)
}
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
    final: Final | None = None

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
        write_json(file_of(folder, self.job), self._to_dict())

    def _to_dict(self) -> dict[str, Any]:
        started = self.started
        return {
            "job": self.job,
            "epoch": self.epoch,
            "placement": _plain(self.placement),
            "spec": self.spec.model_dump(mode="json"),
            "committed_step": self.committed_step,
            "started": None
            if started is None
            else {
                "epoch": started.epoch,
                "placement": _plain(started.placement),
                "step": started.step,
                "resume": None if started.resume is None else str(started.resume),
            },
            "anew_step": self.anew_step,
            "giving_up": self.giving_up,
            "left": self.left,
            "saved": None if self.saved is None else _saved_to_dict(self.saved),
            "final": None if self.final is None else _final_to_dict(self.final),
        }


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
        try:
            yield _from_dict(said)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: is not of this release ({error!r}); end what the cluster runs of the "
                "job, then move it away"
            ) from error


def forget(folder: Path, job: str) -> None:
    """Remove the file of a gang that has ended."""
    file_of(folder, job).unlink(missing_ok=True)


def file_of(folder: Path, job: str) -> Path:
    """Name the file of a gang."""
    return folder / f"{job}.json"


def _plain(placement: Placement) -> dict[str, list[int]]:
    return {node: list(gpus) for node, gpus in placement.items()}


def _placement(said: dict[str, list[int]]) -> Placement:
    return {node: tuple(gpus) for node, gpus in said.items()}


def _saved_to_dict(saved: CheckpointDone) -> dict[str, Any]:
    return {name: getattr(saved, name) for name in ("epoch", "step", "uri", "size_mib", "cost_s")}


def _final_to_dict(final: Final) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": type(final).__name__}
    if isinstance(final, GangFailed):
        return {**said, "error": final.error, "retriable": final.retriable, "epoch": final.epoch}
    return {**said, "step": final.step, "epoch": final.epoch}


def _from_dict(said: dict[str, Any]) -> GangRecord:
    job, started, final = said["job"], said["started"], said["final"]
    saved = said["saved"]
    return GangRecord(
        job,
        said["epoch"],
        _placement(said["placement"]),
        GangSpec.model_validate_json(json.dumps(said["spec"])),
        said["committed_step"],
        None
        if started is None
        else StartedRun(
            started["epoch"],
            _placement(started["placement"]),
            started["step"],
            None if started["resume"] is None else Path(started["resume"]),
        ),
        said["anew_step"],
        list(said["giving_up"]),
        [(epoch, step) for epoch, step in said["left"]],
        None if saved is None else CheckpointDone(job=job, **saved),
        None
        if final is None
        else _FINALS[final["kind"]](**{"job": job, **{k: final[k] for k in final if k != "kind"}}),
    )
