"""The process executor: gangs as processes of one machine, which outlive the agent.

Each gang has a supervisor of its own (`runtime.executors.shim`), which holds its GPU locks and ends
with it. What goes on is in the run folders, so that the next agent goes on with it.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from runtime.core import (
    CheckpointDone,
    GangCompleted,
    GangFailed,
    GangProgress,
    KeepLease,
    Report,
    StartWorkers,
)
from runtime.executors.adopting import adoptable, kill_orphans
from runtime.executors.fetching import epochs, job_folder
from runtime.executors.folder import CHECKPOINTS, CLOSED, REFUSED
from runtime.executors.gang import GangOrder
from runtime.executors.lease import LEASE, write_lease
from runtime.executors.local_checkpoints import has_unstored_result
from runtime.executors.locks import Locked, take
from runtime.executors.log_files import keep_end
from runtime.executors.options import ProcessOptions
from runtime.executors.process_gang import ProcessGang
from runtime.executors.tenants import FETCHED, allow_traversal
from runtime.jobcode.fetching import CODE
from runtime.threads import in_thread
from runtime.trees import remove_tree

_log = logging.getLogger(__name__)
#: How often gangs that are starting or stopping are polled, and running ones.
_SOON_S, _LATER_S = 0.2, 1.0


class ProcessExecutor:
    """Runs gangs on this machine (see `runtime.executor.Executor`, which it implements)."""

    def __init__(
        self, options: ProcessOptions, remembered: Mapping[str, int] | None = None
    ) -> None:
        """Take over the gangs of an earlier agent, and kill its orphaned processes.

        Args:
            options: How gangs are run.
            remembered: The jobs and epochs that the agent knows it ran. Their workers are killed
                where they are not found below `options.root`, because the core may start them
                again. None: it does not know.

        Raises:
            OSError: `options.root` cannot be used, or another agent uses it.
        """
        self._options = options
        options.root.mkdir(parents=True, exist_ok=True)
        self._lock = _claim(options)
        self._trash = options.root / "trash"
        options.lock_folder.mkdir(parents=True, exist_ok=True)
        for folder in (options.root / "runs", self._trash):
            # For the agent's user alone: checkpoints belong to their tenants.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        if options.tenants is not None:
            allow_traversal(options.root)
            allow_traversal(options.root / "runs")
        in_thread(lambda: _empty(self._trash))
        found = adoptable(options, remembered)
        #: How many worker processes of earlier runs were found at the start, and killed.
        self.orphans_killed = kill_orphans(options, [runs[0] for runs in found], remembered or {})
        #: Changes of size in place that became restarts.
        self.fallbacks = 0
        self._said: list[Report] = []
        self._gangs = {
            runs[0].order.job: ProcessGang.adopted(options, runs[0], runs[1:], self._said.append)
            for runs in found
        }
        self._running = tuple(sorted(self._gangs))
        self._after_stored: list[Callable[[], None]] = []
        self._looked_s: float | None = None
        jobs = [path for path in (options.root / "runs").iterdir() if path.name not in self._gangs]
        left = [path / name for path in jobs for name in (FETCHED, CODE)]
        self._remove([path for path in left if path.exists()])

    # --- orders ---

    def start(self, order: StartWorkers, now_s: float) -> None:
        gang = self._gangs.get(order.job)
        # One that failed as it began is there until that is reported, and takes no start.
        is_over = gang is not None and gang.record.final is not None
        if gang is None or (is_over and order.epoch > gang.record.epoch):
            self._run_after_stored()
            begun = ProcessGang.begun(self._options, order, now_s, self._said.append)
            self._gangs[order.job] = begun
        else:
            gang.take(order, now_s)
        self._looked_s = None

    def _take(self, order: GangOrder, now_s: float) -> None:
        if order.job in self._gangs:
            self._gangs[order.job].take(order, now_s)
            self._looked_s = None

    scale = checkpoint = stop = _take

    def keep_lease(self, lease: KeepLease, now_s: float) -> None:
        left_s = None if lease.until_s is None else lease.until_s - now_s
        try:
            write_lease(self._options.root / LEASE, left_s, lease.grace_s)
        except OSError as error:  # the previous, shorter lease stays in force
            _log.warning("a lease cannot be written down, so gangs may end early: %s", error)

    # --- reports ---

    def progress(self, now_s: float) -> Sequence[GangProgress]:
        found = (gang.progress() for _, gang in sorted(self._gangs.items()))
        return [progress for progress in found if progress is not None]

    def advance(self, now_s: float) -> Sequence[Report]:
        self._looked_s = now_s
        self._run_after_stored()
        gangs = dict(sorted(self._gangs.items()))
        for job, gang in gangs.items():
            gang.advance(now_s)
            self._after_stored += gang.after_stored
            gang.after_stored = []
            self.fallbacks += gang.fallbacks
            gang.fallbacks = 0
            final, newest = gang.record.final, gang.newest_run
            is_read = gang.attempt is not None and not any(one.file.behind for one in gang.older)
            if gang.older and (is_read or final is not None):
                self._after_stored.append(self._close_older(gang))
            if final is not None:
                del self._gangs[job]
                if isinstance(final, GangFailed) and newest is not None:
                    in_thread(partial(keep_end, self._options.store, gang.record, newest.folder))
                if not (isinstance(final, GangFailed) and final.lost):
                    # A lost gang may be resumed from what is on the disk, perhaps only by the next
                    # agent, so its folder stays.
                    self._after_stored.append(self._clean_up(gang))
        reports = [*self._said]
        self._said.clear()  # not a new one: the gangs report to this one
        done = [one for one in reports if isinstance(one, CheckpointDone) and one.job in gangs]
        # These first: what is removed depends on which checkpoints are known to be durable.
        stored = [partial(gangs[one.job].checkpoints.stored, one) for one in done]
        self._after_stored = [*stored, *self._after_stored]
        return reports

    def _run_after_stored(self) -> None:
        """Run what waited until the reports were stored: a new call means that they are."""
        actions, self._after_stored = self._after_stored, []
        for action in actions:
            with contextlib.suppress(OSError):  # a failed one is reported again, or its files stay
                action()

    def next_due_s(self) -> float | None:
        if not self._gangs and not self._after_stored:
            return None
        if self._looked_s is None:
            return 0.0  # an order came: advance at once
        if any(
            live is not None and live.file.behind
            for gang in self._gangs.values()
            for live in (gang.attempt, *gang.older)
        ):
            return self._looked_s  # there is more to read
        waits = self._after_stored or any(gang.waits for gang in self._gangs.values())
        return self._looked_s + (_SOON_S if waits else _LATER_S)

    def running(self) -> tuple[str, ...]:
        return self._running

    def stuck(self, now_s: float) -> Sequence[tuple[str, float]]:
        """Give the jobs whose workers run and take no steps, and since when."""
        since = ((job, gang.stuck_since_s) for job, gang in sorted(self._gangs.items()))
        return [(job, since_s) for job, since_s in since if since_s is not None]

    def pids(self, node: str) -> dict[int, list[int]]:
        """Give the processes of the gang on each GPU of a node. From any thread; reads files."""
        found: dict[int, list[int]] = {}
        for gang in tuple(self._gangs.values()):
            live = gang.attempt
            gpus = () if live is None else live.placement.get(node, ())
            found |= dict.fromkeys(gpus, live.run.pids() if live is not None and gpus else [])
        return found

    def close(self) -> None:
        """Give up transfers, which the next agent repeats; the workers go on."""
        for gang in self._gangs.values():
            gang.abandon()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- what is left on the disk ---

    def _close_older(self, gang: ProcessGang) -> Callable[[], None]:
        """Give what to do once the report of the gang's newer epoch is stored."""
        older, gang.older = gang.older, []
        folder = job_folder(self._options.root, gang.record.job)

        def close_older() -> None:
            for live in older:
                live.run.close()
            # The workers may still be reading the checkpoint to resume from, and uploads, too.
            stay = {live.run.folder for live in older} | gang.checkpoints.runs
            resume = None if gang.attempt is None else gang.attempt.started.resume
            stay |= set() if resume is None else set(resume.parents)
            too_many = (
                folder / str(epoch) for epoch in epochs(folder)[self._options.run_retention :]
            )
            self._remove(
                [run for run in too_many if run not in stay and not has_unstored_result(run)]
            )

        return close_older

    def _clean_up(self, gang: ProcessGang) -> Callable[[], None]:
        """Give what to do once the report of the gang's end is stored."""
        folder = job_folder(self._options.root, gang.record.job)

        def clean_up() -> None:
            if gang.attempt is not None:
                gang.attempt.run.close()
            if gang.record.job in self._gangs:
                return  # it was resumed, from this folder
            if gang.attempt is not None and isinstance(gang.record.final, GangFailed):
                (gang.attempt.folder / REFUSED).touch()
            old = [folder / FETCHED, folder / CODE]
            if isinstance(gang.record.final, GangCompleted):  # its result is durable
                old += folder.glob(f"*/{CHECKPOINTS}")
            old += self._too_many()
            self._remove([path for path in old if path.exists()])

        return clean_up

    def _too_many(self) -> list[Path]:
        """Find the ended runs beyond those that stay for their logs, or for a result."""
        closed = [
            (marker.stat().st_mtime, marker.parent)
            for marker in (self._options.root / "runs").glob(f"*/*/{CLOSED}")
            if marker.parent.parent.name not in self._gangs
            and not has_unstored_result(marker.parent)
        ]
        return [folder for _, folder in sorted(closed)[: -self._options.run_retention]]

    def _remove(self, paths: list[Path]) -> None:
        """Move to the trash at once, which a thread empties."""
        for path in paths:
            number = sum(1 for _ in self._trash.iterdir())
            while (away := self._trash / str(number)).exists():
                number += 1
            path.rename(away)
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        if paths:
            in_thread(lambda: _empty(self._trash))


def _claim(options: ProcessOptions) -> int:
    """Lock the folder for the life of the process; give the descriptor of the lock.

    Raises:
        OSError: another agent uses it, whose gangs we would take for ours.
    """
    try:
        return take(options.root / "agent.lock", {"agent": options.agent, "pid": os.getpid()})
    except Locked:
        raise OSError(
            f"agent.workers.folder: another agent uses {options.root} (fuser -v "
            f"{options.root / 'agent.lock'} names it); end it, or give this one its own folder"
        ) from None


def _empty(trash: Path) -> None:
    for path in trash.iterdir():
        remove_tree(path)
