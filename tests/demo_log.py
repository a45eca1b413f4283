"""The log of a demo, made once a run; every test has a copy of its own. For conftests to import."""

import shutil
from pathlib import Path

import pytest

from console.main import main
from tests.together import alone, folder_of_run

__all__ = ["_demo", "log"]


@pytest.fixture(scope="session")
def _demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = folder_of_run(tmp_path_factory) / "demo"
    with alone(made.with_suffix(".lock")):
        if not made.exists():
            path = tmp_path_factory.mktemp("demo") / "run.db"
            command = ["demo", "--hours", "0.5", "--seconds", "0", "--no-live", "--log", str(path)]
            assert main([*command, "--json", str(path.with_suffix(".json"))]) == 0
            path.parent.rename(made)
    return made / "run.db"


@pytest.fixture
def log(_demo: Path, tmp_path: Path) -> Path:
    """A copy of its own for every test."""
    path = tmp_path / "run.db"
    shutil.copyfile(_demo, path)
    return path
