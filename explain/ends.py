"""How jobs ended, and what was kept of them, from entries of the journal."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from explain.shares import counted
from scheduler.core.state import Job
from scheduler.core.transitions import TERMINAL, JobState
from schemas.journal import JournalEntry


@dataclass(frozen=True, slots=True)
class Kept:
    """The outputs of a job, and where they are."""

    uri: str
    files: int
    size_mib: int
    left_out: str

    def __str__(self) -> str:
        """Say it in a few words."""
        what = f"{counted(self.files, 'file')}, {self.size_mib} MiB"
        said = f"{what}, at {self.uri}" if self.files else "none"
        return f"{said}; not kept: {self.left_out}" if self.left_out else said


def outputs_of(fields: Mapping[str, Any]) -> Kept:
    """Give the outputs that an event tells of."""
    return Kept(fields["uri"], fields["files"], fields["size_mib"], fields["left_out"])


@dataclass(slots=True)
class End:
    """What the journal alone says of a job that is over."""

    failure: str | None = None  #: Why it failed for good, in words.
    outputs: Kept | None = None


class Ends:
    """How some jobs ended, as their agents said it: the state does not have it."""

    #: An entry that it needs holds one of these, as bytes.
    wanted = (
        b'"JobAccepted"', b'"GangStarting"', b'"GangStopping"', b'"JobFailed"', b'"OutputsKept"',
    )  # fmt: skip

    def __init__(self, jobs: Collection[str]) -> None:
        """Look for these jobs."""
        self._jobs = jobs
        self._ends: dict[str, str] = {}  #: By job: how its last gang ended.
        self.found: dict[str, End] = {}  #: By job, if there is something to tell.

    @staticmethod
    def tells_of(job: Job) -> bool:
        """Say whether there may be anything to tell of a job: most need no look at the journal."""
        has_outputs = job.program is not None and bool(job.program.get("outputs"))
        return job.state is JobState.FAILED or (has_outputs and job.state in TERMINAL)

    def take(self, entry: JournalEntry) -> None:
        """Go on with an entry of the journal."""
        for kind, fields in entry.decision.get("facts", ()):
            job = fields.get("job")
            if job not in self._jobs:
                continue
            if kind == "JobAccepted":  # one of this id before it may have been another's
                self._ends.pop(job, None)
                self.found.pop(job, None)
            elif kind == "GangStarting":
                self._ends.pop(job, None)
            elif kind == "GangStopping":
                # What follows the first word of a gang's end says less.
                self._ends[job] = self._ends.get(job) or fields.get("detail", "")
            elif kind == "JobFailed":
                said = failure(fields["reason"], self._ends.get(job, ""))
                self.found.setdefault(job, End()).failure = said
            elif kind == "OutputsKept":
                self.found.setdefault(job, End()).outputs = outputs_of(fields)


def failure(reason: str, detail: str) -> str:
    """Put a failure in words: the scheduler's reason, and what the agent said of it."""
    words = "cannot be run" if reason == "not_retriable" else reason
    return f"{words}: {detail}" if detail else words
