"""The index: quick, disposable, and never believed where it does not fit."""

import asyncio
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway import feed as feeds, index as indexing, past, sidecar
from gateway.index import Place
from gateway.kept_states import KeptStates
from scheduler.core.state import ClusterState
from schemas.journal import RawEntry
from schemas.topics import SNAPSHOTS
from tests.gateway.conftest import Served, Serving, serve
from tests.gateway.growing import grow
from tests.patience import PATIENCE_S


def beside(log: Path) -> Path:
    return log.with_name(f"{log.name}.index.db")


async def answers(served: Served) -> list[Any]:
    """Ask all that an index is used for."""
    assert served.feed.live is not None
    jobs = list(served.feed.live.state.jobs)[::9]
    node = next(iter(served.feed.live.state.nodes))
    return [
        *[await served.get(f"jobs/{job}/why") for job in jobs],
        *[await served.get(f"jobs/{job}/story") for job in jobs],
        *[await served.get("overview", entry=n) for n in (5, 249, 250, 777, 1001)],
        await served.get("entries/777"),
        await served.get("overview", at="2026-01-05T00:20:00Z"),
        await served.get("tide"),
        await served.get("decisions", subject=node),
        await served.get("decisions", rule="market.price"),
    ]


async def truth(log: Path, serving: Serving) -> list[Any]:
    """What a gateway says that keeps no file."""
    async with serving(log, keep_index=False) as served:
        found = await answers(served)
    assert not beside(log).exists()
    return found


