"""The run folder of one (job, epoch): what agent and nodes tell each other through shared files.

`<root>/runs/<job>/<epoch>/` holds

    claim            the fence: a link to the id of the Slurm job that runs it, or to `closed`
    wish             what the agent asks of the workers, numbered
    exits/RANK       how a worker ended badly: its code and node
    exit             how the whole ended; outlives what Slurm remembers
    told             Slurm asked the workers to leave; or the lease ended, by the clock of the
                     node that is named in it: not the agent
    batch.sh, keeper.sh, progress*.jsonl, checkpoints/, work/, logs/, resume/

`<root>/lease` says to all of an agent until when they may run, and what they have to leave then.
"""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime.durable import write_file
from runtime.executors.folder import LOGS, PROGRESS
from runtime.executors.logs import last_line
from runtime.untrusted_files import open_regular_file, read_tail

LEASE = "lease"
_CLOSED = "closed"
_TAIL_BYTES = 4096
#: Numbers and a node's name.
_HEAD_BYTES = 512
#: An error names at most this many failed workers.
_NAMED_MAX = 3
#: Exit codes of shells: the command cannot be run or was not found; killed by SIGTERM or SIGKILL.
_NOT_FOUND, _ENDED_BY_SIGNAL = ("126", "127"), ("143", "137")


@dataclass(frozen=True, slots=True)
class Run:
    """Files of one run. A read gives None if the file is missing or unreadable."""

    folder: Path

    def claim(self) -> int | None:
        """Give the Slurm job that has begun to run it."""
        said = self._claim()
        return int(said) if said is not None and said.isdecimal() else None

    def close(self) -> bool:
        """See that it never runs, unless a Slurm job runs it already; tell whether it is closed.

        Raises:
            OSError: the shared folder does not answer.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (self.folder / "claim").symlink_to(_CLOSED)
        return self._claim() == _CLOSED

    def requests(self) -> int:
        """Give the number of the last request to the keepers; 0: there was none."""
        said = _head(self.folder / "wish").split(" ")[0]
        return int(said) if said.isdecimal() else 0

    def request(self, number: int, verb: Literal["save", "leave"], grace_s: int) -> None:
        """Write a request to the workers' keepers; they carry out each number once.

        Raises:
            OSError: the shared folder cannot be written.
        """
        said = f"{number} {verb} {grace_s}\n"
        write_file(self.folder / "wish", said.encode(), synced=False)

    def exit_code(self) -> int | None:
        """Give the exit code of the batch script; None while it runs, or if it wrote none."""
        text = _head(self.folder / "exit").strip()
        return int(text) if text.isdecimal() else None

    def told(self) -> str | None:
        """Say why workers were asked to leave, if not by the agent; None: they were not."""
        if not (self.folder / "told").exists():
            return None
        node = _head(self.folder / "told").strip()
        if not node:
            return "Slurm asked the workers to leave (a time limit, a preemption, an operator)"
        return f"the agent's lease ended by the clock of {node}; set that right if it is wrong"

    def failures(self) -> tuple[str, bool]:
        """Name the workers that ended badly; tell whether the command could be run at all."""
        ends: list[tuple[str, str, str]] = []
        try:
            for path in sorted((self.folder / "exits").iterdir(), key=lambda one: int(one.name)):
                code, _, node = _head(path).strip().partition(" ")
                ends.append((path.name, code, node))
        except (OSError, ValueError):
            pass  # what there is of them
        # Slurm ends the others when one fails; those are not to blame.
        first = [end for end in ends if end[1] not in _ENDED_BY_SIGNAL] or ends
        said = [
            f"worker {rank} on {node} ended with {_named(code)}: "
            + self._last_line(self.folder / LOGS / f"rank-{rank}.log")
            for rank, code, node in first[:_NAMED_MAX]
        ]
        return "; ".join(said), not any(code in _NOT_FOUND for _, code, _ in first)

    def last_words(self) -> str:
        """Give the last line of the batch script's log."""
        return self._last_line(self.folder / LOGS / "slurm.log")

    def _claim(self) -> str | None:
        try:
            return str((self.folder / "claim").readlink())
        except OSError:
            return None

    def _last_line(self, path: Path) -> str:
        return last_line(read_tail(path, _TAIL_BYTES).decode(errors="replace"))


def _head(path: Path) -> str:
    """Give the first bytes of a file that a job may have swapped; empty if there is none."""
    try:
        with open_regular_file(path) as file:
            return file.read(_HEAD_BYTES).decode(errors="replace")
    except OSError:
        return ""


def write_lease(root: Path, until_s: float | None, grace_s: float) -> None:
    """Say until when gangs may run, in seconds since 1970; None: there is no end.

    Raises:
        OSError: the shared folder cannot be written.
    """
    if until_s is None:
        (root / LEASE).unlink(missing_ok=True)
        return
    said = f"{math.ceil(until_s)} {math.ceil(grace_s)}\n"
    write_file(root / LEASE, said.encode(), synced=False)


def progress_names(nodes: int) -> list[str]:
    """Name the files in which the workers of each node say how far they are."""
    return [PROGRESS, *(f"progress-{number}.jsonl" for number in range(1, nodes))]


def _named(code: str) -> str:
    """Say what a shell's exit code means."""
    number = int(code) if code.isdecimal() else 0
    return f"signal {number - 128}" if number > 128 else f"code {code}"
