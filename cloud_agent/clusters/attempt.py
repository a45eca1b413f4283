"""What the executor needs of a cluster's own scheduler: to run gangs, and to tell how they end."""

import zlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import runtime.executors.attempt as executors
from runtime.executors.gang_record import StartedRun
from schemas.programs import Program


@dataclass(frozen=True, slots=True)
class Work:
    """What is to run."""

    job: str
    program: Program
    #: What was recorded of it before it was handed to the cluster.
    started: StartedRun
    #: The run folder, as the agent sees it.
    folder: Path
    #: The id of the shared folder, by which an agent knows what it runs from others'.
    folder_id: str
    #: Whose it is; None: nobody says.
    tenant: str | None = None

    @property
    def port(self) -> int:
        """Port of its rendezvous, where several share a host: below those that Linux gives out.

        By the folder, as two agents may have jobs of one name, in two cells say.
        """
        run = f"{self.folder}/{self.started.epoch}"
        return 20_000 + zlib.crc32(run.encode()) % 10_000


class Attempt(executors.Attempt):
    """The run of one epoch on a cluster."""

    def __init__(self, work: Work, names: Sequence[str]) -> None:
        """Follow the run of this work; its workers report in these files of its folder."""
        super().__init__(work.started, work.folder, names)
        self.work = work

    @property
    def run(self) -> tuple[str, int]:
        """The job and epoch that it is of."""
        return self.work.job, self.started.epoch

    @abstractmethod
    def advance(self, now_s: float, leave_by_s: float | None) -> None:
        """Take the next steps; with `leave_by_s`, see that it is gone by then.

        Raises:
            OSError: the shared folder does not answer; nothing is lost.
        """


class Cluster(Protocol):
    """A cluster's own scheduler. Calls may block, but for `begin` and `close`."""

    @property
    def away(self) -> str | None:
        """Why it does not answer; None: it does."""
        ...

    def begin(self, wake: Callable[[], None]) -> None:
        """Connect; the cluster calls `wake`, from any thread, when something changed."""
        ...

    def keep_lease(self, until_s: float | None, grace_s: float) -> None:
        """Have what runs end by itself then (seconds since the Unix epoch), with this grace.

        Raises:
            OSError: the shared folder cannot be written.
        """
        ...

    def look(self, folder_id: str) -> None:
        """Fetch what the cluster runs of this folder; attempts use it until the next call."""
        ...

    def attempt(self, work: Work) -> Attempt:
        """Give the attempt of a recorded run; nothing is submitted yet."""
        ...

    def delete_orphans(self, expected: Collection[tuple[str, int]]) -> None:
        """Delete what the last look showed and is none of these (job, epoch)."""
        ...

    def close(self) -> None:
        """Interrupt calls that block; may be called from any thread, repeatedly. Jobs go on."""
        ...
