"""Logs with something wrong in them, made from a good one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bus.contract import Record
from bus.logfile import write_log
from bus.reading import open_log
from console.main import main
from schemas.journal import NO_DIGEST, chain, decode_entry, encode_entry
from schemas.parse import Rejected
from schemas.topics import JOURNAL

#: Changes the stimulus and decision of an entry, by its number.
Change = Callable[[int, dict[str, Any], dict[str, Any]], None]
Capture = pytest.CaptureFixture[str]


def ran(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    """Run a command of the console; give its code, what it showed, and what it complained of."""
    code = main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    return code, shown.out, shown.err


def unpacked(source: Path, target: Path) -> bytes:
    """Write a log as plain JSON Lines; give its bytes."""
    with open_log(source) as log:
        write_log(target, log.head, log.records())
    return target.read_bytes()


def altered(source: Path, target: Path, change: Callable[[Record], Record | None]) -> Path:
    """Write a log whose records are changed, or left out; its sums are right."""
    with open_log(source) as log:
        kept = (change(record) for record in log.records())
        write_log(target, log.head, (record for record in kept if record is not None))
    return target


def rechained(source: Path, target: Path, change: Change) -> Path:
    """Write a log whose journal entries are changed, and whose digests fit nevertheless."""
    digest = NO_DIGEST

    def again(record: Record) -> Record:
        nonlocal digest
        if record.topic != JOURNAL.name:
            return record
        entry = decode_entry(record.value or b"")
        assert not isinstance(entry, Rejected)
        change(entry.number, entry.stimulus, entry.decision)
        new = chain(
            digest,
            entry.number,
            entry.at_s,
            entry.stimulus,
            entry.decision,
            policy=entry.policy,
            version=entry.version,
        )
        digest = new.digest
        return replace(record, value=encode_entry(new, record.key))

    return altered(source, target, again)
