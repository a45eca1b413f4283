"""Reads what workers wrote: the log of one rank, over all its files, by offsets that do not move.

What lies below a run's folder may be a job's doing: only plain files are read, in pieces.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from runtime.checkpoints.store import LOG_BYTES, CheckpointError, CheckpointStore
from runtime.executors.fetching import epochs, job_folder
from runtime.executors.folder import CLOSED, EXIT, LOGS, read_json
from runtime.executors.gang_record import GangRecord
from runtime.executors.logs import DROPPED
from runtime.logs import LogPiece, NoLog
from runtime.untrusted_files import open_regular_file, read_tail

_log = logging.getLogger(__name__)
#: Of one log there are at most so many files.
_FILES_MAX = 1000
#: A rotation may come between two looks; a third finds the files as they belong together.
_TRIES = 3
_since = re.compile(r"rank-([0-9]+)-since-([0-9]+)\.log").fullmatch


class LogFiles:
    """The logs of an agent's runs, below `ROOT/runs/JOB/EPOCH/logs` (`runtime.logs.LogSource`)."""

    def __init__(self, root: Path, store: CheckpointStore | None = None) -> None:
        """Read below this folder, and what was kept in `store` of gangs that failed."""
        self._root, self._store = root, store

    def read(
        self, job: str, epoch: int, rank: int, offset: int, size: int, first_epoch: int = 0
    ) -> LogPiece | NoLog:
        """Read a piece of the log of a rank, of the newest run up to an epoch that has one."""
        folder = job_folder(self._root, job)
        runs = [found for found in epochs(folder) if first_epoch <= found <= epoch]
        unstarted = False
        for found in runs:
            run = folder / str(found)
            path = _newest_log(run / LOGS, rank)
            ended = (run / EXIT).exists() or (run / "exit").exists() or (run / CLOSED).exists()
            if path is not None:
                # Whether it has ended is asked first: what it wrote last is there by then.
                return _read(path, found, offset, size, ended=ended)
            if ended and _is_without_any(run / LOGS):
                unstarted = True
                continue
            if (run / LOGS).is_dir():
                return NoLog(f"its newest run here has no worker of rank {rank}")
        if unstarted:
            return NoLog(
                "its run here ended before a worker was started, so nothing was written; "
                "`tidegate why` says why it ended"
            )
        if runs or (folder.is_dir() and not epochs(folder)):
            return NoLog("none of its workers has been started here yet")
        why = "no run of it is here: it never came to start, or was cleared away since"
        return self._kept(job, epoch, rank, offset, size, first_epoch) or NoLog(why)

    def _kept(
        self, job: str, epoch: int, rank: int, offset: int, size: int, first_epoch: int
    ) -> LogPiece | None:
        try:
            kept = None if self._store is None else self._store.kept_log(job, rank, first_epoch)
        except CheckpointError:
            kept = None  # that there is no run here is what whoever asks should hear
        if kept is None:
            return None
        data, uri = kept
        begin = max(0, offset if offset >= 0 else len(data) + offset)
        note = f"its run was cleared away; this is the end of its last failure, kept at {uri}"
        piece = data[begin : begin + size]
        return LogPiece(epoch, begin, piece, 0, len(data), ended=True, note=note)


def keep_end(store: CheckpointStore, record: GangRecord, run: Path) -> None:
    """Keep the end of what the worker wrote by which a gang failed, beside its checkpoints."""
    said = read_json(run / EXIT) or {}
    rank = said.get("failed") or 0
    path = _newest_log(run / LOGS, rank)
    if path is None:
        return
    found = _read(path, 0, -LOG_BYTES, LOG_BYTES, ended=True)
    if isinstance(found, NoLog) or not found.content:
        return
    job, epoch, first_epoch = record.job, record.epoch, record.spec.first_epoch
    try:
        store.keep_log(job, epoch, rank, found.content, first_epoch)
    except CheckpointError as error:
        _log.warning("the log of %s, which failed, is on this machine alone: %s", job, error)


def _is_without_any(logs: Path) -> bool:
    """Whether no worker ever had a log here."""
    try:
        return not logs.is_symlink() and not any(os.scandir(logs))
    except OSError:
        return not logs.exists()


def _newest_log(logs: Path, rank: int) -> Path | None:
    """Find the log of whoever has this rank now; after a resize in place it is another worker."""
    if logs.is_symlink():
        return None
    newest, since = logs / f"rank-{rank}.log", -1
    with contextlib.suppress(OSError):
        for entry in os.scandir(logs):
            found = _since(entry.name)
            if found and int(found[1]) == rank and int(found[2]) > since:
                newest, since = logs / entry.name, int(found[2])
    return newest if newest.is_file() and not newest.is_symlink() else None


def _read(path: Path, epoch: int, offset: int, size: int, *, ended: bool) -> LogPiece | NoLog:
    for _ in range(_TRIES):
        before = read_tail(path.with_name(path.name + DROPPED), 32)
        with contextlib.ExitStack() as stack:
            files = list(_open(path, stack))
            if not files or read_tail(path.with_name(path.name + DROPPED), 32) != before:
                continue
            sizes = [os.fstat(file.fileno()).st_size for file in files]
            if not _same(files[-1], path):
                continue
            dropped = int(before) if before.isdigit() else 0
            end = dropped + sum(sizes)
            begin = max(dropped, offset if offset >= 0 else end + offset)
            return LogPiece(
                epoch,
                min(begin, end),
                _content(files, sizes, begin - dropped, size),
                skipped=max(0, begin - offset) if offset >= 0 else 0,
                end=end,
                ended=ended,
            )
    return NoLog(f"{path.name} cannot be read; see that the agent may read its own folder")


def _open(path: Path, stack: contextlib.ExitStack) -> Iterator[BinaryIO]:
    """Open the files of a log, the oldest first; whoever is written now is the last."""
    older = []
    for number in range(1, _FILES_MAX):
        part = path.with_name(f"{path.name}.{number}")
        if not part.exists():
            break
        older.append(part)
    for part in (*reversed(older), path):
        with contextlib.suppress(OSError):
            yield stack.enter_context(open_regular_file(part))


def _same(file: BinaryIO, path: Path) -> bool:
    """Whether a file that was opened is still the one of that name."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _content(files: list[BinaryIO], sizes: list[int], begin: int, size: int) -> bytes:
    """Read on from the begin of the oldest, over the borders of files."""
    found = b""
    for file, length in zip(files, sizes, strict=True):
        if begin < length and len(found) < size:
            file.seek(max(0, begin))
            found += file.read(min(size - len(found), length - max(0, begin)))
        begin -= length if begin >= length else begin
    return found
