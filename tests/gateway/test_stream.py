"""The stream tells of each new entry, goes on where it was left, and ends with its reasons."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.datastructures import Headers

from gateway import stream
from gateway.cells import facts
from gateway.feed import Feed
from gateway.stream import heads
from gateway.subjects import LocalToken, Role, Subject
from tests.gateway.conftest import TOKEN, Served, Serving
from tests.gateway.growing import grow
from tests.patience import PATIENCE_S

WHO = Subject("local", Role.OPERATOR)
BEARER = Headers({"authorization": f"Bearer {TOKEN}"})


def told(frame: bytes) -> tuple[str, Any]:
    lines = dict(line.split(": ", 1) for line in frame.decode().strip().splitlines())
    assert lines["event"] == "head"
    return lines["id"].removesuffix("-nobody"), orjson.loads(lines["data"])


def follow(served: Served, last: str | None = None, headers: Headers = BEARER) -> Any:
    return aiter(heads(served.gateway, served.feed, WHO, headers, last))


async def test_a_head_comes_with_each_new_entry(
    log: Path, tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_APART_S", 0.0)
    growing = grow(log, tmp_path / "growing.db", 100)
    async with serving(growing.path) as served:
        events = follow(served)
        assert (await anext(events)).startswith(b":")
        number, data = told(await anext(events))
        assert (number, data["entry"], data["cell"]) == ("99", 99, "default")
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        growing.to(120)
        number, data = told(await waiting)
        assert (number, data["problem"]) == ("119", None)
        await events.aclose()


async def test_who_saw_the_newest_waits_for_the_next(
    log: Path, tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_SILENT_S", 0.05)
    growing = grow(log, tmp_path / "growing.db", 100)
    async with serving(growing.path) as served:
        events = follow(served, last="99-nobody")
        await anext(events)
        assert await anext(events) == b": nothing new\n\n"
        missed = follow(served, last="50")
        await anext(missed)
        assert told(await anext(missed))[0] == "99"
        shorter = grow(log, tmp_path / "shorter.db", 40).path
        shorter.replace(growing.path)
        await served.until(lambda: served.level() and served.feed.entries == 40)
        while (frame := await anext(events)).startswith(b":") or told(frame)[0] != "39":
            pass
        await events.aclose()
        await missed.aclose()


async def test_who_follows_is_told_that_the_log_vanished_and_is_back(
    log: Path, tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_APART_S", 0.0)
    async with serving(log) as served:
        events = follow(served)
        await anext(events)
        number, data = told(await anext(events))
        assert data["problem"] is None
        away = log.rename(tmp_path / "away.db")
        async with asyncio.timeout(PATIENCE_S):
            while (data := told(await anext(events))[1])["problem"] is None:
                pass
            assert "does not exist any more; put it back" in data["problem"]
            away.rename(log)
            while (last := told(await anext(events)))[1]["problem"] is not None:
                pass
        assert last[0] == number
        await events.aclose()


async def test_a_clock_that_is_set_back_lets_nobody_stay(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_SILENT_S", 0.01)
    async with serving(log) as served:
        served.gateway.clock.at_s = 2e9  # type: ignore[attr-defined]
        events = follow(served, headers=Headers({"authorization": "Bearer another"}))
        await anext(events)
        await anext(events)
        served.gateway.clock.at_s = 1e9  # type: ignore[attr-defined]
        async with asyncio.timeout(5.0):
            frames = [frame async for frame in events]
        assert frames[-1] == b"event: end\ndata: sign in again\n\n"


async def test_who_is_not_known_any_more_is_sent_away(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_SILENT_S", 0.05)
    monkeypatch.setattr(stream, "_CHECK_S", 0.2)

    async def nobody(*_: object) -> None:
        return None

    monkeypatch.setattr(LocalToken, "subject", nobody)
    async with serving(log) as served:
        frames = [frame async for frame in follow(served)]
        assert frames[-1] == b"event: end\ndata: sign in again\n\n"


async def test_streams_end_with_the_gateway(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_SILENT_S", 0.05)
    async with serving(log) as served:
        events = follow(served)
        await anext(events)
        served.gateway.closing.set()
        assert [frame async for frame in events] in ([], [b": nothing new\n\n"])


async def test_an_event_is_written_once_for_all_who_follow(
    log: Path, tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def counted(feed: Feed) -> dict[str, object]:
        written.append(feed.entries)
        return facts(feed)

    monkeypatch.setattr(stream, "facts", counted)
    monkeypatch.setattr(stream, "_APART_S", 0.0)
    growing = grow(log, tmp_path / "growing.db", 100)
    async with serving(growing.path) as served:
        viewers = [follow(served) for _ in range(5)]
        for viewer in viewers:
            await anext(viewer)
        assert len({await anext(viewer) for viewer in viewers}) == 1
        assert written == [100]
        growing.to(120)
        await served.until(lambda: served.feed.entries == 120)
        assert {told(await anext(viewer))[0] for viewer in viewers} == {"119"}
        assert written == [100, 120]
        for viewer in viewers:
            await viewer.aclose()
