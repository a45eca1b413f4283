"""What the command does before any verb."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_NOISY = """
import os, sys
from console import main, verbs

def run(given):
    os.write(1, b"noise")
    print("{}")
    return 0

verbs.run = run
sys.argv = ["tidegate", "replay", *sys.argv[1:]]
sys.exit(main.main())
"""


_COMMAND = (sys.executable, "-m", "console.main")


@pytest.mark.parametrize("asked", [("--json", "-"), ("--json=-",)])
def test_what_a_library_prints_by_itself_is_not_in_the_answer(asked: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", _NOISY, *asked], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}\n", "noise")


def test_standard_output_may_be_named_as_a_file() -> None:
    command = [*_COMMAND, "policies", "fifo", "--json"]
    named, dash = (
        subprocess.run([*command, path], capture_output=True, text=True)
        for path in ("/dev/stdout", "-")
    )
    assert (named.stdout, named.stderr) == (dash.stdout, "")
    assert '"policy": "fifo"' in dash.stdout


@pytest.mark.parametrize("asked", [("policies",), ("policies", "--json", "-"), ("--version",)])
def test_a_full_disk_below_standard_output_is_said_in_a_sentence(asked: tuple[str, ...]) -> None:
    buffered = {name: said for name, said in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*_COMMAND, *asked], stdout=full, stderr=subprocess.PIPE, text=True, env=buffered
        )
    words = "No space left on device; make room there.\n"
    assert (done.returncode, done.stderr) == (2, words)


def closed(what: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command with a descriptor closed, as a shell does: `<&-`, `>&-`."""
    command = ["sh", "-c", f'exec "$@" {what}', "sh", *_COMMAND, *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_without_standard_output_the_command_still_ends_as_it_should() -> None:
    done = closed(">&-", "--version")
    assert done.returncode == 0, done.stderr


def test_without_standard_input_a_job_from_there_is_one_that_says_nothing() -> None:
    done = closed("<&-", "submit", "-")
    assert (done.returncode, done.stderr) == (2, "-: is empty.\n")


def test_all_that_was_closed_has_its_own_descriptor() -> None:
    """Else a file that is opened later is standard output, and takes what a library prints."""
    say = "import os, sys; from console import main; main.main(['--version'])\n"
    say += "open(sys.argv[1], 'w').write(f'{sys.stdin.fileno()} {sys.stdout.fileno()}')"
    command = ["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-c", say, "/dev/stderr"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == "0 1"
