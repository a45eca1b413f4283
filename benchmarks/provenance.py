"""Where figures come from: the command, the commit that ran, when, and on what."""

import os
import platform
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

_ROOT = Path(__file__).parents[1]
_BEGAN_S = time.monotonic()  # this module is imported when a benchmark begins


def provenance() -> dict[str, object]:
    """Return what every file of figures says of itself; call it when they are written.

    `commit` ends in + if what runs differed from it. `minutes` are of wall time since the program
    began, `date` is the day (UTC) on which it ended.
    """
    commit = _git("rev-parse", "--short=12", "HEAD")
    # Figures and documents may differ: they do not change what runs.
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":!docs", ":!*.md")
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "commit": (commit or "not in a repository") + ("+" if changed else ""),
        "date": datetime.now(UTC).date().isoformat(),
        "minutes": round((time.monotonic() - _BEGAN_S) / 60, 1),
        "machine": machine(),
    }


def machine() -> dict[str, object]:
    """Return what figures of speed depend on: processors, memory, load, and what runs the code."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_1m": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
