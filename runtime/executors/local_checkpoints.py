"""Checkpoints on the local disk that outlive a loss of power.

A job reports that a checkpoint is complete, which does not mean that it would outlive a loss of
power. So the agent syncs it to the disk (fsync) and then records that in `kept.json`. After a
reboot a gang is resumed from a synced checkpoint, or else from the store, and from nothing else.
"""

import contextlib
import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoints.source import ENTRIES_MAX
from runtime.durable import sync_folder, write_json
from runtime.executors.folder import (
    CHECKPOINTS,
    CLOSED,
    COMMITTED,
    EXIT,
    KEPT,
    ORDER,
    REFUSED,
    STOP,
    read_json,
)
from runtime.identity import as_user
from runtime.trees import entries_below
from runtime.untrusted_files import open_regular_file


@dataclass(frozen=True, slots=True)
class SyncedCheckpoint:
    """A checkpoint that is synced to the local disk."""

    step: int
    path: Path
    #: Folder of the run that wrote it; None: it was fetched, so the store has it.
    run: Path | None


class CheckpointSync:
    """Syncs the newest checkpoint of a job, of any of its runs, in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: tuple[Path, int, Path] | None = None
        self._works = False
        self._step = -1

    def sync(self, run: Path, step: int, path: Path) -> None:
        """Have a checkpoint of a run synced soon; of several that wait, only the newest is."""
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
            # Gone, the disk is full, or no name that a disk can have: an older one stays.
            with contextlib.suppress(OSError, ValueError):
                sync_checkpoint(*wanted)


def sync_checkpoint(run: Path, step: int, path: Path) -> None:
    """Sync a checkpoint of a run to the disk, then record that. Blocks.

    Raises:
        OSError: it is gone, is being overwritten, or the disk refuses it.
    """
    with as_user(owner_of(run)):
        files = _files(path)
        for each in (path, *_below(path)):
            if each.is_dir():
                sync_folder(each)
            elif each.is_file():  # what is neither has no bytes to lose, and a pipe would block
                with open_regular_file(each) as file:
                    os.fsync(file.fileno())
        sync_folder(path.parent)
        changed = _files(path) != files
    if not files or changed:
        raise OSError(f"{path}: it changes while it is synced")
    write_json(run / KEPT, {"step": step, "name": str(path.relative_to(run)), "files": files})


def owner_of(run: Path) -> int | None:
    """Give the user of a run's workers; None if it is unknown: then it is the agent's."""
    try:
        return (run / CHECKPOINTS).lstat().st_uid
    except OSError:
        return None


def synced_of(run: Path) -> SyncedCheckpoint | None:
    """Give the synced checkpoint of a run; None if there is none, or its files have changed."""
    said = read_json(run / KEPT) or {}
    step, name = said.get("step"), said.get("name")
    # A job without isolation can write this file, too.
    if not isinstance(step, int) or not isinstance(name, str) or ".." in Path(name).parts:
        return None
    path = run / name
    try:
        with as_user(owner_of(run)):
            as_then = run in path.parents and path.exists() and _files(path) == said["files"]
    except (OSError, ValueError):  # no name that a disk can have
        return None
    return SyncedCheckpoint(step, path, run) if as_then else None


def synced_origin_of(run: Path) -> SyncedCheckpoint | None:
    """Give the local checkpoint that a run was started from, if it is synced."""
    order = read_json(run / ORDER) or {}
    step, resume, job = order.get("step"), order.get("resume"), run.parent
    if not isinstance(step, int) or not isinstance(resume, str):
        return None
    path = Path(resume)
    if job not in path.parents or ".." in path.parts:
        return None
    place = path.relative_to(job).parts[0]
    if place != "fetched":
        synced = synced_of(job / place)
        return synced if synced is not None and (synced.step, synced.path) == (step, path) else None
    # A fetched checkpoint was verified and synced before it got its name.
    return SyncedCheckpoint(step, path, None) if path.exists() else None


def newest_synced(job: Path) -> SyncedCheckpoint | None:
    """Give the newest synced checkpoint of the runs that a job's newest run continues.

    These are the newest run, those set aside, and those that it was scaled from.
    """
    past: list[Path] = []
    for run in run_folders(job):
        if past and epoch_of(run) != epoch_of(past[-1]):
            if (read_json(run / STOP) or {}).get("why") != "scale":
                break
        past.append(run)
    found = (one for run in past for one in (synced_of(run), synced_origin_of(run)))
    return max((one for one in found if one), key=lambda one: one.step, default=None)


def has_unstored_result(run: Path) -> bool:
    """Whether all workers of a run exited with 0, and its newest checkpoint can yet be stored."""
    record, kept = read_json(run / EXIT), read_json(run / KEPT)
    if record is None or record.get("failed") is not None or kept is None:
        return False
    if (run / REFUSED).exists():  # else the disk would fill
        return False
    stored = int((read_json(run / COMMITTED) or {"step": -1})["step"])
    return kept["step"] > stored and synced_of(run) is not None


def run_folders(job: Path) -> list[Path]:
    """Give the run folders of a job, also those set aside, the newest first."""
    found = []
    for path in job.iterdir() if job.is_dir() else ():
        epoch, _, number = path.name.partition(".")
        if epoch.isdecimal() and (number.isdecimal() or path.name == epoch):
            found.append((int(epoch), int(number) if number else math.inf, path))
    return [path for *_, path in sorted(found, reverse=True)]


def epoch_of(run: Path) -> int:
    """Give the epoch of a run folder."""
    return int(run.name.partition(".")[0])


def set_aside_earlier_runs(run: Path) -> None:
    """Set an earlier run of the same epoch aside, and close all earlier runs of the job.

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


def _files(path: Path) -> list[list[str | int]]:
    """List names, sizes and times of change: a job may have begun to overwrite a file."""
    found: list[list[str | int]] = []
    for each in sorted((path, *_below(path))):
        if each.is_file():
            status = each.stat()
            found.append([str(each.relative_to(path)), status.st_size, status.st_mtime_ns])
    return found


def _below(path: Path) -> list[Path]:
    found = entries_below(path, ENTRIES_MAX) if path.is_dir() else ()
    return [Path(entry.path) for entry in found]
