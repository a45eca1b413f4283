"""Whether the disks that the agent writes to have room, and outlive a restart."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from runtime.executors.folder import CHECKPOINTS
from runtime.mounts import MOUNTS, mounted
from runtime.trees import entries_below
from services.doctor.finding import CheckContext, Finding, Reporter

_report = Reporter("disk")
_MIB, _GIB = 2**20, 2**30
#: While no checkpoint tells the size: less free than the first is a problem, than the second a
#: warning.
_NONE_BYTES, _LITTLE_BYTES = 1 * _GIB, 10 * _GIB
#: Room for the agent's state file, which holds its spool too.
_MEMORY_BYTES = 64 * _MIB
_FORGETS = {"tmpfs", "ramfs"}
_SHARED = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"}


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the folders of the workers and of the agent's state file."""
    workers = context.config.agent.workers
    if context.state_file is not None:
        folder, what = context.state_file.parent, "the agent's state file"
        yield from _of(folder, what, "agent.state_file", _MEMORY_BYTES, _MEMORY_BYTES)
    if workers is not None:
        size, held = _largest_checkpoint(workers.folder)
        key = "agent.workers.folder"
        if size:
            # One more is written while all that are retained are there. What the job has written
            # already takes no further room.
            count = workers.checkpoint_retention + 1
            need = max(size, size * count - held)
            what = f"runs, {count} checkpoints of {_told(size)}, {_told(held)} there already"
            yield from _of(workers.folder, what, key, need, need)
        else:
            yield from _of(workers.folder, "runs", key, _NONE_BYTES, _LITTLE_BYTES)


def _of(folder: Path, what: str, key: str, need_bytes: int, good_bytes: int) -> Iterator[Finding]:
    place = existing(folder)
    kind = filesystem(place)
    if kind in _FORGETS:
        yield _report.warning(
            f"{folder} ({what}) is in memory ({kind}): all is lost when the machine restarts",
            f"set {key} to a folder on a disk",
        )
    elif kind in _SHARED:
        yield _report.warning(
            f"{folder} ({what}) is on {kind}: locks and the agent's state file need a local disk",
            f"set {key} to a folder on a local disk",
        )
    try:
        free, files = shutil.disk_usage(place).free, os.statvfs(place)
    except OSError as error:
        yield _report.problem(f"{folder} ({what}): {error.strerror}", f"correct {key}")
        return
    said = f"{folder}: {_told(free)} free for {what}"
    if files.f_files and not files.f_favail:  # some file systems have no such table
        yield _report.problem(
            f"{folder} ({what}): no more files can be made there, whatever is free (df -i)",
            f"remove files there, or set {key} to another disk",
        )
        return
    if free < need_bytes:
        fix = f"free {_told(need_bytes - free)} there, or set {key} to a larger disk"
        count = "agent.workers.checkpoint_retention says how many checkpoints stay"
        yield _report.problem(said, f"{fix}; {count}")
    elif free < good_bytes:
        fix = f"checkpoints may be large: free some, or set {key} to a larger disk"
        yield _report.warning(said, fix)
    else:
        yield _report.ok(said)


def existing(path: Path) -> Path:
    """Give the path, or the nearest folder above it that is there."""
    while not is_there(path) and path != path.parent:
        path = path.parent
    return path


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder, as far as this user can tell."""
    try:
        return path.exists()
    except PermissionError:
        return False


def filesystem(path: Path, listed: Path = MOUNTS) -> str:
    """Give the type of the file system that a path is on.

    The longest mount point that holds the path counts, of equals the last.
    """
    found, best = "", -1
    whole = str(path.resolve())
    for _, point, kind in mounted(listed):
        inside = whole == point or whole.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            found, best = kind, len(point)
    return found


def _largest_checkpoint(folder: Path) -> tuple[int, int]:
    """Give the size of the largest checkpoint that a run left here, and what its job holds.

    In bytes; 0 if there is none.
    """
    largest, held = dict[str, int](), Counter[str]()
    runs = (run for job in _inside(folder / "runs") for run in _inside(job))
    for path in (path for run in runs for path in _inside(run / CHECKPOINTS)):
        job = path.relative_to(folder).parts[1]
        try:
            size = _size(path)
        except OSError:
            continue  # it is just being removed
        largest[job] = max(size, largest.get(job, 0))
        held[job] += size
    return max(((size, held[job]) for job, size in largest.items()), default=(0, 0))


def _size(path: Path) -> int:
    """Give the bytes of a file, or of all files in a folder, but not of what links lead to."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    files = (one for one in entries_below(path) if not one.is_dir(follow_symlinks=False))
    return sum(one.stat(follow_symlinks=False).st_size for one in files)


def _inside(folder: Path) -> list[Path]:
    """Give what is in a folder; nothing if it is none, or is just being removed."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _told(size_bytes: int) -> str:
    large = size_bytes >= _GIB
    return f"{size_bytes / _GIB:.1f} GiB" if large else f"{size_bytes / _MIB:.0f} MiB"
