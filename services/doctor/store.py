"""Whether the checkpoint store takes, gives back and deletes; and what its clock says."""

import os
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from runtime.checkpoints.disk import STORE_DISK
from runtime.checkpoints.errors import CheckpointError
from runtime.checkpoints.store import CheckpointStore
from services.doctor import clock
from services.doctor.disk import existing, filesystem, is_there
from services.doctor.finding import CheckContext, Finding, Reporter

_report = Reporter("store")


def check(context: CheckContext) -> Iterator[Finding]:
    """Write, read and delete a small object."""
    workers = context.config.agent.workers
    if workers is None:
        return
    folder = _folder(workers.checkpoints)
    if folder is not None and not is_there(folder):
        if _can_be_made(folder):
            yield _report.warning(
                f"agent.workers.checkpoints: there is no folder {folder} yet; the first checkpoint "
                f"makes it, on {filesystem(folder.parent)}",
                f"if it is another machine's, mount it first (findmnt {_word(folder.parent)}); "
                "else there is nothing to do",
            )
            return
        yield _report.problem(
            f"agent.workers.checkpoints: there is no folder {folder}",
            f"mount it if it is another machine's (findmnt {_word(existing(folder))}), or make it: "
            f"mkdir -p {_word(folder)}, and let the agent's user own it",
        )
        return
    try:
        disk_file = workers.folder / STORE_DISK  # of the agent; none is made here
        store = CheckpointStore(
            workers.checkpoints, disk_file=disk_file if os.access(disk_file, os.R_OK) else None
        )
        written_s = store.probe()
    except CheckpointError as error:
        # What is wrong, and after it what to do, as `explained` makes it.
        said, _, fix = str(error).rpartition(": ")
        yield _report.problem(f"agent.workers.checkpoints: {said}", fix)
        return
    where = workers.checkpoints.partition("://")[0] if folder is None else str(folder)
    alone = folder is not None and _is_ours(folder)
    more = "; on this machine's own disk, so jobs cannot move to others" if alone else ""
    yield _report.ok(f"{where}: wrote, read and deleted an object{more}")
    if written_s is not None and not alone:
        yield clock.against("the checkpoint store", context.clock.now_s() - written_s)


def _word(path: Path) -> str:
    """Write a path as the shell takes it."""
    return quote(str(path))


def _folder(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(parts.path) if parts.scheme in ("file", "local", "") else None


def _can_be_made(folder: Path) -> bool:
    """Whether the store will make it; a link to nowhere is no place to make one."""
    above = folder.parent
    may = os.access(above, os.W_OK | os.X_OK)
    return may and above.is_dir() and not folder.is_symlink()


def _is_ours(folder: Path) -> bool:
    kind = filesystem(folder)
    return not kind.startswith(("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre", "gpfs"))
