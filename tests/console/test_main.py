"""What the command does before any verb."""

import subprocess
import sys

_NOISY = """
import os, sys
from console import main, verbs

def run(given):
    os.write(1, b"noise")
    print("{}")
    return 0

verbs.run = run
sys.argv = ["tidegate", "replay"]
sys.exit(main.main())
"""


def test_what_a_library_prints_by_itself_is_not_in_the_answer() -> None:
    done = subprocess.run([sys.executable, "-c", _NOISY], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}\n", "noise")


def test_without_standard_output_the_command_still_ends_as_it_should() -> None:
    command = [sys.executable, "-m", "console.main", "--version"]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], capture_output=True)
    assert done.returncode == 0, done.stderr
