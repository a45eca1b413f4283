"""A log is followed: it may be empty, grow, be another one, vanish, or have been altered."""

import shutil
import sqlite3
import time
from contextlib import closing
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.contract import Message, Unreadable
from bus.sqlite import SqliteBus
from bus.sqlite_file import encode
from gateway import cells, feed
from gateway.feed import Feed
from gateway.log import ServedLog
from gateway.past import Past
from scheduler.core.canonical import state_to_json
from schemas.topics import JOURNAL
from tests.gateway.conftest import Serving
from tests.gateway.growing import grow
from tests.golden.alter import Capture, ran, rechained
from tests.patience import PATIENCE_S

GOLDEN = Path(__file__).parents[1] / "golden"


async def test_a_log_is_followed_and_may_begin_empty(
    log: Path, tmp_path: Path, serving: Serving
) -> None:
    growing = grow(log, tmp_path / "growing.db", 0)
    async with serving(growing.path) as served:
        assert (await served.get("overview"))["entry"] is None
        assert (await served.get("jobs"))["jobs"] == []
        assert (await served.get("tide"))["rows"] == []
        problem = await served.get("overview", 404, entry=0)
        assert "no entry yet" in problem["detail"]
        for entries in (1, 30, 1100):
            growing.to(entries)
            await served.until(partial(served.level, entries))
            assert (await served.get("overview"))["entry"] == entries - 1
        assert served.feed.index.entries == 1100
        grown = await served.get("overview", entry=500)
    async with serving(log) as served:
        assert await served.get("overview", entry=500) == grown


async def test_a_log_that_is_replaced_is_read_anew(
    log: Path, tmp_path: Path, serving: Serving
) -> None:
    async with serving(log) as served:
        whole = served.feed.entries
        await served.get("overview", entry=700)
        shorter = grow(log, tmp_path / "shorter.db", 300).path
        shorter.replace(log)
        await served.until(lambda: served.level() and served.feed.entries == 300)
        assert (await served.get("overview"))["entry"] == 299
        await served.get("overview", 404, entry=700)
    assert whole > 700


