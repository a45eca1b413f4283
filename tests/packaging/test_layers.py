"""What tests/conftest.py holds of the layers, seen on a small tree of tests."""

import subprocess
import sys
from pathlib import Path

from tests.composed import ROOT

STARTS = "subprocess.run(['true'], check=True)"
#: More tests than the file of another layer has, so that a worker runs it first.
BROKERS = f"""
import subprocess, pytest

@pytest.fixture(scope="session")
def broker():
    yield
    {STARTS}

@pytest.mark.parametrize("n", range(4))
def test_with_a_broker(broker, n):
    pass
"""
UNIT = f"""
import subprocess, pytest

def test_alone():
    with pytest.raises(pytest.fail.Exception, match="mark this test"):
        {STARTS}

@pytest.mark.process
def test_with_a_process():
    {STARTS}

def test_the_last_of_all():
    pass
"""


def run(folder: Path, parts: dict[str, str]) -> str:
    """Run tests under our conftest, on one worker that may put them in any order."""
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    begin, _, rest = conftest.partition("pytest_plugins = ")
    tree = {"conftest.py": begin + rest.partition("\n")[2], **parts}
    for name, text in tree.items():
        file = folder / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = process: starts one\n")
    options = ["-q", "-p", "no:cacheprovider", "-n", "1", "--dist", "loadfile"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def test_a_broker_ends_after_a_test_that_may_start_no_process(tmp_path: Path) -> None:
    said = run(tmp_path, {"integration/test_broker.py": BROKERS, "unit/test_unit.py": UNIT})
    assert "7 passed" in said, said
    assert "error" not in said, said
