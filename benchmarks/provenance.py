"""Where figures come from: the command, the commit that ran, and what it ran on."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np

_ROOT = Path(__file__).parents[1]


def provenance() -> dict[str, object]:
    """Return what every file of figures says of itself. `commit` ends in + if files differ."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    # Figures and documents may differ: they do not change what runs.
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":!docs", ":!*.md")
    command = " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    return {
        "command": command,
        "commit": (commit or "not in a repository") + ("+" if changed else ""),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpus": os.cpu_count(),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
