"""The workers of a gang as its supervisor sees them: started, asked, reaped, their output kept."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from runtime.executors.cgroups import Cgroup
from runtime.executors.hostile import open_plain
from runtime.executors.kernel import die_with
from runtime.executors.logs import RotatingLog, last_line
from runtime.executors.processes import children, descendants, identity, says
from runtime.identity import as_user, become

_READ_BYTES = 64 * 1024
_SECRET_MAX = 64 * 1024
#: A worker that prints without end must not keep the supervisor from its signals.
_READS_AT_ONCE = 16
#: Shells say so of commands that they cannot find, or cannot run; so do we.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
#: What frameworks print when a GPU's memory is used up.
_CUDA_OOM = ("CUDA out of memory", "OutOfMemoryError", "CUDA_ERROR_OUT_OF_MEMORY")


class Refused(Exception):
    """The workers cannot be started at all; the message says why."""


class Member:
    """One worker."""

    def __init__(self, worker: dict[str, Any], log: RotatingLog) -> None:
        """Prepare one.

        Args:
            worker: The part of the plan that is its own.
            log: Where its output goes.
        """
        self.rank: int = worker["rank"]
        self.env: dict[str, str | None] = worker["env"]
        #: The lock of its GPU, if it has one of its own; else it inherits all there are.
        self.lock: str | None = worker.get("lock")
        #: Whether it was asked to leave alone.
        self.leaving = False
        self.pid = 0
        self.output = -1
        #: As `subprocess` counts: an exit code, or a signal as a negative number.
        self.status: int | None = None
        self.killed_by_us = False
        self._log = log
        self._error = ""

    def failed_to_begin(self, error: OSError) -> None:
        """Take note that the command could not be run, as a shell would say it."""
        self.status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        self._error = f"{error.strerror}: {error.filename}"

    def begun(self, process: "subprocess.Popen[bytes]") -> None:
        """Take over what was started. It is reaped here, with its orphans, not by `subprocess`."""
        assert process.stdout is not None
        self.pid, self.output = process.pid, os.dup(process.stdout.fileno())
        os.set_blocking(self.output, False)
        process.stdout.close()
        process.returncode = 0

    def take_output(self) -> bool:
        """Move what was written into the log; False once nothing more can come."""
        for _ in range(_READS_AT_ONCE):
            if self.output < 0:
                return False
            try:
                data = os.read(self.output, _READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._log.write(data)
        return True

    def send(self, number: int) -> None:
        """Signal the worker alone, if it lives."""
        if self.pid and self.status is None:
            _send(self.pid, number)

    def left_behind(self, pid: int) -> bool:
        """Whether the process was begun by this worker, or by what that began."""
        own = (f"{name}={self.env[name]}" for name in ("TIDEGATE_GENERATION", "RANK"))
        return says(pid, *(word.encode() for word in own))

    def signal_group(self, number: int) -> bool:
        """Signal the worker and all that share its group; False if there are none."""
        if self.status is None:  # not reaped, so that its number is nobody else's
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                return False
            return True
        # The number may be given to others by now: of its group are only those that are ours.
        found = [identity(pid) for pid in descendants(os.getpid()) if _group(pid) == self.pid]
        left = [one for one in found if one is not None]
        for one in left:
            one.send(number)
        return bool(left)

    def record(self) -> dict[str, Any]:
        """Say how it ended."""
        tail, status = self._log.tail(), self.status
        return {
            "rank": self.rank,
            "code": status if status is not None and status >= 0 else None,
            "signal": -status if status is not None and status < 0 else None,
            "killed_by_us": self.killed_by_us,
            "line": self._error or last_line(tail),
            "gpu_memory": any(words in tail for words in _CUDA_OOM),
        }

    def close(self) -> None:
        """Let go of its output."""
        if self.output >= 0:
            os.close(self.output)
            self.output = -1
        self._log.close()


class Crew:
    """All workers of a run."""

    def __init__(
        self, plan: dict[str, Any], logs: Path, locks: dict[str, int], cgroup: Cgroup | None
    ) -> None:
        """Prepare what `plan` asks for; nothing is started yet.

        Args:
            plan: The part `launch` of the order.
            logs: Folder of the log files.
            locks: Descriptors of the GPU locks, by their files; workers inherit them.
            cgroup: Where the workers go, if anywhere.

        Raises:
            Refused: the folder to start in is not usable.
        """
        self.locks = locks
        self._plan, self._logs, self._cgroup = plan, logs, cgroup
        self._user: list[int] | None = plan["user"]
        workdir = plan["workdir"]
        try:
            with as_user(self._user[0] if self._user else None):
                os.stat(f"{workdir}/.")  # noqa: PTH116 - pathlib drops the dot
        except OSError:
            raise Refused(
                f"workdir: {workdir} is no folder on this machine that the job's user may enter; "
                "make it here, or name another"
            ) from None
        self._secrets = {name: secret(Path(file)) for name, file in plan["secrets"].items()}
        logs.mkdir(exist_ok=True)
        self.members: list[Member] = []
        for worker in plan["workers"]:
            self.enlist(worker)

    def enlist(self, worker: dict[str, Any]) -> Member:
        """Prepare one more worker; it is not started yet."""
        name = worker.get("log", f"rank-{worker['rank']}.log")
        max_bytes, files = self._plan["log_max_bytes"], self._plan["log_files"]
        # What is all workers' own, in a crew whose workers may come and go.
        env = {**self._plan["env"], **worker["env"]}
        log = RotatingLog(self._logs / name, max_bytes, files)
        member = Member({**worker, "env": env}, log)
        self.members.append(member)
        return member

    def start(self, member: Member) -> None:
        """Start one worker. A command that cannot be run is a worker that ended with 126 or 127."""
        parent = os.getpid()
        env = {name: value for name, value in member.env.items() if value is not None}
        env |= self._secrets
        user, workdir = self._user, self._plan["workdir"]
        locks = [self.locks[member.lock]] if member.lock else list(self.locks.values())
        cgroup = self._cgroup

        def before_command() -> None:
            if cgroup is not None:
                with contextlib.suppress(OSError):  # without it, the groups are killed one by one
                    cgroup.join()
            if user is not None:
                become(user[0], user[1:])
            die_with(parent)  # the kernel forgets it with a change of user
            os.chdir(workdir)  # as that user: it may be no folder of its

        try:
            process = subprocess.Popen(
                self._plan["argv"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                process_group=0,
                pass_fds=locks,
                preexec_fn=before_command,
            )
        except subprocess.SubprocessError as error:  # before the command
            member.failed_to_begin(OSError(0, f"its user cannot be taken on: {error}", workdir))
        except OSError as error:
            member.failed_to_begin(error)
        else:
            member.begun(process)

    def ask(self, number: int) -> None:
        """Signal every worker that lives, not what it started: that is the worker's to tell."""
        for member in self.members:
            member.send(number)

    def groups_alive(self) -> bool:
        """Whether any worker, or any process of a worker's group, lives."""
        return any(member.pid and member.signal_group(0) for member in self.members)

    def kill(self) -> None:
        """End everything: workers, their groups, their cgroup, and whoever left those."""
        for member in self.members:
            if member.pid:
                member.killed_by_us |= member.status is None
                member.signal_group(signal.SIGKILL)
        if self._cgroup is not None:
            self._cgroup.kill()
        for pid in children(os.getpid()):
            _send(pid, signal.SIGKILL)

    def reap(self) -> list[Member]:
        """Take note of whoever has ended; give the workers among them."""
        ended: list[Member] = []
        by_pid = {member.pid: member for member in self.members if member.status is None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid in by_pid:
                by_pid[pid].status = os.waitstatus_to_exitcode(status)
                ended.append(by_pid[pid])

    def dismissed(self) -> list[Member]:
        """End what is left of those who have left by themselves; give, and forget, who is gone.

        Their GPUs are free then.
        """
        gone: list[Member] = []
        for member in self.members:
            if not member.leaving or member.status != 0:
                continue
            pids = {other.pid for other in self.members}
            strays = [pid for pid in children(os.getpid()) if pid not in pids]
            strays = [pid for pid in strays if member.left_behind(pid)]
            for pid in strays:
                _send(pid, signal.SIGKILL)
            if not member.signal_group(signal.SIGKILL) and not strays:
                gone.append(member)
        for member in gone:
            self.members.remove(member)
            if member.lock is not None:
                os.close(self.locks.pop(member.lock))
        return gone

    def gone(self) -> bool:
        """Whether no process of the run is left."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False


def secret(file: Path) -> str:
    """Give a secret: a line, or more without the last line's end.

    Raises:
        Refused: there is none of this name.
    """
    try:
        with open_plain(file) as stream:
            return stream.read(_SECRET_MAX).decode().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        raise Refused(
            f"secrets: {file.parent.name}/{file.name}: {why}; ask who runs this agent for it"
        ) from None


def _group(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid)
    return None


def _send(pid: int, number: int) -> None:
    """Signal a child; one of another user's cannot be helped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
