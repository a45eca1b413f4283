"""Slurm's commands as child processes: submit, list, signal, cancel.

Reads `squeue`'s columns, not `squeue --json`: that lists every job of the cluster whatever it is
asked for, and its fields differ between versions. The calls block; make them from a thread.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloud_agent.options import SlurmOptions

#: The variables that commands and jobs get of the agent's environment: no logins of the bus.
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "SLURM_CONF")
_PATH = "/usr/local/bin:/usr/bin:/bin"
#: The most that is read of a listing: about 20,000 jobs.
_OUTPUT_MAX = 4 * 1024 * 1024
_ERROR_MAX = 500
#: Final states. In any other state a job holds GPUs, or may yet.
_ENDED = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    )
)
#: States in which no part of a job has begun.
_WAITING = frozenset(
    (
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    )
)
_COLUMNS = "--format=%i|%T|%r|%k|%j"
#: Jobs are named with the id of the shared folder; those of earlier releases were not.
_FOLDER = re.compile(r"\.([0-9a-f]{16})$")
_COMMENT = re.compile(r"tidegate agent=(\S+) job=(\S+) epoch=(\d{1,16})")
_ROW = re.compile(r"(\d{1,19})(?:\+\d+)?\|([A-Z_]+)\|([^|]*)\|([^|]*)\|(.*)")


class SlurmError(Exception):
    """A command failed or timed out; it may or may not have taken effect."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as Slurm lists it. A heterogeneous job has not ended while any part of it has not."""

    id: int
    job: str
    epoch: int
    #: The id of its shared folder; empty: none is said.
    folder_id: str
    state: str
    reason: str

    @property
    def ended(self) -> bool:
        """Whether it has ended; a job that is COMPLETING still holds its GPUs."""
        return self.state in _ENDED

    @property
    def waits(self) -> bool:
        """Whether no part of it has begun."""
        return self.state in _WAITING


class Slurm:
    """The Slurm cluster, limited to the jobs of one agent's name and user."""

    def __init__(self, options: SlurmOptions) -> None:
        self._agent, self._limit_s = options.agent, options.command_s
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        passed = (*_PASSED, *options.pass_env)
        self._env = {name: os.environ[name] for name in passed if name in os.environ}
        self._env.setdefault("PATH", _PATH)
        if options.slurm_conf is not None:
            self._env["SLURM_CONF"] = str(options.slurm_conf)

    @staticmethod
    def name(job: str, epoch: int, folder_id: str) -> str:
        """Give the name of the Slurm job of a gang."""
        return f"tidegate-{job}-{epoch}.{folder_id}"

    def comment(self, job: str, epoch: int) -> str:
        """Give the comment that marks a Slurm job as this gang."""
        return f"tidegate agent={self._agent} job={job} epoch={epoch}"

    def submit(self, arguments: Sequence[str], script: Path) -> int:
        """Submit a job; give its id.

        Raises:
            SlurmError: it failed; the job may exist nevertheless.
        """
        said = self._run("sbatch", "--parsable", *arguments, str(script))
        number = said.strip().partition(";")[0]
        if not number.isdigit():
            raise SlurmError(f"sbatch: answered {said[:_ERROR_MAX]!r}, not a job's id")
        return int(number)

    def jobs(self) -> list[SlurmJob]:
        """List the jobs of agents of this name, also those that ended a moment ago.

        Raises:
            SlurmError: Slurm did not answer; nothing is known.
        """
        said = self._run("squeue", "--noheader", "--states=all", f"--user={os.geteuid()}", _COLUMNS)
        found: dict[int, SlurmJob] = {}
        for line in said.splitlines():
            row = _ROW.fullmatch(line.strip())
            mark = _COMMENT.fullmatch(row[4].strip()) if row is not None else None
            if row is None or mark is None or mark[1] != self._agent:
                continue
            folder = _FOLDER.search(row[5])
            part = SlurmJob(
                int(row[1]),
                mark[2],
                int(mark[3]),
                "" if folder is None else folder[1],
                row[2],
                row[3],
            )
            known = found.get(part.id)
            if known is None or (known.ended and _rank(part) >= _rank(known)):
                found[part.id] = part
        return sorted(found.values(), key=lambda one: one.id)

    def alert(self, job: int) -> None:
        """Signal the workers' keepers to read the request in their run folder.

        Raises:
            SlurmError: it failed.
        """
        self._run("scancel", "--signal=URG", str(job))

    def cancel(self, job: int) -> None:
        """End a job: SIGTERM, then SIGKILL after Slurm's KillWait.

        Raises:
            SlurmError: it failed.
        """
        self._run("scancel", str(job))

    def interrupt(self) -> None:
        """Kill the commands under way; they may or may not take effect."""
        for process in list(self._running.values()):
            process.kill()

    def _run(self, *command: str) -> str:
        try:
            with subprocess.Popen(
                command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as process:
                self._running[process.pid] = process
                try:
                    output, errors = process.communicate(timeout=self._limit_s)
                finally:
                    process.kill()
                    del self._running[process.pid]
        except FileNotFoundError:
            raise SlurmError(
                f"{command[0]}: is not installed on the agent's machine: install slurm-client"
            ) from None
        except OSError as error:
            raise SlurmError(f"{command[0]}: cannot be run: {error.strerror or error}") from error
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{command[0]}: no answer within {self._limit_s:g} s") from None
        if process.returncode != 0:
            said = errors.decode(errors="replace").strip()[-_ERROR_MAX:]
            raise SlurmError(f"{command[0]}: {said or f'ended with {process.returncode}'}")
        if len(output) > _OUTPUT_MAX:
            raise SlurmError(f"{command[0]}: answered {len(output)} bytes, too many to read")
        return output.decode(errors="replace")


def _rank(part: SlurmJob) -> int:
    """Rank the parts of a job by which state counts: a live one, then a failed one."""
    return 2 if not part.ended else 1 if part.state != "COMPLETED" else 0


def by_gang(jobs: Sequence[SlurmJob]) -> Mapping[tuple[str, int], list[SlurmJob]]:
    """Group Slurm jobs by (job, epoch)."""
    found: dict[tuple[str, int], list[SlurmJob]] = {}
    for one in jobs:
        found.setdefault((one.job, one.epoch), []).append(one)
    return found
