"""What a job leaves behind: files that it names, copied to the store when its workers are gone.

They lie beside its checkpoints, as they are: `JOB/outputs/EPOCH/PATH`. What the job wrote is looked
at as its user, no link is followed, and what is too much is left out and said.
"""

import contextlib
import fnmatch
import logging
import math
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from runtime.checkpoints.errors import CheckpointError, Unstorable
from runtime.checkpoints.store import CheckpointStore
from runtime.core.messages import OutputsStored
from runtime.executors.folder import WORK
from runtime.executors.live_run import LiveRun
from runtime.executors.local_checkpoints import owner_of
from runtime.executors.options import ProcessOptions
from runtime.executors.records import Order
from runtime.identity import as_user
from runtime.jobcode.rules import Unfit, parts_of
from runtime.threads import in_thread

_MIB = 1024 * 1024
#: At most so many files are kept, and so many entries looked at to find them.
FILES_MAX, _LOOKED_AT_MAX = 1000, 100_000
#: Between tries while the store is away, in seconds.
_WAIT_S, _WAIT_MAX_S = 1.0, 60.0
#: So much of what was left out is named.
_NAMED = 5
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Found:
    """The files that patterns name."""

    files: list[str] = field(default_factory=list)
    #: What they name too, and why it is not kept.
    left_out: list[str] = field(default_factory=list)
    size_bytes: int = 0


class JobOutputs:
    """The outputs of one gang on their way to the store."""

    def __init__(self, options: ProcessOptions) -> None:
        """Begin with nothing to keep."""
        self._options = options
        self._stop = threading.Event()
        self._future: Future[OutputsStored | None] | None = None

    @property
    def busy(self) -> bool:
        """Whether they are still being copied."""
        return self._future is not None and not self._future.done()

    def begin(self, live: LiveRun | None, goes_on: bool, *, says_none: bool) -> None:
        """Copy what the job names, now that its workers are gone; once, and until `stop`.

        Args:
            live: Its last run; None: there is nothing to copy.
            goes_on: Whether the job goes on elsewhere: then it leaves nothing behind yet.
            says_none: Whether it is told, too, if there is nothing of that.
        """
        program = None if live is None else live.run.order.spec.program
        if live is None or program is None or not program.outputs or goes_on or self._future:
            return
        stop, options = threading.Event(), self._options
        where = (live.run.order, live.epoch, live.run.folder)
        base = Path(program.workdir) if program.workdir else live.run.folder / WORK
        self._stop = stop
        self._future = in_thread(
            lambda: _kept(options, where, base, program.outputs, stop, says_none=says_none)
        )

    def stop(self) -> None:
        """Give up."""
        self._stop.set()
        self._future = None

    def take(self, epoch: int) -> list[OutputsStored]:
        """Give what was stored, under the epoch in force, once; what is under way is given up."""
        future, self._future = self._future, None
        self._stop.set()
        if future is None or not future.done() or future.exception() is not None:
            return []
        done = future.result()
        if done is None:
            return []
        what = (done.uri, done.files, done.size_mib, done.left_out)
        return [OutputsStored(done.job, epoch, *what)]


def _kept(
    options: ProcessOptions,
    where: tuple[Order, int, Path],
    base: Path,
    patterns: Sequence[str],
    stop: threading.Event,
    *,
    says_none: bool,
) -> OutputsStored | None:
    """Store what is there, however long the store is away; None: nothing of it is."""
    (order, epoch, run), job = where, where[0].job
    user, most, wait_s = owner_of(run), options.outputs_max_mib * _MIB, _WAIT_S
    found, done = find(base, patterns, most, user), dict[str, int]()
    while (found.files or says_none) and not stop.is_set():
        try:
            uri = _stored(options.store, order, epoch, base, found, done, user)
        except CheckpointError as error:
            _log.warning("job %s: outputs not stored, next try in %g s: %s", job, wait_s, error)
            stop.wait(wait_s)
            wait_s = min(2 * wait_s, _WAIT_MAX_S)
            continue
        said = "; ".join(found.left_out[:_NAMED])
        more = len(found.left_out) - _NAMED
        said += f"; and {more} more" if more > 0 else ""
        size_mib = math.ceil(sum(done.values()) / _MIB)
        return OutputsStored(job, epoch, uri, len(done), size_mib, said[:900])
    return None


