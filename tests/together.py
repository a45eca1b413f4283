"""What the workers of a run share: a folder, and turns in it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """Give the folder of the whole run, in which each worker has one of its own."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other worker holds this lock, and hold it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