async def test_an_index_says_what_the_journal_does(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked before it knows anything, once it knows all, and when opened again."""
    expected = await truth(log, serving)
    async with serving(log) as served:
        known = await answers(served)
        assert known == expected
        assert served.feed.index.bytes > 10_000
        # As if nothing had been indexed yet: each answer reads the journal itself.
        blank = indexing.open_index(None)
        served.feed.index, kept = blank, served.feed.index
        asked = [one for one in known if "because" in one or "events" in one]
        for document in asked:
            path = f"jobs/{document['job']}/{'why' if 'because' in document else 'story'}"
            assert await served.get(path) == document
        assert await served.get("overview", entry=777) in known
        served.feed.index = kept
        blank.close()
    made = beside(log).stat().st_mtime_ns
    async with serving(log) as served:
        assert served.feed.notice == ""
        assert await answers(served) == known
    assert beside(log).stat().st_mtime_ns - made < 60 * 10**9


async def test_marks_are_as_far_apart_as_loading_costs(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "MARK_EVERY", 50)
    async with serving(log) as served:
        index, seen = served.feed.index, 10**9
        previous: Any = None
        while (mark := index.mark_before(seen)) is not None:
            if previous is not None:
                assert previous.place.number - mark.place.number >= 50
            previous, seen = mark, mark.place.number - 1
            *_, state = mark.restored()
            assert state is not None
            assert state.number == mark.place.number
        assert previous is not None


async def test_old_marks_are_thinned(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "MARK_EVERY", 50)
    monkeypatch.setattr(indexing, "MARKS_BYTES", 40_000)
    async with serving(log) as served:
        (held,) = served.feed.index._db.execute("SELECT sum(length(state)) FROM marks").fetchone()
        assert held <= 2 * 40_000
        assert (await served.get("overview", entry=60))["entry"] == 60


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for place in range(5000, len(data), 997):
        data[place] ^= 0x55
    path.write_bytes(data)


def half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def altered(statement: str) -> Any:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return change


@pytest.fixture(scope="module")
def built(_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], bytes]:
    """What a gateway says of the log, and its index."""
    log = tmp_path_factory.mktemp("built") / "run.db"
    shutil.copy(_demo, log)

    async def build() -> list[Any]:
        expected = await truth(log, serve)
        async with serve(log):
            return expected

    return asyncio.run(build()), beside(log).read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        garbage,
        flipped,
        half,
        altered("DELETE FROM mentions WHERE number % 7 = 0"),
        altered("UPDATE mentions SET ahead = 1 WHERE number % 7 = 0"),
        altered("UPDATE tide SET used = used + 1"),
        altered("UPDATE places SET offset = offset + 1"),
        altered("UPDATE marks SET state = zeroblob(length(state))"),
        altered("UPDATE marks SET digest = '0'"),
        altered("UPDATE meta SET value = '99' WHERE name = 'format'"),
        altered("UPDATE meta SET value = value - 1 WHERE name = 'number'"),
        altered("UPDATE meta SET value = 'x' WHERE name = 'sum'"),
        altered("DROP TABLE tide"),
    ],
    ids=range(13),
)
async def test_a_damaged_index_is_built_again(
    log: Path, serving: Serving, built: tuple[list[Any], bytes], damage: Any
) -> None:
    expected, index = built
    beside(log).write_bytes(index)
    async with serving(log) as served:
        assert served.feed.notice == ""  # it is believed before it is damaged
    damage(beside(log))
    async with serving(log) as served:
        assert await answers(served) == expected
        assert "built again" in served.feed.notice
        cell = (await served.get("health"))["cells"][0]
        assert "built again" in cell["index"]["notice"]
    async with serving(log) as served:
        assert served.feed.notice == ""


async def test_a_mark_that_is_damaged_under_way_is_found_out(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(log) as served:
        before = await served.get("overview", entry=1000)
        served.gateway.past._kept = KeptStates(2**20)
        served.feed.index._db.execute("UPDATE marks SET state = zeroblob(50)")
        problem = await served.get("overview", 503, entry=1000)
        assert "built again; ask again" in problem["detail"]
        await served.until(served.level)
        assert await served.get("overview", entry=1000) == before


async def test_health_is_told_while_an_index_is_opened(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    opened = indexing.open_index

    def slowly(path: Path | None) -> indexing.Index:
        asked.wait(PATIENCE_S)
        return opened(path)

    monkeypatch.setattr(feeds, "open_index", slowly)
    async with serving(log, ready=False) as served:
        await served.until(lambda: bool(served.gateway.cells.feeds))
        health = await served.get("health")
        assert health["status"] == "starting"
        assert health["cells"][0]["index"]["building"]
        asked.set()
        await served.until(served.level)


async def test_an_index_that_cannot_be_written_is_kept_in_memory(
    log: Path, serving: Serving
) -> None:
    expected = await truth(log, serving)
    beside(log).mkdir()
    async with serving(log) as served:
        assert "kept in memory" in served.feed.notice
        assert await answers(served) == expected


async def test_an_index_for_which_the_disk_is_too_small_is_kept_in_memory(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await truth(log, serving)
    sidecar.remove(beside(log))
    opened = sidecar.open_file

    def small(path: Path) -> sqlite3.Connection:
        found = opened(path)
        found.execute("PRAGMA max_page_count = 20")
        return found

    monkeypatch.setattr(sidecar, "open_file", small)
    async with serving(log) as served:
        assert "disk is full" in served.feed.notice
        assert served.feed.notice.endswith("is kept in memory")
        assert await answers(served) == expected


async def test_an_index_that_is_damaged_while_it_grows_has_its_file_again(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds the damage throws it away below the fold that adds to it."""
    monkeypatch.setattr("gateway.feed._TURN", 1)
    async with serving(log, ready=False) as served:
        cells = served.gateway.cells
        await served.until(lambda: cells.feeds and cells.feed(None).index.entries > 50)
        feed = served.feed
        assert feed.building
        feed.rebuild("a page is torn")
        await served.until(served.level)
        assert "a page is torn" in feed.notice
        assert feed.notice.endswith("is built again")
        assert beside(log).exists()


async def test_a_second_gateway_keeps_its_index_in_memory(log: Path, serving: Serving) -> None:
    async with serving(log) as served, serving(log) as other:
        assert served.feed.notice == ""
        assert "kept in memory" in other.feed.notice
        assert await answers(other) == await answers(served)


async def test_an_index_of_another_log_is_not_believed(
    log: Path, tmp_path: Path, serving: Serving
) -> None:
    short = grow(log, tmp_path / "short.db", 400).path
    async with serving(log):
        pass
    shutil.copyfile(beside(log), beside(short))
    async with serving(short) as served:
        assert "of another log" in served.feed.notice
        assert served.feed.index.entries == 400


async def test_far_moments_wait_for_an_index_that_is_being_built(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "_FAR", 100)
    async with serving(log) as served:
        feed = served.feed
        blank = indexing.open_index(None)
        feed.index, kept = blank, feed.index
        monkeypatch.setattr(type(feed), "building", True)
        for path in ("overview?entry=700", "entries/700", "decisions?rule=x"):
            problem = await served.get(path, 503)
            assert "is being built and is at 0%" in problem["detail"]
        assert (await served.get("overview", entry=50))["entry"] == 50
        monkeypatch.undo()
        feed.index = kept
        blank.close()


async def test_a_log_with_a_snapshot_answers_before_its_index_is_whole(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(log)) as connection:
        ((snapshots,),) = connection.execute(
            "SELECT next FROM topics WHERE name = ?", (SNAPSHOTS.name,)
        ).fetchall()
    assert snapshots > 0
    monkeypatch.setattr("gateway.feed._NEAR", 100)
    monkeypatch.setattr("gateway.feed._SLICE", 50)
    expected = await truth(log, serving)
    async with serving(log, ready=False) as served:
        cells = served.gateway.cells
        await served.until(lambda: cells.feeds and cells.feed(None).live)
        assert served.feed.building
        assert (await served.get("overview"))["entry"] == served.feed.entries - 1
        health = await served.get("health")
        assert 0 <= health["cells"][0]["index"]["done"] < 1
        await served.until(served.level)
        assert await answers(served) == expected


@pytest.mark.parametrize("first", [1300, 1250])
async def test_of_a_log_without_its_beginning_moments_are_found(first: int) -> None:
    index = indexing.Index(sidecar.in_memory())
    state = ClusterState(cell="default", number=first, now_s=first - 0.5)
    await index.begin(state, Place(first, 10, "before"), state.now_s)
    for number in range(first, 2000):
        state.number = number + 1
        entry = RawEntry("default", number, float(number), "fifo", b"", b"", f"of {number}")
        index.take(state, entry, [], number + 500, 1)
    begin = index.place_before(first + 9)
    assert (begin.number, begin.digest) == (first, "before")
    for at_s in (0.0, first + 0.5, first + 99.0):
        assert index.place_at(at_s) == begin
    assert index.place_at(1499.0) == index.place_before(1499)
    for at_s, number in ((1500.0, 1500), (1999.0, 1750), (1e9, 1750)):
        assert index.place_at(at_s) == Place(number, number + 500, f"of {number - 1}")
    index.close()


def test_a_new_index_is_whole_or_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended at any statement while it is made, it is no damaged one when opened again."""
    path = tmp_path / "run.db.index.db"
    with closing(sidecar.open_file(path)):
        pass
    said: list[str] = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.set_trace_callback(said.append)
        sidecar._made(connection)
    said = [one.strip() for one in said]
    changes = [one for one in said if one.startswith(("CREATE", "INSERT"))]
    begin, end = said.index("BEGIN;"), said.index("COMMIT;")
    assert len(changes) > 4
    assert all(begin < said.index(one) < end for one in changes)
