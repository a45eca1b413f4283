"""One gang as processes of this machine: what it can do besides what any gang does.

Its workers can change their number as they run, it has code, secrets and outputs, and it can be
resumed after a loss of the machine. Its record is what its run folders say.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from runtime.core import GangFailed, Report, StartWorkers
from runtime.executors.attempt import Leave, Outcome
from runtime.executors.environment import NoSecrets
from runtime.executors.failures import Failure
from runtime.executors.fetching import CodeFetch, job_folder
from runtime.executors.gang import Gang
from runtime.executors.gang_checkpoints import Found
from runtime.executors.gang_record import Final, GangRecord, StartedRun
from runtime.executors.live_run import LiveRun
from runtime.executors.local_checkpoints import newest_synced
from runtime.executors.options import ProcessOptions
from runtime.executors.outputs import JobOutputs
from runtime.executors.records import Order, ResizeRequest
from runtime.executors.resize_monitor import ResizeMonitor
from runtime.executors.resuming import origin_of, prepare_start, was_lost_with_machine
from runtime.executors.runs import Run, StopReason

#: A change of size that a restarted agent core does not order again within this time has failed.
_BETWEEN_S = 60.0


class ProcessGang(Gang[LiveRun]):
    """A gang on this machine."""

    def __init__(
        self, options: ProcessOptions, record: GangRecord, report: Callable[[Report], None]
    ) -> None:
        """Use `begun` or `adopted`."""
        super().__init__(options, record, report)
        #: Earlier runs: their workers are gone; some checkpoints may not be durable yet.
        self.older: list[LiveRun] = []
        self.after_stored: list[Callable[[], None]] = []  #: To do once the reports are stored.
        self.fallbacks = 0  #: Changes of size in place that became restarts.
        self._machine = options
        self._code: CodeFetch | None = None
        self._outputs = JobOutputs(options)
        self._monitor: ResizeMonitor | None = None
        self._asked: StopReason | None = None  #: Why an earlier agent asked the workers to leave.
        self._ordered_by_s: float | None = None
        self._lost = False  #: Whether it was lost with its machine, and not started again.
        self._began: Run | None = None  #: Its first checkpoint may have to be made durable yet.

    @classmethod
    def begun(
        cls,
        options: ProcessOptions,
        order: StartWorkers,
        now_s: float,
        report: Callable[[Report], None],
    ) -> "ProcessGang":
        """Begin what the order asks for."""
        record = GangRecord(order.job, order.epoch, order.placement, order.spec, order.step)
        gang = cls(options, record, report)
        try:
            synced = prepare_start(options.root, order)
        except OSError as error:
            gang._now_s = now_s
            gang._fail(Failure(f"the folder of its run cannot be made: {error}"))
        else:
            gang.checkpoints.known = None if synced is None else (synced.step, synced.path)
        gang.advance(now_s)
        return gang

    @classmethod
    def adopted(
        cls,
        options: ProcessOptions,
        run: Run,
        older: Sequence[Run],
        report: Callable[[Report], None],
    ) -> "ProcessGang":
        """Take over a run that an earlier agent began; `older` are those it was scaled from."""
        order, request = run.order, run.resize_request if run.was_started else None
        durable = [said["step"] for one in (run, *older) if (said := one.committed()) is not None]
        what = (order.job, order.epoch, order.placement, order.spec)
        record = GangRecord(*what, max([order.committed_step, *durable]))
        record.started = StartedRun(order.epoch, order.placement, order.step, order.resume)
        left = order.left
        if request is not None:
            record.epoch, record.placement, left = request.epoch, request.placement, request.left
            record.giving_up = [request.epoch_before] if request.gives_up_gpus else []
        record.left = [(epoch, order.step) for epoch in left]
        gang = cls(options, record, report)
        gang.older = [LiveRun(one) for one in reversed(older)]
        gang._lost, gang._began = was_lost_with_machine(run), run if run.this_boot else None
        gang._asked = run.stop_reason()
        if gang._asked == "stop":
            gang._stop = Leave(math.inf, "stop")
        if run.was_started or gang._asked is not None:
            gang._expect(record.started)
            gang.attempt = live = LiveRun(run)
            if request is not None and gang._asked is None and run.this_boot:
                gang._monitor = ResizeMonitor(live, request, options.resize_s)
        gang.repeat()
        return gang

    @property
    def newest_run(self) -> LiveRun | None:
        """The present run, else the last one before it."""
        return self.attempt or (self.older[-1] if self.older else None)

    @property
    def waits(self) -> bool:
        """Whether something is under way that ends soon."""
        return not self._trains or self.checkpoints.busy or self.checkpoints.is_asked

    def abandon(self) -> None:
        """Give up transfers; the workers go on."""
        self.checkpoints.abandon()
        self._outputs.stop()
        self._drop_fetch()

    # --- begin ---

    def _write(self) -> None:
        """Do nothing: the run folders say it."""

    def _launch(self, started: StartedRun) -> LiveRun | None:
        record = self.record
        left = tuple(epoch for epoch, _ in record.left)
        what = (record.job, started.epoch, started.placement, record.spec)
        order = Order(*what, started.step, self.checkpoints.step, started.resume, left)
        run, code, self._code = Run(self._machine, order), self._code, None
        try:
            run.launch(None if code is None else code.future.result())
        except NoSecrets as error:
            self._fail(Failure(str(error), retriable=False))
        except (OSError, ValueError) as error:
            self._fail(Failure(f"its workers cannot be started: {error}"))
        else:
            self._lost, self._began = False, run
            return LiveRun(run)
        return None

    def _find_origin(self) -> Found | Failure | None:
        program, job = self.record.spec.program, self.record.job
        if program is None:
            words = "the job names no program; this agent runs real workers"
            return Failure(words, retriable=False)
        here = self.checkpoints.newest_here()
        folder = job_folder(self._machine.root, job)
        if self._lost and (synced := newest_synced(folder)) is not None:
            here = synced.step, synced.path
        found = self.checkpoints.find(here)
        if program.code is None or not isinstance(found, tuple):
            return found
        if self._code is None:
            self._code = CodeFetch(self._machine, job, self.record.spec)
        if not self._code.future.done():
            return None
        return self._code.failure or found

    def _drop_fetch(self) -> None:
        super()._drop_fetch()
        if self._code is not None:
            self._code.cancel.set()
            self._code = None

    def _forget_past(self, step: int) -> None:
        super()._forget_past(step)
        self._lost = False  # what was lost with the machine is no longer gone on from
        self._outputs.stop()
        self.after_stored += [one.run.close for one in self.older]
        self.older = []  # their checkpoints no longer count

    # --- while there are workers ---

    @property
    def _is_unwanted(self) -> bool:
        return super()._is_unwanted or self._asked is not None

    def _runs(self) -> Sequence[LiveRun]:
        return (*self.older, *super()._runs())

    def _look(self) -> None:
        began, self._began = self._began, None
        if began is not None and (checkpoint := origin_of(began, self._now_s)) is not None:
            self.checkpoints.add(checkpoint)
        super()._look()

    def _follow(self, attempt: LiveRun) -> None:
        if not self._resizes(attempt):
            super()._follow(attempt)

    def _advance(self, attempt: LiveRun, leave: Leave | None) -> None:
        if self.record.anew_step is not None:
            attempt.announced(self._now_s)  # it counts no longer, but the end comes after it
        attempt.advance(self._now_s, leave)

    def _resizes(self, live: LiveRun) -> bool:
        """Have it change its size in place if it can; say whether that is under way."""
        if self._stop is not None or self.record.anew_step is not None:
            self._monitor = None
            return False
        if self._monitor is None:
            is_asked = self._asked is not None or self._scale_by_s is not None  # to leave
            can = live.resizes_in_place and live.trains and not is_asked
            if not can or not self._is_superseded:
                return False
            left = tuple(epoch for epoch, _ in self.record.left)
            what = (self.record.epoch, self.record.placement, live.epoch, live.placement)
            request = ResizeRequest(*what, left)
            self._monitor = ResizeMonitor(live, request, self._machine.resize_s)
        if (gone := live.run.gone()) and not live.is_read_to_end():
            return True  # the resize may have completed before they ended
        request, outcome = self._monitor.request, self._monitor.look(self._now_s, gone=gone)
        if outcome in ("freed", "done"):
            self._report_left(request.epoch)
        if outcome in ("failed", "done"):
            self._monitor = None
        if outcome == "failed":
            self.fallbacks += 1
            return False
        return outcome != "done" or self._is_superseded  # a size may have been ordered meanwhile

    # --- end ---

    @property
    def _is_storing(self) -> bool:
        return super()._is_storing or self._outputs.busy

    def _take_end(self, outcome: Outcome) -> None:
        is_whole = outcome.is_success or self._stop is not None or self._is_superseded
        if self._asked == "scale" and not is_whole:
            # Only the core knows the size that they left for.
            if self._ordered_by_s is None:
                self._ordered_by_s = self._now_s + _BETWEEN_S
            if self._now_s < self._ordered_by_s:
                return
            outcome = Outcome(False, "the agent was restarted while the gang changed its size")
        super()._take_end(outcome)
        if self._ending == "goes_on":
            self.older += [] if self.attempt is None else [self.attempt]
            self._asked = None
        else:
            is_stopped, is_complete = self._ending == "stopped", self._ending == "complete"
            self._outputs.begin(self.newest_run, is_stopped, says_none=is_complete)

    def _failure(self, outcome: Outcome) -> GangFailed:
        return replace(super()._failure(outcome), lost=self._lost)

    def _finish(self, final: Final) -> None:
        for report in self._outputs.take(self.record.epoch):
            self._report(report)
        super()._finish(final)
