"""A log with stories, and the command run in this process."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from console.main import main
from tests.console.installing import Site
from tests.console.stories import Teller, tell

TRACE_HEADER = "job_id,submit_time,num_gpus,duration,deadline\n"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


class Run:
    """The command, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        """Run it, whatever comes of it."""
        self._capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = self._capsys.readouterr()
        return Ran(code, said.out, said.err)

    def does(self, *arguments: object) -> Ran:
        """Run it; it ends well."""
        ran = self(*arguments)
        assert ran.code == 0, ran.err
        return ran

    def refuses(self, *arguments: object) -> str:
        """Run it; it was called wrongly, shows nothing, and says why. Give that."""
        ran = self(*arguments)
        assert (ran.code, ran.out) == (2, ""), ran
        return ran.err

    def needs_nothing(self, *arguments: object) -> str:
        """Run it; what it asks for is so already, which is well. Give what it says of that."""
        ran = self(*arguments)
        assert (ran.code, ran.err) == (0, ""), ran
        return ran.out

    def tells(self, *arguments: object) -> Any:
        """Run it; it ends well, and shows JSON. Give that."""
        return json.loads(self.does(*arguments, "--json", "-").out)


def small(trace: Path, *more: object) -> tuple[object, ...]:
    """Give the command that simulates a trace, quickly."""
    return (
        "simulate", "--workload", trace, "--policy", "fifo", "--nodes", "2", "--processes", "1",
        *more,
    )  # fmt: skip


@pytest.fixture(scope="session")
def told() -> Teller:
    return tell()


@pytest.fixture(scope="session")
def _written(told: Teller, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "run.db"
    told.write(path)
    return path


@pytest.fixture
def log(_written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of its own for every test; its scheduler is gone, so that waiting for it is short."""
    monkeypatch.setattr("console.request.ANSWER_S", 0.1)
    path = tmp_path / "run.db"
    shutil.copyfile(_written, path)
    return path


@pytest.fixture
def tidegate(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"job{i},{i * 100},{1 + i % 4},{300 + i},{i * 100 + 700}\n" for i in range(12)]
    path.write_text(TRACE_HEADER + "".join(rows))
    return path
