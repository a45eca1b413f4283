"""The record of a run on Kubernetes, in its run folder, which outlives the agent.

A Job is created suspended; it is unsuspended only after this file was written. So a run without a
record has never run, and a run with a record whose Job is missing must not get another Job.
"""

from dataclasses import dataclass
from pathlib import Path

from runtime.durable import write_json
from runtime.executors.attempt import Outcome
from runtime.executors.folder import read_json
from runtime.executors.records import from_json, to_json

_FILE = "kubernetes.json"


@dataclass(slots=True)
class Record:
    """One run."""

    #: The Job's uid: another Job of the same name is not ours.
    uid: str
    #: Whether it was unsuspended.
    released: bool = False
    #: Whether the agent deleted its Pods.
    sent_away: bool = False
    #: Why it failed, and whether a retry makes sense.
    cause: str | None = None
    retriable: bool = True
    #: How many checkpoints were asked for; a key of the file, so it keeps this name.
    wishes: int = 0
    #: How it ended.
    outcome: Outcome | None = None

    def write(self, folder: Path) -> None:
        """Write it down.

        Raises:
            OSError: the shared folder cannot be written.
        """
        said = to_json(self)
        if self.outcome is not None:
            del said["outcome"]["ran"]  # who has a record did, and an earlier release reads it
        write_json(folder / _FILE, said)


def load(folder: Path) -> Record | None:
    """Give what was written down; None: nothing was.

    Raises:
        OSError: the shared folder does not answer, or holds something else.
    """
    said = read_json(folder / _FILE)
    if said is None:
        if (folder / _FILE).exists():
            raise OSError(f"{folder / _FILE}: cannot be read; move it away if it is damaged")
        return None
    try:
        return from_json(Record, said)
    except ValueError as error:
        raise OSError(f"{folder / _FILE}: is {error}; move it away") from None
