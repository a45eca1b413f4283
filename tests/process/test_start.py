"""How the command begins: garbage is not looked for among what it imports."""

import gc
import subprocess
import sys

import pytest

from console.main import main

#: Ends as the command does, and says at last how garbage is looked for.
_SCRIPT = """
import gc, sys
from console.main import main
code = main()
print(gc.isenabled(), gc.get_freeze_count() > 10_000, gc.get_threshold()[0] > 0, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("jobs", "--log", "none.db"), 2),  # a verb
        (("edge-agent", "--config", "none.toml"), 2),  # a service
        (("no-verb",), 2),
    ],
)
def test_a_command_looks_for_garbage_but_not_in_what_it_imported(
    words: tuple[str, ...], code: int
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *words], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (code, "True True True"), ran.stderr


#: The same of what a verb imports late: whether that is among what garbage is looked for in.
_LATE = """
import gc, sys
from console.main import main
code = main()
late = vars(sys.modules["gateway.server"])
print(gc.isenabled(), any(one is late for one in gc.get_objects()), file=sys.stderr)
sys.exit(code)
"""


def test_nor_among_what_a_verb_imports_when_it_needs_it() -> None:
    words = ("serve", "none.db")
    ran = subprocess.run(
        [sys.executable, "-c", _LATE, *words], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (2, "True False"), ran.stderr


def test_who_calls_it_looks_for_garbage_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    before = gc.get_freeze_count()
    assert main(["--version"]) == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() <= before
