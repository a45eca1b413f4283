"""The worker processes of a gang, as its supervisor starts, signals, reaps and logs them."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from runtime.executors.cgroups import Cgroup
from runtime.executors.kernel import die_with_parent
from runtime.executors.logs import RotatingLog, last_line
from runtime.executors.processes import children, descendants, has_in_environment, identity
from runtime.identity import as_user, become
from runtime.untrusted_files import open_regular_file

_READ_BYTES = 64 * 1024
_SECRET_MAX = 64 * 1024
#: A worker that prints without end must not keep the supervisor from handling signals.
_READS_AT_ONCE = 16
#: The exit codes of shells for a command that was not found, and for one that cannot be run.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
#: What frameworks print when a GPU's memory is used up.
_CUDA_OOM = ("CUDA out of memory", "OutOfMemoryError", "CUDA_ERROR_OUT_OF_MEMORY")


class Refused(Exception):
    """The workers cannot be started at all; the message says why."""


class WorkerProcess:
    """One worker."""

    def __init__(self, worker: dict[str, Any], log: RotatingLog) -> None:
        """Prepare one.

        Args:
            worker: Its part of the plan.
            log: Where its output goes.
        """
        self.rank: int = worker["rank"]
        self.env: dict[str, str | None] = worker["env"]
        #: The lock of its GPU, if it has its own; otherwise it inherits the locks of all GPUs.
        self.lock: str | None = worker.get("lock")
        #: Whether it was asked to leave while others stay.
        self.leaving = False
        self.pid = 0
        self.output = -1
        #: As `subprocess` counts: an exit code, or a signal as a negative number.
        self.status: int | None = None
        self.killed_by_us = False
        self._log = log
        self._error = ""

    def failed_to_start(self, error: OSError) -> None:
        """Record that the command could not be run, with the exit code of a shell."""
        self.status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        self._error = f"{error.strerror}: {error.filename}"

    def started(self, process: "subprocess.Popen[bytes]") -> None:
        """Record the process. It is reaped here, with its orphans, not by `subprocess`."""
        assert process.stdout is not None
        self.pid, self.output = process.pid, os.dup(process.stdout.fileno())
        os.set_blocking(self.output, False)
        process.stdout.close()
        process.returncode = 0
        self._log.begin()

    def take_output(self) -> bool:
        """Copy its output into the log; False once no more can come."""
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

    def spawned(self, pid: int) -> bool:
        """Whether this worker or a descendant of it started the process."""
        own = (f"{name}={self.env[name]}" for name in ("TIDEGATE_GENERATION", "RANK"))
        return has_in_environment(pid, *(word.encode() for word in own))

    def signal_group(self, number: int) -> bool:
        """Signal the worker's process group; False if it is empty."""
        if self.status is None:  # not reaped yet, so its pid cannot have been reused
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                return False
            return True
        # The pid may have been reused by now: signal only our own descendants of that group.
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
        """Close its output and its log."""
        if self.output >= 0:
            os.close(self.output)
            self.output = -1
        self._log.close()


class WorkerGroup:
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
        # Others may go through the run's folder: what workers say is for the agent alone.
        logs.mkdir(mode=0o700, exist_ok=True)
        self.members: list[WorkerProcess] = []
        for worker in plan["workers"]:
            self.add(worker)

    def add(self, worker: dict[str, Any]) -> WorkerProcess:
        """Prepare one more worker; it is not started yet."""
        name = worker.get("log", f"rank-{worker['rank']}.log")
        max_bytes, files = self._plan["log_max_bytes"], self._plan["log_files"]
        # `plan["env"]` is common to all workers, also to those that are added later.
        env = {**self._plan["env"], **worker["env"]}
        log = RotatingLog(self._logs / name, max_bytes, files)
        member = WorkerProcess({**worker, "env": env}, log)
        self.members.append(member)
        return member

    def start(self, member: WorkerProcess) -> None:
        """Start one worker. If its command cannot be run, it counts as ended with 126 or 127."""
        parent = os.getpid()
        env = {name: value for name, value in member.env.items() if value is not None}
        env |= self._secrets
        user, workdir = self._user, self._plan["workdir"]
        locks = [self.locks[member.lock]] if member.lock else list(self.locks.values())
        cgroup = self._cgroup

        def before_command() -> None:
            if cgroup is not None:
                with contextlib.suppress(OSError):  # then the process groups are killed one by one
                    cgroup.join()
            if user is not None:
                become(user[0], user[1:])
            die_with_parent(parent)  # a change of user resets it
            os.chdir(workdir)  # as that user, who may lack the right to enter it

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
            member.failed_to_start(OSError(0, f"its user cannot be taken on: {error}", workdir))
        except OSError as error:
            member.failed_to_start(error)
        else:
            member.started(process)

    def signal_all(self, number: int) -> None:
        """Signal every live worker, but not its children: telling those is up to the worker."""
        for member in self.members:
            member.send(number)

    def groups_alive(self) -> bool:
        """Whether any worker, or any process of a worker's group, lives."""
        return any(member.pid and member.signal_group(0) for member in self.members)

    def kill(self) -> None:
        """Kill everything: workers, their process groups, their cgroup, and all other children."""
        for member in self.members:
            if member.pid:
                member.killed_by_us |= member.status is None
                member.signal_group(signal.SIGKILL)
        if self._cgroup is not None:
            self._cgroup.kill()
        for pid in children(os.getpid()):
            _send(pid, signal.SIGKILL)

    def reap(self) -> list[WorkerProcess]:
        """Reap all ended children; give the workers among them."""
        ended: list[WorkerProcess] = []
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

    def reap_departed(self) -> list[WorkerProcess]:
        """Kill what the workers that left by themselves left behind; remove and give those gone.

        Their GPUs are free then.
        """
        gone: list[WorkerProcess] = []
        for member in self.members:
            if not member.leaving or member.status != 0:
                continue
            pids = {other.pid for other in self.members}
            orphans = [pid for pid in children(os.getpid()) if pid not in pids]
            orphans = [pid for pid in orphans if member.spawned(pid)]
            for pid in orphans:
                _send(pid, signal.SIGKILL)
            if not member.signal_group(signal.SIGKILL) and not orphans:
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
    """Give the text of a secret, without the last line feed.

    Raises:
        Refused: there is no such secret.
    """
    try:
        with open_regular_file(file) as stream:
            data = stream.read(_SECRET_MAX + 1)
        if len(data) > _SECRET_MAX:  # part of one is none
            raise OSError(0, f"has more than {_SECRET_MAX // 1024} KiB")
        if b"\0" in data:  # which the kernel takes for its end
            raise OSError(0, "is no text")
        return data.decode().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        raise Refused(
            f"secrets: {file.parent.name}/{file.name}: {why}; ask the operator of this agent for it"
        ) from None


def _group(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid)
    return None


def _send(pid: int, number: int) -> None:
    """Signal a child, if it lives and we may."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
