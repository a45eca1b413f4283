"""The checkpoints of one gang: on their way to the store, and what its workers are started from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runtime.core import CheckpointDone, CheckpointLost, Report
from runtime.executors.attempt import Attempt, Outcome
from runtime.executors.failures import Failure
from runtime.executors.fetching import Fetch
from runtime.executors.gang_record import GangRecord
from runtime.executors.options import ExecutorOptions
from runtime.executors.uploading import CheckpointUploader, LocalCheckpoint, Uploaded

#: A step and the checkpoint of it; there is none of step 0.
Found = tuple[int, Path | None]


class GangCheckpoints(CheckpointUploader):
    """Uploads what a gang's workers save, and reports it; all calls come from one thread."""

    def __init__(
        self,
        options: ExecutorOptions,
        record: GangRecord,
        report: Callable[[Report], None],
        write: Callable[[], None],
    ) -> None:
        """Begin with what the record says; `write` writes it down."""
        super().__init__(options, record.job, record.committed_step, record.spec.first_epoch)
        self._options, self._record, self._report, self._write = options, record, report, write
        started = record.started
        #: What the last run began from: the newest there is if that saved nothing.
        self.known: Found | None = None if started is None else (started.step, started.resume)
        self._fetch: Fetch | None = None
        self._asked_by_s: float | None = None
        self._committed: Uploaded | None = None

    # --- to start from ---

    def find(self, here: Found | None) -> Found | Failure | None:
        """Give what to start from, or why there is nothing; None: it is being fetched.

        Args:
            here: The newest that lies where workers read it; its upload may be under way.
        """
        for one in (here, self.known):
            if one is not None and one[0] >= self.step and _is_text(one[1]):
                return one
        if self.step == 0:
            return 0, None
        if self._fetch is None:
            self._fetch = Fetch(
                self._options, self._record.job, self.step, self._record.spec.first_epoch
            )
        if not self._fetch.future.done():
            return None
        return self._fetch.failure or (self._fetch.step, self._fetch.future.result())

    def begin(self, found: Found) -> None:
        """Note that a run begins from this."""
        self.known, self._fetch = found, None

    def drop(self) -> None:
        """Give up what is being fetched."""
        if self._fetch is not None:
            self._fetch.cancel.set()
            self._fetch = None

    # --- to store ---

    @property
    def lost_result(self) -> Outcome | None:
        """How a job ends that is done, and whose newest checkpoint no store takes; None: it may."""
        if self.newest_is_durable or (why := self.why_never_durable) is None:
            return None
        error = f"it is done, but its result cannot be stored: {why}"
        return Outcome(False, error, retriable=False)

    @property
    def is_asked(self) -> bool:
        """Whether one was asked for that is not durable yet."""
        return self._asked_by_s is not None

    def ask(self, now_s: float) -> None:
        """Note that one was asked for; the next that becomes durable is the answer."""
        self._asked_by_s = now_s + self._options.save_s

    def look(self, runs: Sequence[Attempt], now_s: float) -> None:
        """Read the progress of these runs, and upload the checkpoints announced in it.

        Raises:
            OSError: the record cannot be written.
        """
        record, total = self._record, self._record.spec.total_steps
        for run in runs:
            for said in run.announced(now_s):
                step = said.step if total is None else min(said.step, total)
                announced, epoch = replace(said, step=step), run.started.epoch
                self.add(LocalCheckpoint(run.folder, epoch, announced, now_s))
        result = self.advance(now_s)
        if isinstance(result, Uploaded):
            self._asked_by_s, self._committed = None, result
            record.committed_step = self.step
            record.saved = result.report(record.job, record.epoch)
            # Before it is recorded: it would not come again, and the next agent uploads it again.
            self._report(record.saved)
            self._write()
        elif result is not None:
            self._lose(result.error)
        if self._asked_by_s is not None and now_s >= self._asked_by_s:
            self._lose(f"the job wrote no checkpoint within {self._options.save_s:g} s")

    def give_up(self) -> None:
        """Give up the last one: its time is over."""
        if self.busy:
            self.abandon()
            self._lose("the last checkpoint was not durable in the time that was left")

    def stored(self, report: CheckpointDone) -> None:
        """Note that the agent has stored this report; older checkpoints may be deleted.

        Raises:
            OSError: that cannot be recorded; the next agent reports it again.
        """
        if self._record.saved == report:
            self._record.saved = None
            self._write()
        if self._committed is not None and self._committed.uri == report.uri:
            self.reported(self._committed)

    def _lose(self, error: str) -> None:
        self._asked_by_s = None
        self._report(CheckpointLost(self._record.job, self._record.epoch, error))


def _is_text(path: Path | None) -> bool:
    """Whether a path is Unicode: no record holds another, and what cannot be read ends agents."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True
