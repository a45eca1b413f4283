"""Checkpoints that are on the local disk for sure, whatever becomes of the power.

A job says that a checkpoint is complete; whether its bytes would outlive a loss of power, nobody
says. So they are forced to the disk and then written down as kept. When the machine has come back,
a gang is resumed from what is kept, or else from what is in the store, and from nothing else.
"""

import contextlib
import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoints.durable import sync_folder
from runtime.executors.folder import (
    CHECKPOINTS,
    CLOSED,
    COMMITTED,
    EXIT,
    KEPT,
    ORDER,
    STOP,
    read_json,
    write_json,
)
from runtime.executors.hostile import open_plain
from runtime.identity import as_user


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint that is there."""

    step: int
    path: Path
    #: Folder of the run that wrote it; None: it was fetched, so the store has it.
    run: Path | None


class Keeper:
    """Keeps the newest checkpoint of a job, of whichever run, in a thread while there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: tuple[Path, int, Path] | None = None
        self._works = False
        self._step = -1

    def keep(self, run: Path, step: int, path: Path) -> None:
        """Have a checkpoint of a run kept soon; of several that wait, the newest alone is."""
        with self._lock:
            if step <= self._step:
                return
            self._step, self._wanted = step, (run, step, path)
            if not self._works:
                self._works = True
                threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                if wanted is None:
                    self._works = False
                    return
            with contextlib.suppress(OSError):  # gone, or the disk is full: an older one stays
                keep(*wanted)


def keep(run: Path, step: int, path: Path) -> None:
    """Force a checkpoint of a run to the disk, then write down that it is kept. Blocks.

    Raises:
        OSError: it is gone, is being written over, or the disk does not take it.
    """
    with as_user(owner_of(run)):
        files = _files(path)
        for each in (path, *path.rglob("*")):
            if each.is_dir():
                sync_folder(each)
            elif each.is_file():  # what is neither has no bytes to lose, and a pipe would block
                _sync_file(each)
        sync_folder(path.parent)
        changed = _files(path) != files
    if not files or changed:
        raise OSError(f"{path}: it changes while it is kept")
    write_json(run / KEPT, {"step": step, "name": str(path.relative_to(run)), "files": files})


def owner_of(run: Path) -> int | None:
    """Give the user of a run's workers; None if that cannot be told: then it is ours."""
    try:
        return (run / CHECKPOINTS).lstat().st_uid
    except OSError:
        return None


def kept_of(run: Path) -> Kept | None:
    """Give what a run has kept; None if nothing, or if its files are others than then."""
    said = read_json(run / KEPT) or {}
    step, name = said.get("step"), said.get("name")
    # A job can write here as well.
    if not isinstance(step, int) or not isinstance(name, str) or ".." in Path(name).parts:
        return None
    path = run / name
    try:
        with as_user(owner_of(run)):
            as_then = run in path.parents and path.exists() and _files(path) == said["files"]
    except (OSError, ValueError):  # no name that a disk can have
        return None
    return Kept(step, path, run) if as_then else None


def began_from(run: Path) -> Kept | None:
    """Give the checkpoint on this machine that a run began from, if it is surely there."""
    order = read_json(run / ORDER) or {}
    step, resume, job = order.get("step"), order.get("resume"), run.parent
    if not isinstance(step, int) or not isinstance(resume, str):
        return None
    path = Path(resume)
    if job not in path.parents or ".." in path.parts:
        return None
    place = path.relative_to(job).parts[0]
    if place != "fetched":
        kept = kept_of(job / place)
        return kept if kept is not None and (kept.step, kept.path) == (step, path) else None
    # What was fetched was verified and forced to the disk before it got its name.
    return Kept(step, path, None) if path.exists() else None


def newest_kept(job: Path) -> Kept | None:
    """Give the newest checkpoint of the runs of a job whose work the newest of them goes on with.

    That is: its own, those that were put aside, and those that it was scaled from.
    """
    past: list[Path] = []
    for run in run_folders(job):
        if past and epoch_of(run) != epoch_of(past[-1]):
            if (read_json(run / STOP) or {}).get("why") != "scale":
                break
        past.append(run)
    found = (one for run in past for one in (kept_of(run), began_from(run)))
    return max((one for one in found if one), key=lambda one: one.step, default=None)


def unstored_result(run: Path) -> bool:
    """Whether all workers of a run ended well, and its newest checkpoint here is not durable."""
    record, kept = read_json(run / EXIT), kept_of(run)
    if record is None or record.get("failed") is not None or kept is None:
        return False
    return kept.step > int((read_json(run / COMMITTED) or {"step": -1})["step"])


def run_folders(job: Path) -> list[Path]:
    """Give the run folders of a job, those put aside too, the newest first."""
    found = []
    for path in job.iterdir() if job.is_dir() else ():
        epoch, _, number = path.name.partition(".")
        if epoch.isdecimal() and (number.isdecimal() or path.name == epoch):
            found.append((int(epoch), int(number) if number else math.inf, path))
    return [path for *_, path in sorted(found, reverse=True)]


def epoch_of(run: Path) -> int:
    """Give the epoch of a run folder."""
    return int(run.name.partition(".")[0])


def make_room(run: Path) -> None:
    """Have the same epoch begin again, or a job anew: what ran of it before is put aside, closed.

    Raises:
        OSError: the disk does not take it.
    """
    if run.exists():
        number = 1
        while (aside := run.with_name(f"{run.name}.{number}")).exists():
            number += 1
        run.rename(aside)
        sync_folder(aside.parent)
    for before in run_folders(run.parent):
        if not (before / CLOSED).exists():
            (before / CLOSED).touch()


def _sync_file(path: Path) -> None:
    with open_plain(path) as file:
        os.fsync(file.fileno())


def _files(path: Path) -> list[list[str | int]]:
    """List names, sizes and times of change: a job may have begun to write over a name."""
    found: list[list[str | int]] = []
    for each in sorted((path, *path.rglob("*"))):
        if each.is_file():
            status = each.stat()
            found.append([str(each.relative_to(path)), status.st_size, status.st_mtime_ns])
    return found
