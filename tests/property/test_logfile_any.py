"""Any records come back as they were, and no changed byte goes unnoticed."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from bus.contract import BusError, Record
from bus.logfile import Head, write_log
from bus.reading import import_log, open_log

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
TOPICS = ("tidegate.events.v1", "tidegate.cells.v1", "a b\n\u2028")


@st.composite
def logs(draw: st.DrawFn) -> tuple[Head, list[Record]]:
    records, ends = [], {}
    for topic in draw(st.lists(st.sampled_from(TOPICS), unique=True)):
        offset = 0
        for _ in range(draw(st.integers(0, 4))):
            offset += draw(st.integers(0, 3))
            value = draw(st.none() | st.binary(max_size=30) | TEXT.map(str.encode))
            headers = draw(st.dictionaries(TEXT, TEXT, max_size=2))
            time_s = draw(st.floats(0, 4e9))
            records.append(Record(topic, offset, draw(TEXT), value, headers, time_s))
            offset += 1
        ends[topic] = offset + draw(st.integers(0, 2))
    return Head(ends), records


@given(log=logs(), packed=st.booleans())
def test_any_log_comes_back(log: tuple[Head, list[Record]], packed: bool) -> None:
    head, records = log
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.jsonl.zst" if packed else "log.jsonl")
        write_log(path, head, records)
        with open_log(path) as found:
            assert found.verify() == len(records)
            assert list(found.records()) == records
            assert found.head == head


@given(log=logs(), position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_changed_byte_is_found(
    log: tuple[Head, list[Record]], position: int, flip: int
) -> None:
    head, records = log
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bad.jsonl")
        write_log(path, head, records)
        data = bytearray(path.read_bytes())
        data[position % len(data)] ^= flip
        path.write_bytes(data)
        with pytest.raises(BusError, match=r"bad\.jsonl"), open_log(path) as found:
            found.verify()


@given(log=logs(), data=st.binary(max_size=300))
def test_bytes_of_any_kind_are_refused_in_a_sentence(
    log: tuple[Head, list[Record]], data: bytes
) -> None:
    head, records = log
    with tempfile.TemporaryDirectory() as folder:
        good, bad = Path(folder, "good.jsonl"), Path(folder, "bad.jsonl")
        write_log(good, head, records)
        first = good.read_bytes().splitlines(keepends=True)[0]
        for content in (data, first + data):
            bad.write_bytes(content)
            with pytest.raises(BusError, match=r"bad\.jsonl"), open_log(bad) as found:
                import_log(found, Path(folder, "new.db"))
