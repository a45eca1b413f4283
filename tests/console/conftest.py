"""A log with stories, and the command run in this process."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from console.main import main
from tests.console.stories import Teller, tell


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(scope="session")
def told() -> Teller:
    return tell()


@pytest.fixture(scope="session")
def _written(told: Teller, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "run.db"
    told.write(path)
    return path


@pytest.fixture
def log(_written: Path, tmp_path: Path) -> Path:
    """A copy of its own for every test."""
    path = tmp_path / "run.db"
    shutil.copyfile(_written, path)
    return path


@pytest.fixture
def tidegate(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run