def _stored(
    store: CheckpointStore,
    order: Order,
    epoch: int,
    base: Path,
    found: Found,
    done: dict[str, int],
    user: int | None,
) -> str:
    """Store those that are not done yet, by size: a link may last for a few of them at a time."""
    for path in [path for path in found.files if path not in done]:
        try:
            with as_user(user):
                number = _opened(base / path)
        except OSError as error:
            found.files.remove(path)
            found.left_out.append(f"{path}: {error.strerror or error}")
            continue
        with os.fdopen(number, "rb") as file:
            size = os.fstat(number).st_size
            try:
                store.keep_output(order.job, epoch, path, _pieces(file.fileno(), size))
                done[path] = size
            except Unstorable as error:  # the job would wait for it for ever
                found.files.remove(path)
                why = str(error).rpartition(": ")[2]  # as `explained` makes it
                found.left_out.append(f"{path}: {why}")
    return store.outputs_kept(order.job, epoch, order.spec.first_epoch)


def _opened(path: Path) -> int:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(0, "is no plain file")
    return number


def _pieces(number: int, size: int) -> Iterator[bytes]:
    """Read a file to the end that it had: one that grows is not read for ever."""
    while size > 0 and (piece := os.read(number, min(size, _MIB))):
        size -= len(piece)
        yield piece


def find(base: Path, patterns: Sequence[str], bytes_max: int, user: int | None = None) -> Found:
    """Find the files below a folder that patterns name, as a user; links are not followed.

    `*` stands for any part of one name, `**` for any folders; a folder for all that is in it.
    """
    found, wanted = Found(), [tuple(pattern.rstrip("/").split("/")) for pattern in patterns]
    matched: set[tuple[str, ...]] = set()
    with as_user(user):
        for parts, entry, places in _walk(base, wanted, found):
            hits = [one for one, at in zip(wanted, places, strict=True) if at >> len(one)]
            matched.update(hits)
            if not hits or entry.is_dir(follow_symlinks=False):
                continue
            path = "/".join(parts)
            try:
                parts_of(path)
                about = entry.stat(follow_symlinks=False)
            except (Unfit, OSError) as error:
                found.left_out.append(str(error))
                continue
            if not stat.S_ISREG(about.st_mode):
                found.left_out.append(f"{path}: is no plain file")
            elif len(found.files) >= FILES_MAX:
                found.left_out.append(f"{path}: more than {FILES_MAX} files")
            elif found.size_bytes + about.st_size > bytes_max:
                most = bytes_max // _MIB
                said = f"{path}: more than {most} MiB (agent.workers.outputs_max_mib)"
                found.left_out.append(said)
            else:
                found.files.append(path)
                found.size_bytes += about.st_size
    missing = [one for one in wanted if one not in matched]
    found.left_out += [f"{'/'.join(one)}: there is none" for one in missing]
    return found


def _walk(
    base: Path, wanted: Sequence[tuple[str, ...]], found: Found
) -> Iterator[tuple[tuple[str, ...], "os.DirEntry[str]", list[int]]]:
    """Give what is in a folder, and where in each pattern its path has come to (see `_after`)."""
    # A folder's places are worked out once, however much is in it.
    waiting: list[tuple[tuple[str, ...], list[int]]] = [((), [_beyond(one, 1) for one in wanted])]
    looked_at = 0
    while waiting:
        above, come_to = waiting.pop()
        entries: list[os.DirEntry[str]] = []
        with contextlib.suppress(OSError), os.scandir(base.joinpath(*above)) as listing:
            for entry in listing:
                looked_at += 1
                if looked_at > _LOOKED_AT_MAX:
                    found.left_out.append(f"more than {_LOOKED_AT_MAX} files were not looked at")
                    return
                entries.append(entry)
        for entry in sorted(entries, key=lambda one: one.name):
            parts = (*above, entry.name)
            places = [_after(one, at, entry.name) for one, at in zip(wanted, come_to, strict=True)]
            if entry.is_dir(follow_symlinks=False) and len(parts) < 64:
                waiting.append((parts, places))
            yield parts, entry, places


def _after(pattern: tuple[str, ...], places: int, name: str) -> int:
    """Give where in a pattern a path may have come to with one more name, a bit for each place.

    The bit after the last part says that the pattern names the path, or a folder above it. To try
    one place after the other would take for ever where there are several `**`.
    """
    if places >> len(pattern):
        return places
    found = 0
    for n, one in enumerate(pattern):
        if places >> n & 1:
            found |= (one == "**") << n | fnmatch.fnmatchcase(name, one) << (n + 1)
    return _beyond(pattern, found)


def _beyond(pattern: tuple[str, ...], places: int) -> int:
    """Add the places after each `**`, which may stand for no folder."""
    for n, one in enumerate(pattern):
        if one == "**":
            places |= (places >> n & 1) << (n + 1)
    return places
