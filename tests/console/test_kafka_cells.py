"""Several cells on Kafka: verbs that read a log whole read the one that is named, and say which."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.kafka import KafkaBus
from bus.options import KafkaOptions
from tests.brokers import fresh_namespace
from tests.builders import node_born
from tests.console.conftest import Run
from tests.console.stories import Teller

pytestmark = pytest.mark.broker
CELLS = ("default", "b")


@pytest.fixture
def plant(kafka_bootstrap: str) -> str:
    """A log of two cells, of which the second has one entry more."""
    options = KafkaOptions(kafka_bootstrap, fresh_namespace(), cells=CELLS, replication=1)

    async def write() -> None:
        for number, cell in enumerate(CELLS, start=1):
            told = Teller()
            for node in range(number):
                told.feed(node_born(f"{cell}-{node}"))
            bus = KafkaBus.open(options, SystemClock(), cell)
            for _, message in told.messages:
                await bus.publish(replace(message, key=cell))
            await bus.close()

    asyncio.run(write())
    return options.address


def test_the_cell_that_is_named_is_read(
    tidegate: Run, plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA__CELLS", ",".join(CELLS))
    drawn = [
        tidegate.does("journal", "perfetto", plant, tmp_path / f"{cell}.json", "--cell", cell).out
        for cell in CELLS
    ]
    first, other = (int(said.split()[0]) for said in drawn)
    assert other == first + 1
    # The policy that decided here is a test's: no replay knows it, but it has found the journal.
    for verb in ("replay", "branch"):
        assert "policy 'scripted' is not known" in tidegate(verb, plant, "--cell", "b").err


def test_where_none_is_named_it_is_said_that_there_are_more(
    tidegate: Run, plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of one cell must not be taken for one of all."""
    alone = "Of 2 cells this is default alone"
    ran = tidegate.does("journal", "export", tmp_path / "run.jsonl", "--log", plant)
    assert f"{alone}; TIDEGATE_CELL=NAME is another" in ran.err
    assert "TIDEGATE_KAFKA__CELLS" in ran.err, "it has the names"
    assert "TIDEGATE_KAFKA__CELLS" in tidegate.refuses("replay", plant, "--cell", "b")
    monkeypatch.setenv("TIDEGATE_KAFKA__CELLS", ",".join(CELLS))
    ran = tidegate.does("journal", "stats", plant)
    assert (alone in ran.err, "TIDEGATE_KAFKA__CELLS" in ran.err) == (True, False)
    monkeypatch.setenv("TIDEGATE_CELL", "b")
    assert tidegate.does("journal", "verify", plant).err == ""
