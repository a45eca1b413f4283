"""What tests need that is not Python: the commands of `compose/`, and what to do where it lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def compose(command: str, *arguments: str, **environment: str) -> str:
    """Run a command of `compose/`; give what it says."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "compose" / command), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def lacks(what: str, reason: str) -> None:
    """Skip what cannot be tested here, saying so; on CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"no {what}: {reason}; on CI it must be there")
    pytest.skip(f"NOT TESTED here: {reason}")
