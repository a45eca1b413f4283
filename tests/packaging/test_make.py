"""What the Makefile gives to what it starts."""

import os
import subprocess

from tests.composed import ROOT


def test_what_python_compiles_is_kept_whatever_the_caller_wants() -> None:
    """Else each process of each test compiles all that it imports."""
    shown = subprocess.run(
        ["make", "--no-print-directory", "--eval=shown: ; @env", "shown"],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "PATH=" in shown
    assert "PYTHONDONTWRITEBYTECODE" not in shown
