"""Several cells on Kafka: verbs that read a log whole read the one that is named, and say which."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bus.clock import SystemClock
from bus.contract import Message
from bus.kafka import KafkaBus
from bus.options import KafkaOptions
from bus.reading import open_log
from schemas.topics import JOURNAL
from tests.brokers import fresh_namespace
from tests.builders import node_born
from tests.console.conftest import Run
from tests.console.stories import Teller

pytestmark = pytest.mark.broker
CELLS = ("default", "b")
GOLDEN = Path(__file__).parent.parent / "golden" / "fifo.jsonl.zst"


@pytest.fixture
def plant(kafka_bootstrap: str) -> str:
    """A log of two cells, of which the second has one entry more."""
    logs = []
    for number, cell in enumerate(CELLS, start=1):
        told = Teller()
        for node in range(number):
            told.feed(node_born(f"{cell}-{node}"))
        logs.append([message for _, message in told.messages])
    return _written(kafka_bootstrap, logs)


def _written(kafka_bootstrap: str, logs: Sequence[Sequence[Message]]) -> str:
    options = KafkaOptions(kafka_bootstrap, fresh_namespace(), cells=CELLS, replication=1)

    async def write() -> None:
        for cell, messages in zip(CELLS, logs, strict=True):
            bus = KafkaBus.open(options, SystemClock(), cell)
            for message in messages:
                await bus.publish(replace(message, key=cell))
            await bus.close()

    asyncio.run(write())
    return options.address


def _decided(count: int) -> list[Message]:
    """Give a journal that a real policy wrote for the cell `default`: another has other ids."""
    with open_log(GOLDEN) as log:
        entries = islice(log.records(JOURNAL.name), count)
        return [Message(JOURNAL.name, "default", one.value) for one in entries]


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


def test_every_cell_is_replayed_and_the_worst_of_them_is_what_came_of_it(
    tidegate: Run, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA__CELLS", ",".join(CELLS))
    plant = _written(kafka_bootstrap, [_decided(30), _decided(30)])
    ran = tidegate("replay", plant, "--json", "-")
    found = [(one["cell"], one["identical"]) for one in json.loads(ran.out)["cells"]]
    assert (found, ran.code) == ([("default", True), ("b", False)], 1)
    shown = tidegate("replay", plant).out
    assert shown.index("Cell default:") < shown.index("Identical") < shown.index("Cell b:")
    assert tidegate.tells("replay", plant, "--cell", "default")["decisions"] == 30
    assert tidegate("replay", plant, "--cell", "b").code == 1


def test_a_cell_that_cannot_be_read_keeps_no_other_from_being_replayed(
    tidegate: Run, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA__CELLS", ",".join(CELLS))
    torn = _decided(30)
    torn[9] = replace(torn[9], value=b"{}")
    for logs, sound in (([torn, _decided(30)], "b"), ([_decided(30), torn], "default")):
        plant = _written(kafka_bootstrap, logs)
        ran = tidegate("replay", plant, "--json", "-")
        (one,) = json.loads(ran.out)["cells"]
        assert (one["cell"], one["decisions"] > 9, ran.code) == (sound, True, 2)
        broken = next(cell for cell in CELLS if cell != sound)
        assert f"Cell {broken}: journal record 9" in ran.err
        assert tidegate("replay", plant, "--cell", broken).code == 2


def test_a_cell_without_a_journal_keeps_no_other_from_being_replayed(
    tidegate: Run, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA__CELLS", ",".join(CELLS))
    plant = _written(kafka_bootstrap, [_decided(20), []])
    ran = tidegate.does("replay", plant, "--json", "-")
    assert json.loads(ran.out)["decisions"] == 20
    assert "Cell b has no journal" in ran.err
    assert "no journal" in tidegate.refuses("replay", _written(kafka_bootstrap, [[], []]))


def test_every_cell_is_verified_and_copied_each_into_a_file_of_its_own(
    tidegate: Run, plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA__CELLS", ",".join(CELLS))
    verified = tidegate.tells("journal", "verify", plant)["cells"]
    assert [one["cell"] for one in verified] == [*CELLS]
    assert verified[1]["records"] == verified[0]["records"] + 1
    assert f"Cell b of {plant} is whole" in tidegate.does("journal", "verify", plant).out
    file = tmp_path / "run.jsonl.zst"
    copied = tidegate.tells("journal", "export", file, "--log", plant)["cells"]
    assert [Path(one["log"]).name for one in copied] == ["run.default.jsonl.zst", "run.b.jsonl.zst"]
    assert [one["records"] for one in copied] == [one["records"] for one in verified]
    assert not file.exists()
    assert tidegate.tells("journal", "verify", copied[1]["log"])["records"] == copied[1]["records"]
    # One that is there already keeps all from being written.
    Path(copied[0]["log"]).unlink()
    said = tidegate.refuses("journal", "export", file, "--log", plant)
    assert "run.b.jsonl.zst exists" in said
    assert not Path(copied[0]["log"]).exists()
    one = tidegate.tells("journal", "export", file, "--log", plant, "--cell", "b")
    assert (one["records"], one["cell"]) == (verified[1]["records"], "b")
    assert "leave it out" in tidegate.refuses("journal", "verify", file, "--cell", "b")


def _trusts_somebody(keys: Path) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (keys / "k1.pem").write_bytes(pem)


def test_the_requests_of_every_cell_are_proved(
    tidegate: Run, plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA__CELLS", ",".join(CELLS))
    _trusts_somebody(tmp_path)
    words = ("audit", "verify", plant, "--keys", tmp_path)
    counts = []
    for cell in CELLS:
        monkeypatch.setenv("TIDEGATE_CELL", cell)
        counts.append(tidegate.tells(*words)["entries"])
    monkeypatch.delenv("TIDEGATE_CELL")
    assert counts[1] == counts[0] + 1
    assert tidegate.tells(*words)["entries"] == sum(counts)


def test_an_auditor_is_told_of_a_cell_without_a_journal(
    tidegate: Run, kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been removed; beside others that are whole nothing else would show it."""
    monkeypatch.setenv("TIDEGATE_KAFKA__CELLS", ",".join(CELLS))
    _trusts_somebody(tmp_path)
    plant = _written(kafka_bootstrap, [_decided(3), []])
    ran = tidegate("audit", "verify", plant, "--keys", tmp_path)
    assert ran.err == "Cell b has no journal: nothing of it is proved.\n"
    plant = _written(kafka_bootstrap, [[], []])
    assert "no journal" in tidegate.refuses("audit", "verify", plant, "--keys", tmp_path)
