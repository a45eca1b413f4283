"""The record of each gang on a cluster, in a file that outlives the agent.

A record is written before the gang is submitted, and removed when the agent has stored how the gang
ended. So a restarted agent knows at once what may still run, without asking the cluster.
"""

from collections.abc import Iterator
from pathlib import Path

from runtime.durable import write_json
from runtime.executors.folder import read_json
from runtime.executors.gang_record import GangRecord
from runtime.executors.records import from_json, to_json

#: How many reports of left workers are repeated after a restart: the newest.
_LEFT_MAX = 64


def write(record: GangRecord, folder: Path) -> None:
    """Write a gang's record down.

    Raises:
        OSError: the shared folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    del record.left[:-_LEFT_MAX]
    said = to_json(record)
    if record.final is not None:
        said["final"]["kind"] = type(record.final).__name__
    if record.saved is not None:
        del said["saved"]["job"]  # as earlier releases wrote it
    write_json(file_of(folder, record.job), said)


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
