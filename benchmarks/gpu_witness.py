"""The witness of `benchmarks.gpu`: whose processes are on the GPU, by others than Tidegate."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The owner's server, and the job that trains; both are in `examples`.
PROGRAMS = ("inference_server.py", "train_ddp.py")
#: The job that leaves a process behind; `benchmarks.gpu` writes it.
LEAVES_PROGRAM = "leaves.py"


class Witness:
    """Who is on the GPU, by the driver and by /proc: it believes nothing that Tidegate says."""

    def __init__(self, library: Any | None, folder: Path) -> None:
        self._library, self._folder = library, folder
        self.ended = threading.Event()
        #: (moment, there is a server, there are workers, processes on the GPU, MiB used, busy).
        self.looks: list[tuple[float, bool, bool, int, float, float]] = []
        self.workers: tuple[int, ...] = ()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        handle = self._library and self._library.nvmlDeviceGetHandleByIndex(0)
        while not self.ended.wait(0.05):
            servers, *jobs = (pids_of(self._folder / name) for name in (*PROGRAMS, LEAVES_PROGRAM))
            workers = [pid for pids in jobs for pid in pids]
            on_gpu, used, busy = len(servers) + len(workers), 0.0, 0.0
            if self._library:
                on_gpu = len(self._library.nvmlDeviceGetComputeRunningProcesses(handle))
                used = self._library.nvmlDeviceGetMemoryInfo(handle).used / 2**20
                busy = self._library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            self.workers = tuple(workers)
            self.looks.append((time.time(), bool(servers), bool(workers), on_gpu, used, busy))

    def first(self, since_s: float, is_so: Callable[[tuple[Any, ...]], bool]) -> float | None:
        """Give the seconds from a moment to the first look of which something is so."""
        return next(
            (round(one[0] - since_s, 2) for one in self.looks if one[0] >= since_s and is_so(one)),
            None,
        )


def pids_of(program: Path) -> list[int]:
    """Find the processes that run a program of this run, by their arguments."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if len(words) > 1 and words[1] == os.fsencode(program):
                    found.append(int(folder.name))
    return found
