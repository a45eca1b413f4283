"""Processes by identity: a pid is reused, a pid with its start time is not.

Source of the formats: proc(5). Imports little, because the supervisor does.
"""

import contextlib
import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

_PROC = Path("/proc")
#: Fields of /proc/PID/stat after the command's closing parenthesis, counted from 0.
_STATE, _STARTED, _MEMORY, _ENVIRON_BEGINS, _ENVIRON_ENDS = 0, 19, 20, 47, 48
#: How often, and how far apart, processes in execve are read again: for a second in all.
_LOOKS, _LOOK_S = 200, 0.005
#: A process without an environment at this many reads in a row has none. One read does not tell:
#: while Linux sets up a program in memory, its environment is empty.
_NONE = 10


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, distinct from all others that had or will have its pid."""

    pid: int
    #: When it began, in clock ticks since boot.
    started: int
    #: The boot, by `boot_id`.
    boot: str

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return identity(self.pid) == self

    def send(self, number: int) -> bool:
        """Send a signal to it and no other process; False if it is gone, or another user's."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # A pidfd always refers to one process, so what is checked here still holds below.
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(handle)
        return True


def identity(pid: int) -> Identity | None:
    """Give the identity of a living process; None if there is none, or only its zombie."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    if len(fields) <= _STARTED or fields[_STATE] in (b"Z", b"X"):
        return None
    return Identity(pid, int(fields[_STARTED]), boot_id())


def _stat(pid: int) -> list[bytes]:
    stat = (_PROC / str(pid) / "stat").read_bytes()
    # The command may hold anything, parentheses and spaces too; the last one closes it.
    return stat[stat.rfind(b")") + 2 :].split()


@functools.cache
def boot_id() -> str:
    """Name the machine's present boot."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _environments(pids: Iterable[int]) -> Iterator[tuple[int, list[bytes]]]:
    """Give the initial environment of processes, as `NAME=value`; none of one that has none.

    Left out is who is gone, or another user's. During execve Linux shows none for a moment: that is
    waited for together, as there may be many who have none.
    """
    waiting, none = list(pids), Counter[int]()
    for look in range(_LOOKS):
        left = []
        for pid in waiting:
            try:
                environ = (_PROC / str(pid) / "environ").read_bytes()
                fields = [] if environ else _stat(pid)
            except OSError:
                continue
            if environ:
                yield pid, environ.split(b"\0")
                continue
            is_none = b"0" != fields[_ENVIRON_BEGINS] == fields[_ENVIRON_ENDS]
            none[pid] = none[pid] + 1 if is_none else 0
            # Without memory it is the kernel's own, or a zombie.
            if none[pid] == _NONE or fields[_MEMORY] == b"0" or look == _LOOKS - 1:
                yield pid, []
            else:
                left.append(pid)
        if not left:
            return
        waiting = left
        time.sleep(_LOOK_S)


def has_in_environment(pid: int, *words: bytes) -> bool:
    """Whether the process started with all of these in its environment, as `NAME=value`."""
    return any(all(word in environ for word in words) for _, environ in _environments([pid]))


def children(pid: int) -> list[int]:
    """Give the pids of a process's visible children."""
    found: list[int] = []
    for task in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """Give the descendants of a process that main threads started.

    Reading every thread would take long: a training process has a hundred.
    """
    found: list[int] = []
    for parent in chain([pid], found):  # `found` grows meanwhile
        with contextlib.suppress(OSError):
            found += map(int, (_PROC / f"{parent}/task/{parent}/children").read_text().split())
    return found


@dataclass(frozen=True, slots=True)
class Worker:
    """A process whose environment names the run that it belongs to."""

    identity: Identity
    job: str
    epoch: str


def workers_of(agent: str, root: Path | None = None) -> Iterator[Worker]:
    """Find the processes that run for this agent, supervisors and workers' children too.

    Args:
        agent: Its name.
        root: Where its runs are. An agent of another fleet may have its name, on the same machine.
    """
    wanted = b"TIDEGATE_AGENT=" + agent.encode()
    below = None if root is None else os.fsencode(root.resolve()) + b"/"
    pids = [int(folder.name) for folder in _PROC.iterdir() if folder.name.isdigit()]
    for pid, environ in _environments(pids):
        if wanted not in environ:
            continue
        said = dict(part.split(b"=", 1) for part in environ if b"=" in part)
        if below and not os.path.realpath(said.get(b"TIDEGATE_PROGRESS", b"")).startswith(below):
            continue
        found = identity(pid)
        if found is not None:
            job, epoch = said.get(b"TIDEGATE_JOB", b""), said.get(b"TIDEGATE_EPOCH", b"")
            yield Worker(found, job.decode(errors="replace"), epoch.decode(errors="replace"))