async def test_a_bug_is_told_and_the_log_is_followed_again(
    log: Path, tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else the state of then would be shown for ever as if it were of now."""
    monkeypatch.setattr(cells, "_AFRESH_S", 0.5)
    growing = grow(log, tmp_path / "growing.db", 100)

    async def fails(*_: object) -> bool:
        raise MemoryError

    async with serving(growing.path) as served:
        with monkeypatch.context() as once:
            once.setattr(Feed, "advance", fails)
            await served.until(lambda: served.feed.problem)
            problem = await served.get("overview", 503)
            assert "the gateway failed at it (MemoryError)" in problem["detail"]
            assert (await served.get("health"))["status"] == "unreadable"
        growing.to(120)
        await served.until(partial(served.level, 120))
        assert (await served.get("overview"))["entry"] == 119


async def test_a_log_that_vanishes_is_waited_for(
    log: Path, tmp_path: Path, serving: Serving
) -> None:
    async with serving(log) as served:
        before = await served.get("overview")
        away = log.rename(tmp_path / "away.db")
        await served.until(lambda: served.gateway.cells.problem)
        problem = await served.get("overview", 503)
        assert "does not exist any more; put it back" in problem["detail"]
        health = await served.get("health")
        assert health["status"] == "unreadable"
        assert "put it back" in health["problem"]
        away.rename(log)
        await served.until(served.level)
        assert await served.get("overview") == before


async def alter(log: Path) -> None:
    """Damage an entry in a log, with a checksum that fits: only the chain of digests tells."""
    bus = SqliteBus.open_readonly(log, SystemClock())
    (record,) = [one async for one in bus.read(JOURNAL.name, 600, 601)]
    await bus.close()
    value = (record.value or b"").replace(b'"wake_s":', b'"Wake_s":')
    assert value != record.value
    message = Message(JOURNAL.name, record.key, value)
    row = encode(JOURNAL.name, 0, record.offset, message, record.time_s, 0)
    with closing(sqlite3.connect(log)) as connection, connection:
        connection.execute(
            "UPDATE records SET value = ?, crc = ? WHERE offset = 600 AND topic = "
            "(SELECT id FROM topics WHERE name = ?)",
            (value, row[-1], JOURNAL.name),
        )


async def test_a_journal_that_was_altered_is_not_told(log: Path, serving: Serving) -> None:
    async with serving(log):
        pass
    await alter(log)
    async with serving(log) as served:
        problem = await served.get("entries/600", 503)
        assert "restore the log from a copy" in problem["detail"]
        assert (await served.get("entries/100"))["entry"] == 100


async def test_a_damaged_journal_is_read_seldom_and_another_one_at_once(
    log: Path, tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_RETRY_S", 0.01)
    monkeypatch.setattr(feed, "_REST_S", 0.5)
    good = Path(shutil.copyfile(log, tmp_path / "good.db"))
    await alter(log)
    begun: list[float] = []
    begin = Feed._begin

    async def counted(self: Feed) -> None:
        begun.append(time.monotonic())
        if len(begun) == 3:
            self._rest_s = 10.0 * PATIENCE_S
        await begin(self)

    monkeypatch.setattr(Feed, "_begin", counted)
    async with serving(log, keep_index=False, ready=False) as served:
        await served.until(lambda: len(begun) == 3)
        first_s, second_s = (later - earlier for earlier, later in pairwise(begun))
        assert (first_s >= 0.5, second_s >= 1.0) == (True, True)
        problem = await served.get("overview", 503)
        assert "restore the log from a copy" in problem["detail"]
        before = len(begun)
        good.replace(log)
        await served.until(served.level)  # long before the damaged one were read again
        assert len(begun) == before + 1


async def test_a_journal_that_stays_damaged_is_read_each_minute_for_days(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 17 hours of it the gateway named a bug in place of the damage, with all cells."""
    now_s = count(0.0, 61.0)
    monkeypatch.setattr(feed, "_loop_s", lambda: next(now_s))
    opening = partial(SqliteBus.open_readonly, log, SystemClock())
    closed = Feed(ServedLog("log", opening, log, tmp_path), "default", keep_index=False)
    for _ in range(1100):
        with pytest.raises(Unreadable, match="is not open now"):
            await closed.advance()
    assert closed.generation == 1100


async def test_an_entry_that_no_scheduler_writes_is_named(
    tmp_path: Path, capsys: Capture, serving: Serving
) -> None:
    """Its digest fits: whoever forged it chained it anew. It was said to be a bug of ours."""

    def forged(number: int, _: dict[str, Any], decision: dict[str, Any]) -> None:
        if number == 200:
            decision["reasons"] = 7

    exported, log = tmp_path / "forged.jsonl", tmp_path / "forged.db"
    rechained(GOLDEN / "verbs.jsonl.zst", exported, forged)
    assert ran(capsys, "journal", "import", exported, "--log", log)[0] == 0
    async with serving(log, keep_index=False, ready=False) as served:
        feeds = served.gateway.cells.feeds
        await served.until(lambda: any(feed.problem for feed in feeds.values()))
        assert (
            "journal entry 200 holds what no scheduler of this release writes"
            in served.feed.problem
        )


async def test_past_states_are_kept_within_bounds(log: Path, serving: Serving) -> None:
    kept = Past(kept_bytes=3 * 256 * 1024)
    async with serving(log) as served:
        states = [await kept.state(served.feed, number) for number in (10, 20, 30, 40)]
        assert [state.number for state in states] == [10, 20, 30, 40]
        assert kept.known(served.feed, 10) is None
        assert kept.known(served.feed, 40) is states[-1]
        assert kept.bytes <= 3 * 256 * 1024
        again = await kept.state(served.feed, 10)
        assert state_to_json(again) == state_to_json(await Past().state(served.feed, 10))
