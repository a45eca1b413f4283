"""Hypothesis profiles, and the order of the layers.

Fast ones come first. After them come the ones with the longest tests, so that the last tests are
short and no worker goes on alone at the end.
"""

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from scheduler.core.engine import Engine

#: The fixtures that give brokers, clusters and real workers.
pytest_plugins = ["tests.brokers", "tests.kubernetes_bed", "tests.slurm", "tests.workers"]

LAYERS = (
    "unit",
    "property",
    "model",
    "chaos",
    "integration",
    "whole",
    "deploy",
    "security",
    "packaging",
    "browser",
    "console",
    "contract",
    "gateway",
    "process",
    "simulation",
    "client",
    "golden",
)
TESTS = Path(__file__).parent
#: What changes how programs print.
TERMINAL = ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TERM", "TTY_COMPATIBLE")
#: What tests and `compose/` read after their modules were imported.
OURS = ("TIDEGATE_KAFKA_JARS", "TIDEGATE_KUBERNETES", "TIDEGATE_KUBERNETES_BIN")

#: How many lines of a process's log are shown where its test failed.
LOG_LINES = 15
#: Layers whose tests start no process, but for those that are marked `process`: `make quick`.
QUICK = ("unit", "property", "model")
_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec")

Engine.strict = True

settings.register_profile("laptop", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=200)
#: `make quick` names it; `make test` has all examples.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile("ci" if os.environ.get("CI") else "laptop")


@pytest.fixture(scope="session", autouse=True)
def _environment_of_tests() -> Iterator[None]:
    """Keep the caller's terminal, deployment and proxy from tests."""
    others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name in TERMINAL or (name.startswith("TIDEGATE_") and name not in OURS):
                patch.delenv(name)
        for name in ("no_proxy", "NO_PROXY"):  # what tests serve is on this machine
            patch.setenv(name, f"{others},localhost,127.0.0.1")
        yield


@pytest.fixture(autouse=True)
def _levels_of_logs() -> Iterator[None]:
    """Undo what a test hushes: a later one of this process may be about what is logged."""
    levels = {logger: logger.level for logger in _loggers()}
    yield
    for logger in _loggers():
        if logger.level != levels.get(logger, logging.NOTSET):
            logger.setLevel(levels.get(logger, logging.NOTSET))


def _loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(one for one in known if isinstance(one, logging.Logger))]


def _layer(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the layers in the order of `LAYERS`, and any other folder after them."""
    rank = {layer: place for place, layer in enumerate(LAYERS)}
    items.sort(key=lambda item: rank.get(_layer(item), len(LAYERS)))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep Python from looking for garbage in what is imported: a fifth of the time of `quick`."""
    gc.disable()
    try:
        _import_tests(session.config)
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _import_tests(config: pytest.Config) -> None:
    """Have each of several workers begin elsewhere: where nothing is compiled yet, they share that.

    In one order, each would compile all: half of their time until the first test.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    folders = [Path(asked) for asked in config.args if Path(asked).is_dir()]
    files = sorted(file.resolve() for folder in folders for file in folder.rglob("test_*.py"))
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in (*files[first:], *files[:first]):
        # What cannot be imported is told of where it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beside a failure what the processes of its test said last."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.when == "call" and report.failed and folder is not None:
        for log in sorted(folder.rglob("*.log")):
            last = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            report.sections.append((str(log.relative_to(folder)), "\n".join(last)))
    return report


_starts_none: pytest.Item | None = None  # the test that is running, if it may start no process


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep tests of the quick layers from starting processes."""
    global _starts_none
    alone = _layer(item) in QUICK and item.get_closest_marker("process") is None
    _starts_none = item if alone else None
    try:
        return (yield)
    finally:
        _starts_none = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Let brokers of other layers be stopped: what a session began ends with its last test."""
    global _starts_none
    if nextitem is None:
        _starts_none = None
    return (yield)


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if _starts_none is not None and event in _STARTS:
        pytest.fail(f"{event}: mark this test `process`, or move it to tests/process")


sys.addaudithook(_refuse)
