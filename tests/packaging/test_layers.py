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


#: One worker, which may put files in any order.
ANY_ORDER = ("-p", "no:cacheprovider", "-n", "1", "--dist", "loadfile")


def run(folder: Path, parts: dict[str, str], *options: str) -> str:
    """Run tests under our conftest."""
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    begin, _, rest = conftest.partition("pytest_plugins = ")
    tree = {"conftest.py": begin + rest.partition("\n")[2], **parts}
    for name, text in tree.items():
        file = folder / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = process: starts one\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "tests"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def test_a_broker_ends_after_a_test_that_may_start_no_process(tmp_path: Path) -> None:
    parts = {"integration/test_broker.py": BROKERS, "unit/test_unit.py": UNIT}
    said = run(tmp_path, parts, *ANY_ORDER)
    assert "7 passed" in said, said
    assert "error" not in said, said


def test_the_longest_tests_begin_after_the_fast_ones_and_the_rest_is_last(tmp_path: Path) -> None:
    layers = ("chaos", "gateway", "integration", "process", "unit", "whole")
    one = "def test_one():\n    pass\n"
    said = run(tmp_path, {f"{name}/test_{name}.py": one for name in layers}, "--collect-only")
    begun = [line.split("/")[1] for line in said.splitlines() if "::" in line]
    assert begun == ["unit", "chaos", "integration", "whole", "gateway", "process"], said


def test_what_a_test_hushes_is_heard_in_the_next(tmp_path: Path) -> None:
    hushes = """
import logging

def test_hushes():
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("new").setLevel(logging.CRITICAL)

def test_hears():
    for name in ("asyncio", "new"):
        assert logging.getLogger(name).level == logging.NOTSET
"""
    assert "2 passed" in run(tmp_path, {"unit/test_logs.py": hushes})
