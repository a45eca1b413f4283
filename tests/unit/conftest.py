"""What several files of unit tests begin with."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.desk import Desk, open_desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk("memory", tmp_path) as desk:
        yield desk


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)
