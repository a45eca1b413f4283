"""`tidegate logs` over a wire that repeats pieces, or on which nothing comes any more."""

import base64
from collections.abc import Sequence
from pathlib import Path

import pytest

from console import logs
from console.at_log import LogSource
from explain.rows import JobRow
from schemas.logs import LogChunk, LogEnd
from schemas.requests import ReadLog
from tests.console.conftest import Run


class FakeWire:
    """Gives these pieces once, and nothing after them."""

    def __init__(self, pieces: Sequence[LogChunk]) -> None:
        self._pieces = list(pieces)

    async def job(self) -> JobRow | None:
        return None

    async def end(self) -> int:
        return 0

    async def ask(self, args: ReadLog) -> str:
        assert args.job == "grown"
        return ""

    async def pieces(self, after: int, reader: str) -> tuple[Sequence[LogChunk], int]:
        assert reader
        found, self._pieces = self._pieces, []
        return found, after + len(found)

    async def close(self) -> None:
        pass


def piece(offset: int, text: str, end: LogEnd | None = None) -> LogChunk:
    content = base64.b64encode(text.encode()).decode()
    return LogChunk(agent="a", reader="r", job="grown", epoch=1, rank=0, offset=offset,
                    content=content, end=end)  # fmt: skip


def wired(monkeypatch: pytest.MonkeyPatch, *pieces: LogChunk) -> None:
    monkeypatch.setattr(LogSource, "wire", lambda *_: FakeWire(pieces))
    monkeypatch.setattr(logs, "_LOOK_S", 0.01)


def test_pieces_that_come_again_are_printed_once(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = piece(0, "one\n"), piece(4, "two\n")
    wired(monkeypatch, first, second, first, second, piece(8, "three\n", "complete"))
    assert tidegate.does("logs", "grown", "--tail", "0", "--log", log).out == "one\ntwo\nthree\n"


@pytest.mark.timeout(30)
def test_an_agent_that_is_gone_while_it_sends_keeps_nobody_waiting(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wired(monkeypatch, piece(0, "one\n"))
    monkeypatch.setattr(logs, "_GONE_S", 0.1)
    ran = tidegate("logs", "grown", "--tail", "0", "--log", log)
    assert (ran.code, ran.out) == (1, "one\n")
    assert "grown: its agent sends no more" in ran.err
