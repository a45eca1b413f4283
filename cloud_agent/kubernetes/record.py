"""The record of a run on Kubernetes, in its run folder, which outlives the agent.

A Job is created suspended; it is unsuspended only after this file was written. So a run without a
record has never run, and a run with a record whose Job is missing must not get another Job.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from runtime.durable import write_json
from runtime.executors.attempt import Outcome
from runtime.executors.folder import read_json

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
        write_json(folder / _FILE, asdict(self))


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
        outcome = said.pop("outcome")
        return Record(**said, outcome=None if outcome is None else Outcome(**outcome))
    except (KeyError, TypeError) as error:
        raise OSError(f"{folder / _FILE}: is no record of ours ({error!r}); move it away") from None
