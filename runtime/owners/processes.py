"""Child processes that are never started twice and always found again. Linux only.

A child leads its own session. Its identity (pid, start time, boot) is written to a file before its
command begins: a shell waits for a line from us, and exits if we die before. So after a crash every
command that may be running is found, and a reused pid is not mistaken for it.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from runtime.durable import write_json
from runtime.executors.processes import Identity, boot_id, identity
from runtime.untrusted_files import read_tail

#: Waits for one line on its input, then becomes the command. 125: no line came.
_SHELL = 'read -r _ || exit 125; exec "$@" </dev/null'


class _Popen(subprocess.Popen[bytes]):
    """A child that may outlive us, so not waiting for it is no mistake."""

    def __del__(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Child:
    """A process that we started, so that we can reap it."""

    identity: Identity
    _process: _Popen

    def code(self) -> int | None:
        """Give the exit status, negative if a signal ended it; None while it runs."""
        return self._process.poll()


def start(
    argv: Sequence[str],
    *,
    record: Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    workdir: Path | None = None,
    locks: Sequence[int] = (),
) -> Child:
    """Start a command as the leader of a new session, after writing down who it is.

    Args:
        argv: The command; the shell's statuses 126 and 127 say that it cannot be run.
        record: Where its identity goes.
        log: The file that its output is appended to.
        env: Added to our environment.
        workdir: Where it starts; None: where we are.
        locks: Descriptors that it inherits, with the locks on them.

    Raises:
        OSError: a folder or file is missing or closed to us, or there are too many processes.
    """
    with log.open("ab") as output:
        process = _Popen(
            ["/bin/sh", "-c", _SHELL, "sh", *argv],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=workdir,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            pass_fds=locks,
        )
    word = process.stdin
    assert word is not None
    try:
        who = identity(process.pid) or Identity(process.pid, -1, boot_id())
        write_json(record, asdict(who), synced=False)  # nor does the process
        with contextlib.suppress(BrokenPipeError), word:
            word.write(b"\n")
    except OSError:
        process.kill()
        process.communicate()
        raise
    return Child(who, process)


def recorded(record: Path) -> Identity | None:
    """Read the identity that `start` wrote; None if there is none, or the file is torn."""
    try:
        return Identity(**orjson.loads(record.read_bytes()))
    except (OSError, orjson.JSONDecodeError, TypeError):
        return None


def session(who: Identity) -> list[int]:
    """Find the processes of the session that `who` leads or has led.

    The kernel does not reuse a pid while a session has it. So if another process has the pid, the
    session is over.
    """
    there = identity(who.pid)
    if who.boot != boot_id() or (there is not None and there != who):
        return []
    found = []
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal() and _session_of(pid := int(entry.name)) == who.pid:
                if identity(pid) is not None:
                    found.append(pid)
    return found


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)  # faster than reading /proc, and there may be thousands
    except (ProcessLookupError, PermissionError):
        return None


def take_lock(path: Path) -> int | None:
    """Lock a file; give the open descriptor, or None if another process holds the lock.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _holders(lock: Path) -> list[int]:
    """Find the processes that inherited a lock, also of other sessions, except ourselves."""
    target, found = str(lock.resolve()), []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        pid = int(folder.parent.name)
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to look at
            if pid != os.getpid() and any(str(fd.readlink()) == target for fd in folder.iterdir()):
                found.append(pid)
    return found


class SessionTermination:
    """Ends the processes of a session and those that inherited its lock: SIGTERM, then SIGKILL."""

    def __init__(
        self, who: Identity | None, now_s: float, grace_s: float, lock: Path | None = None
    ) -> None:
        """Send SIGTERM now; from `grace_s` later on, `poll` sends SIGKILL."""
        self._who, self._lock = who, lock
        self._kill_s = now_s + grace_s
        if who is not None and (who.alive() or session(who)):
            # Only its first group: shells and process pools pass the signal on by themselves.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(who.pid, signal.SIGTERM)

    def poll(self, now_s: float) -> bool:
        """Whether no process of it is left."""
        if self._who is not None and now_s < self._kill_s and self._who.alive():
            return False  # spares a look at every process of the machine
        left = [] if self._who is None else session(self._who)
        if self._lock is not None and not left:
            descriptor = take_lock(self._lock)
            if descriptor is not None:
                os.close(descriptor)
                return True
            left = _holders(self._lock)
        elif not left:
            return True
        if now_s >= self._kill_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        return False


def bound_log(log: Path, max_bytes: int) -> None:
    """Cut a log that is too long to its last half; its writers append and go on.

    Lines written at the same moment may be lost; keeping logs from filling the disk matters more.
    A log that cannot be cut (a full disk, one that fails) stays as it is: it is no reason to end.
    """
    with contextlib.suppress(OSError), log.open("r+b") as file:
        if file.seek(0, os.SEEK_END) <= max_bytes:
            return
        file.seek(-(max_bytes // 2), os.SEEK_END)
        tail = file.read(max_bytes // 2)
        file.seek(0)
        file.truncate()
        file.write(tail)


def last_line(log: Path) -> str:
    """Give the last line of a log, cut to 200 characters; empty if there is none."""
    lines = read_tail(log, 4096).decode("utf-8", "replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
