"""One gang as a state machine (`runtime.executors.phases`), driven by `advance`."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from runtime.core import CheckpointWorkers, GangProgress, ScaleWorkers, StartWorkers, StopWorkers
from runtime.core.messages import GangCompleted, GangFailed, GangStopped, Report
from runtime.core.state import without
from runtime.executors.environment import NoSecrets
from runtime.executors.fetching import CodeFetch, Fetch
from runtime.executors.live_run import LiveRun, last_step
from runtime.executors.local_checkpoints import newest_synced
from runtime.executors.options import ProcessOptions
from runtime.executors.outputs import JobOutputs
from runtime.executors.phases import BETWEEN_S, OVERDUE_S, WITH_WORKERS, Phase
from runtime.executors.records import Order, ResizeRequest
from runtime.executors.report_queue import ReportQueue
from runtime.executors.resize_monitor import ResizeMonitor
from runtime.executors.resuming import origin_of, prepare_start, was_lost_with_machine
from runtime.executors.runs import Run, StopReason
from runtime.executors.stopping import StopRequest
from runtime.executors.uploading import CheckpointUploader, Uploaded


class Gang:
    """The workers of one job on this machine, whatever their epoch."""

    def __init__(self, options: ProcessOptions, order: StartWorkers | Order, saved: int) -> None:
        """Use `begun` or `adopted`; `saved` is the newest step in the store."""
        self.job, self.epoch, self.placement = order.job, order.epoch, order.placement
        self.phase: Phase = "fetching"
        self.live: LiveRun | None = None
        #: Earlier runs: their workers are gone; some checkpoints may not be durable yet.
        self.older: list[LiveRun] = []
        self.after_stored: list[Callable[[], None]] = []  #: To do once the reports are stored.
        self.fallbacks = 0  #: Changes of size in place that became restarts.
        self._options, self._spec = options, order.spec
        self.uploader = CheckpointUploader(options, order.job, saved, order.spec.first_epoch)
        self._now_s, self._due_s = -math.inf, math.inf  # the moment of the present call; the next
        self._reports = ReportQueue(order.job)
        self._fetch: Fetch | CodeFetch | None = None
        self._stop: StopRequest | None = None
        self._restart_order: StartWorkers | None = None
        self._monitor: ResizeMonitor | None = None
        self._save_by_s: float | None = None
        self._final: Callable[[], Report] | None = None
        self._outputs = JobOutputs(options)
        self._lost = False  #: Whether it was lost with its machine, and not started again.
        self._began: Run | None = None  #: Its first checkpoint may have to be made durable yet.

    @classmethod
    def begun(cls, options: ProcessOptions, order: StartWorkers, now_s: float) -> "Gang":
        """Begin what the order asks for."""
        gang = cls(options, order, order.step)
        gang._now_s = now_s
        try:
            if (synced := prepare_start(options.root, order)) is None:
                gang._begin(order.step)
            else:
                gang._launch(synced.step, synced.path)
        except OSError as error:
            gang._fail(f"the folder of its run cannot be made: {error}")
        return gang

    @classmethod
    def adopted(cls, options: ProcessOptions, run: Run, older: Sequence[Run]) -> "Gang":
        """Take over a run that an earlier agent began; `older` are those it was scaled from."""
        order = run.order
        durable = [said["step"] for one in (run, *older) if (said := one.committed()) is not None]
        gang = cls(options, order, max([order.committed_step, *durable]))
        gang.older = [LiveRun(options, one) for one in older]
        gang._reports.repeat_left(order.left, order.step)
        gang.live, asked = LiveRun(options, run), run.stop_reason()
        gang._lost, gang._began = was_lost_with_machine(run), run if run.this_boot else None
        gang.phase = "launching" if asked is None else "leaving"
        if asked is None and not run.was_started:
            gang.live = None
            gang._launch(order.step, order.resume)
        elif (request := run.resize_request) is not None:
            gang.epoch, gang.placement = request.epoch, request.placement
            gang._reports.repeat_left(request.left, order.step)
            if request.gives_up_gpus:
                gang._reports.expect_release(request.epoch_before)
            if asked is None and run.this_boot:
                gang._monitor = ResizeMonitor(gang.live, request, options.resize_s)
                gang.phase = "resizing"
        return gang

    # --- what others may see ---

    @property
    def waits(self) -> bool:
        """Whether something is under way that ends soon."""
        return self.phase != "running" or self.uploader.busy or self._save_by_s is not None

    @property
    def result_is_durable(self) -> bool:
        """Whether the job is complete, and its newest checkpoint durable."""
        return self._final == self._completed and self.uploader.newest_is_durable

    def progress(self) -> GangProgress | None:
        """How far it is; None before the first step, and if the job does not report."""
        return self.live.progress(self.epoch) if self.live and self.phase == "running" else None

    # --- orders ---

    def start(self, order: StartWorkers, now_s: float) -> None:
        """Start again under a newer epoch; the work of the earlier run no longer counts."""
        if order.epoch <= self.epoch:
            return
        self._now_s, self._restart_order = now_s, order
        self.epoch, self.placement = order.epoch, order.placement
        if self.phase in WITH_WORKERS:
            self._ask_to_leave(0.0, kill=True, why="stop")
        else:
            self._begin_anew(order)

    def scale(self, order: ScaleWorkers, now_s: float) -> None:
        """Change the GPUs: in place, or the workers save, leave, and are started again."""
        if order.epoch <= self.epoch:
            return
        if without(self.placement, order.placement):
            self._reports.expect_release(self.epoch)
        self._now_s, self.epoch, self.placement = now_s, order.epoch, order.placement
        if self.live is not None and self.phase in ("launching", "running"):
            self._change_size(self.live)
        elif self.phase == "awaiting_scale":
            self._restart_with_new_gpus()
        elif self.phase in ("fetching", "uploading"):
            self._report_left(self.epoch)

    def checkpoint(self, order: CheckpointWorkers, now_s: float) -> None:
        """Have a checkpoint written; the next that is written is the answer."""
        self.epoch = max(self.epoch, order.epoch)
        if self._save_by_s is not None:
            return
        self._save_by_s = now_s + self._options.save_s
        if self.live is not None and self.phase == "running":
            self.live.save()

    def stop(self, order: StopWorkers, now_s: float) -> None:
        """Stop for good; a repeated order can only bring the deadline forward."""
        self._now_s, self._restart_order, self.epoch = now_s, None, max(self.epoch, order.epoch)
        self._stop = stop = (self._stop or StopRequest()).tightened(order, now_s)
        if self.phase in WITH_WORKERS:
            left_s = max(0.0, stop.deadline_s - now_s)
            self._ask_to_leave(left_s, kill=not stop.saves, why="stop")
        elif self.phase != "over":
            if self._fetch is not None:
                self._fetch.cancel.set()
            if self._final is None:
                self._end(self._stopped, self._upload_until_s())
            self._due_s = min(self._due_s, self._upload_until_s())

    # --- time ---

    def advance(self, now_s: float) -> list[Report]:
        """Give what has happened since the last call, in order."""
        self._now_s = now_s
        self._read()
        while True:
            before = self.phase
            self._look()
            if self.phase in (before, "over"):
                break
        if self._save_by_s is not None and now_s >= self._save_by_s:
            self._checkpoint_lost(f"the job wrote no checkpoint within {self._options.save_s:g} s")
        return self._reports.drain()

    def abandon(self) -> None:
        """Give up transfers; the workers go on."""
        self.uploader.abandon()
        self._outputs.stop()
        if self._fetch is not None:
            self._fetch.cancel.set()

    def _read(self) -> None:
        """Read the workers' progress; upload what they announce, and what the run began from."""
        began, self._began = self._began, None
        if began is not None and (checkpoint := origin_of(began, self._now_s)) is not None:
            self.uploader.add(checkpoint)
        for live in (*self.older, self.live):
            for checkpoint in live.new_checkpoints(self._now_s) if live is not None else ():
                self.uploader.add(checkpoint)

    def _look(self) -> None:
        outcome = self.uploader.advance(self._now_s)
        if isinstance(outcome, Uploaded):
            self._save_by_s = None
            self._reports.add_checkpoint(self.epoch, outcome)
            self.after_stored.append(lambda: self.uploader.reported(outcome))
        elif outcome is not None:
            self._checkpoint_lost(outcome.error)
        if self.phase == "fetching" and self._fetch is not None and self._fetch.future.done():
            self._look_at_fetch(self._fetch)
        elif self.phase == "awaiting_scale" and self._now_s >= self._due_s:
            self._fail("the agent was restarted while the gang changed its size")
        elif self.phase == "uploading":
            self._look_at_upload()
        elif self.live is not None and self.phase in ("launching", "running"):
            self._look_at_workers(self.live)
        elif self.live is not None and self.phase == "leaving":
            self._look_at_leaving_workers(self.live)
        elif self.live is not None and self._monitor is not None and self.phase == "resizing":
            self._look_at_resize(self.live, self._monitor)

    def _look_at_fetch(self, fetch: Fetch | CodeFetch) -> None:
        self._fetch = None
        if (why := fetch.failure) is not None:
            self._fail(why.error, retriable=why.retriable)
        elif isinstance(fetch, CodeFetch):
            self._launch_run(fetch.step, fetch.resume, fetch.future.result())
        else:
            self._launch(self.uploader.step, fetch.future.result())

    def _look_at_workers(self, live: LiveRun) -> None:
        if live.run.gone():
            if live.is_read_to_end():  # its last lines may announce a checkpoint
                self._on_unrequested_end(live)
        elif self.phase == "launching":
            if live.has_started(self._now_s):
                self._on_started(live)
        else:
            live.watch(self._now_s)

    def _on_started(self, live: LiveRun) -> None:
        self._reports.add_started(self.epoch, live.step)
        self.phase = "running"
        if self._save_by_s is not None:
            live.save()

    def _on_unrequested_end(self, live: LiveRun) -> None:
        why = live.failure()
        if self.phase == "launching" and (why is None or live.file.step is not None):
            self._reports.add_started(self.epoch, live.step)
        if why is None or (live.lease_ended and live.reached_the_end):
            self._complete()
        elif live.lease_ended:
            self._end(self._stopped, self._upload_until_s())
        else:
            self._fail(why.error, retriable=why.retriable)

    def _look_at_leaving_workers(self, live: LiveRun) -> None:
        if not live.run.gone():
            if self._due_s == math.inf:  # the earlier agent may have died before it asked them
                why = live.run.stop_reason() or "stop"
                self._ask_to_leave(self._options.grace_s, kill=False, why=why)
            elif self._now_s >= self._due_s:
                live.run.kill()
            return
        if not live.is_read_to_end():
            return
        if self._restart_order is not None:
            self._begin_anew(self._restart_order)
        elif live.reached_the_end:
            self._complete()
        elif self._stop is not None or live.run.stop_reason() == "stop":
            self._end(self._stopped, self._upload_until_s())
        elif live.epoch < self.epoch:
            self._restart_with_new_gpus()
        else:
            self.phase, self._due_s = "awaiting_scale", self._now_s + BETWEEN_S

    def _look_at_upload(self) -> None:
        if (self.uploader.busy or self._outputs.busy) and self._now_s < self._due_s:
            return
        if self.uploader.busy:
            self.uploader.abandon()
            self._checkpoint_lost("the last checkpoint was not durable in the time that was left")
        if self._final == self._completed and not self.uploader.newest_is_durable:
            self._final = self._stopped  # it was stopped before its result was stored
        assert self._final is not None
        self._reports.add(*self._outputs.take(self.epoch), self._final())
        self.phase = "over"

    # --- change of size ---

    def _change_size(self, live: LiveRun) -> None:
        """Resize in place if the job can; otherwise the workers leave and are started again."""
        if live.resizes_in_place and self.phase != "launching":
            before = (live.epoch, live.placement, self._reports.left)
            request = ResizeRequest(self.epoch, self.placement, *before)
            self._monitor = ResizeMonitor(live, request, self._options.resize_s)
            self.phase = "resizing"
        else:
            self._ask_to_leave(self._options.grace_s, kill=False, why="scale")

    def _look_at_resize(self, live: LiveRun, monitor: ResizeMonitor) -> None:
        if (gone := live.run.gone()) and not live.is_read_to_end():
            return  # the resize may have completed before they ended
        outcome = monitor.look(self._now_s, gone=gone)
        if outcome in ("freed", "done"):
            self._report_left(monitor.request.epoch)
        if outcome == "failed":
            self.fallbacks += 1
            self._ask_to_leave(self._options.grace_s, kill=False, why="scale")
        elif outcome == "done" and monitor.request.epoch < self.epoch:
            self._change_size(live)  # to the size that was ordered meanwhile
        elif outcome == "done":
            self._on_started(live)

    # --- begin ---

    def _begin(self, step: int) -> None:
        if self._spec.program is None:
            self._fail("the job names no program; this agent runs real workers", retriable=False)
        elif step == 0:
            self._launch(0, None)
        else:
            closed, first = self._options.tenants is not None, self._spec.first_epoch
            self._fetch = Fetch(self._options, self.job, step, first, closed=closed)
            self.phase = "fetching"

    def _begin_anew(self, order: StartWorkers) -> None:
        self.abandon()
        self._restart_order = self._stop = self._fetch = self._final = self._save_by_s = None
        self._reports.forget_left()
        self._spec = spec = order.spec
        self.uploader = CheckpointUploader(self._options, self.job, order.step, spec.first_epoch)
        if self.live is not None:
            self.after_stored.append(self.live.run.close)
        self.live, self.older = None, []  # their checkpoints no longer count
        self._begin(order.step)

    def _restart_with_new_gpus(self) -> None:
        """Start on the new GPUs from the newest checkpoint here, durable or not."""
        assert self.live is not None
        order, here = self.live.run.order, self.uploader.newest_here()
        if self._lost and (synced := newest_synced(self.live.run.folder.parent)) is not None:
            here = (synced.step, synced.path) if synced.step >= self.uploader.step else None
        self._report_left(self.epoch)
        if here is None and self.uploader.step > order.step:
            self._begin(self.uploader.step)  # a local one may be torn, a durable one is not
        else:
            self._launch(*(here or (order.step, order.resume)))

    def _launch(self, step: int, resume: Path | None) -> None:
        if self._spec.program is None or self._spec.program.code is None:
            self._launch_run(step, resume)
        else:
            self._fetch = CodeFetch(self._options, self.job, self._spec, step, resume)
            self.phase = "fetching"

    def _launch_run(self, step: int, resume: Path | None, code: Path | None = None) -> None:
        what = (self.job, self.epoch, self.placement, self._spec)
        order = Order(*what, step, self.uploader.step, resume, self._reports.left)
        self.older += [] if self.live is None else [self.live]
        self.live, run = None, Run(self._options, order)
        try:
            run.launch(code)
        except NoSecrets as error:
            self._fail(str(error), retriable=False)
        except (OSError, ValueError) as error:
            self._fail(f"its workers cannot be started: {error}")
        else:
            self.live, self.phase = LiveRun(self._options, run), "launching"
            self._lost, self._began = False, run

    # --- end ---

    def _ask_to_leave(self, grace_s: float, *, kill: bool, why: StopReason) -> None:
        assert self.live is not None
        self.phase, self._due_s = "leaving", self._now_s + grace_s + OVERDUE_S
        self.live.run.stop(grace_s, kill=kill, why=why)

    def _end(self, final: Callable[[], Report], until_s: float) -> None:
        """Report `final` once the last checkpoint is durable, or its time is over."""
        self.uploader.retry_until(until_s)
        self._outputs.begin(self.live, final == self._stopped, says_none=final == self._completed)
        self._final, self._due_s, self.phase = final, until_s, "uploading"

    def _complete(self) -> None:
        self._end(self._completed, math.inf if self._stop is None else self._upload_until_s())
        if self._stop is None and self.live is not None and self.live.epoch < self.epoch:
            self._report_left(self.epoch)  # they ended as they were to change their size

    def _fail(self, error: str, *, retriable: bool = True) -> None:
        until_s = self._now_s + self._options.final_upload_timeout_s
        self._end(lambda: GangFailed(self.job, self.epoch, error, retriable, self._lost), until_s)

    def _completed(self) -> Report:
        return GangCompleted(self.job, self.epoch, last_step(self.live, self.uploader.step))

    def _stopped(self) -> Report:
        return GangStopped(self.job, self.epoch, self.uploader.step)

    def _upload_until_s(self) -> float:
        stop = self._stop or StopRequest(self._now_s)
        return stop.upload_until_s(self._now_s, self._options.final_upload_timeout_s)

    def _report_left(self, below: int) -> None:
        self._reports.add_left(self.uploader.step if self.live is None else self.live.step, below)
        if self._final == self._completed:  # there is no work left to start workers for
            self._reports.add_started(self.epoch, last_step(self.live, self.uploader.step))

    def _checkpoint_lost(self, error: str) -> None:
        self._save_by_s = None
        self._reports.add_lost_checkpoint(self.epoch, error)
