"""Checkpoints that are on the local disk for sure, whatever becomes of the power.

A job says that a checkpoint is complete; whether its bytes would outlive a loss of power, nobody
says. So they are forced to the disk and then written down as kept. When the machine has come back,
a gang is resumed from what is kept, or else from what is in the store, and from nothing else.
"""

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoints.durable import sync_folder
from runtime.executors.folder import KEPT, ORDER, read_json, write_json


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint that is there."""

    step: int
    path: Path


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
        OSError: it is gone, or the disk does not take it.
    """
    for each in (path, *path.rglob("*")):
        if each.is_dir():
            sync_folder(each)
        else:
            _sync_file(each)
    sync_folder(path.parent)
    said = {"step": step, "name": str(path.relative_to(run)), "files": _files(path)}
    write_json(run / KEPT, said)


def kept_of(run: Path) -> Kept | None:
    """Give what a run has kept; None if nothing, or if its files are others than then."""
    said = read_json(run / KEPT)
    if said is None:
        return None
    path = run / said["name"]
    if not path.exists() or _files(path) != said["files"]:
        return None
    return Kept(int(said["step"]), path)


def began_from(run: Path) -> Kept | None:
    """Give the checkpoint on this machine that a run began from, if it is surely there."""
    order = read_json(run / ORDER)
    if order is None or order.get("resume") is None:
        return None
    path, job = Path(order["resume"]), run.parent
    if not path.exists() or job not in path.parents:
        return None
    place = path.relative_to(job).parts[0]
    # What was fetched was verified and forced to the disk before it got its name.
    if place != "fetched" and kept_of(job / place) != Kept(int(order["step"]), path):
        return None
    return Kept(int(order["step"]), path)


def put_aside(run: Path) -> Path | None:
    """Make room for the same epoch to run again; give where what was there is now, if it was."""
    if not run.exists():
        return None
    number = 1
    while (aside := run.with_name(f"{run.name}.{number}")).exists():
        number += 1
    run.rename(aside)
    sync_folder(aside.parent)
    return aside


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(path: Path) -> list[list[str | int]]:
    """List names, sizes and times of change: a job may have begun to write over a name."""
    found: list[list[str | int]] = []
    for each in sorted((path, *path.rglob("*"))):
        if each.is_file():
            status = each.stat()
            found.append([str(each.relative_to(path)), status.st_size, status.st_mtime_ns])
    return found
