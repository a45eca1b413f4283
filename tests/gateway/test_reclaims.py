"""Reclaims, against the entries of the log themselves."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bus.contract import Record
from gateway.log import ServedLog
from tests.gateway.conftest import Served, Serving

_ENDS = ("LoanReturned", "LoanLost")


async def _entries(served: Served) -> list[dict[str, Any]]:
    return [await served.get(f"entries/{n}") for n in range(served.feed.entries)]


def _facts(entry: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [fields for name, fields in entry["decision"].get("facts", ()) if name == kind]


def _end(entries: list[dict[str, Any]], begin: int, node: str, before: int) -> int | None:
    for entry in entries[begin + 1 : before]:
        if any(said["node"] == node for kind in _ENDS for said in _facts(entry, kind)):
            return int(entry["entry"])
    return None


async def test_each_reclaim_is_told_from_its_call_to_its_end(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        entries = await _entries(served)
        rows = (await served.get("reclaims", limit=1000))["reclaims"]
        begun = [
            (entry["entry"], said["node"], entry["at_s"], said["due_s"])
            for entry in reversed(entries)
            for said in _facts(entry, "ReclaimStarted")
        ]
        told = [(row["called_entry"], row["node"], row["called_s"], row["due_s"]) for row in rows]
        assert begun
        assert told == begun
        for row in rows:
            end = _end(entries, row["called_entry"], row["node"], len(entries))
            assert row["end_entry"] == end
            assert (row["state"] == "going") == (end is None)
            between = entries[row["called_entry"] : len(entries) if end is None else end + 1]
            empty = [
                entry["at_s"]
                for entry in between
                if any(said["node"] == row["node"] for said in _facts(entry, "ReturnOrdered"))
            ]
            assert row["empty_s"] == (empty[0] if empty else None)
            left = {
                said["job"]
                for entry in between
                for said in _facts(entry, "GpusReleased")
                if said["node"] == row["node"]
            }
            saved = [
                entry["at_s"]
                for entry in between[1:]
                if any(said["job"] in left for said in _facts(entry, "CheckpointSaved"))
            ]
            assert (row["jobs"], row["saved_s"]) == (len(left), max(saved, default=None))
            if end is not None:
                assert row["end_s"] == entries[end]["at_s"]
                assert row["late_s"] == max(0.0, row["end_s"] - row["due_s"])
            assert row["because"]["subject"] == row["node"]


async def test_a_reclaim_in_the_past_has_not_ended_yet(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        row = next(
            row
            for row in (await served.get("reclaims"))["reclaims"]
            if row["end_entry"] is not None
        )
        for entry in (row["called_entry"], row["end_entry"] - 1):
            then = (await served.get("reclaims", entry=entry))["reclaims"]
            was = next(one for one in then if one["called_entry"] == row["called_entry"])
            assert (was["state"], was["end_s"], was["end_entry"]) == ("going", None, None)
        then = (await served.get("reclaims", entry=row["called_entry"] - 1))["reclaims"]
        assert all(one["called_entry"] < row["called_entry"] for one in then)


async def test_pages_of_reclaims_make_up_the_whole(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        whole = (await served.get("reclaims", limit=1000))["reclaims"]
        rows: list[Any] = []
        cursor: str | None = None
        for _ in range(len(whole) + 1):
            asked: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            page = await served.get("reclaims", limit=1, **asked)
            rows += page["reclaims"]
            cursor = page["next"]
            if cursor is None:
                break
        assert rows == whole
        node = whole[0]["node"]
        found = (await served.get("reclaims", node=node))["reclaims"]
        assert found == [row for row in whole if row["node"] == node]
        assert (await served.get("reclaims", node="no such node"))["reclaims"] == []


async def test_what_the_index_has_not_taken_yet_is_told(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        whole = (await served.get("reclaims", limit=1000))["reclaims"]
        assert whole
        index = served.feed.index
        known = index.place
        try:
            index.place = type(known)(
                whole[0]["called_entry"], whole[0]["called_entry"], known.digest
            )
            assert (await served.get("reclaims", limit=1000))["reclaims"] == whole
        finally:
            index.place = known


async def test_lists_of_loans_and_of_reclaims_say_the_same(log: Path, serving: Serving) -> None:
    same = ("node", "pool", "state", "called_entry", "called_s", "due_s", "end_s", "end_entry")
    async with serving(log) as served:
        rows = (await served.get("reclaims", limit=1000))["reclaims"]
        middle = next(row for row in rows if row["end_s"] is not None)
        moments: list[dict[str, Any]] = [{}, {"entry": middle["end_entry"] - 1}]
        for moment in moments:
            told = (await served.get("reclaims", limit=1000, **moment))["reclaims"]
            loans = (await served.get("loans/history", **moment))["loans"]
            called = [one for one in loans if one["called_entry"] is not None]
            key = [(row["called_entry"], row["node"]) for row in told]
            assert sorted(key) == sorted((one["called_entry"], one["node"]) for one in called)
            for one in called:
                row = told[key.index((one["called_entry"], one["node"]))]
                for name in (*same, "late_s"):
                    assert row[name] == one[name], name


async def test_all_rows_of_a_page_are_read_together(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(log) as served:
        asked: list[int] = []
        read = ServedLog.picked

        def counted(
            self: ServedLog, topic: str, offsets: Sequence[int]
        ) -> AsyncGenerator[Record, None]:
            asked.append(len(offsets))
            return read(self, topic, offsets)

        monkeypatch.setattr(ServedLog, "picked", counted)
        assert (await served.get("reclaims", limit=1000))["reclaims"]
        assert len(asked) == 4  # calls, ends, what happens to nodes, steps of jobs
