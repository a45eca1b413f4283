"""What the API says of any moment is what the log, cut there, says."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from explain.answer import Answer
from explain.documents import why_document
from explain.loan_history import WANTED, loans_in
from explain.reading import entries, read_bus, read_ends, read_story
from explain.rows import jobs_table, loans_table, nodes_of, nodes_table
from gateway.feed import Feed
from gateway.log import ServedLog
from schemas.topics import JOURNAL, SNAPSHOTS
from tests.console.conftest import Run
from tests.gateway.conftest import Served, Serving


def cut(log: Path, copy: Path, entry: int) -> None:
    """Make a log that ends after an entry."""
    shutil.copyfile(log, copy)
    with closing(sqlite3.connect(copy)) as connection, connection:
        (topic,) = connection.execute(
            "SELECT id FROM topics WHERE name = ?", (JOURNAL.name,)
        ).fetchone()
        connection.execute("DELETE FROM records WHERE topic = ? AND offset > ?", (topic, entry))
        connection.execute("UPDATE topics SET next = ? WHERE id = ?", (entry + 1, topic))
        connection.execute(
            "DELETE FROM records WHERE topic = (SELECT id FROM topics WHERE name = ?)",
            (SNAPSHOTS.name,),
        )


def plain(document: object) -> Any:
    return orjson.loads(orjson.dumps(document))


async def every(served: Served, path: str, rows: str, **parameters: Any) -> list[Any]:
    """Read all pages."""
    found: list[Any] = []
    while True:
        page = await served.get(path, **parameters)
        found += page[rows]
        if page["next"] is None:
            return found
        parameters["cursor"] = page["next"]


def moments(served: Served, count: int) -> list[int]:
    chance = np.random.default_rng(5)
    return [int(n) for n in chance.choice(served.feed.entries, count, replace=False)]


async def test_any_moment_is_that_of_the_log_cut_there(
    log: Path, tmp_path: Path, serving: Serving
) -> None:
    async with serving(log) as served:
        last = served.feed.entries - 1
        for entry in (0, last, *moments(served, 6)):
            copy = tmp_path / f"{entry}.db"
            cut(log, copy, entry)
            bus = SqliteBus.open_readonly(copy, SystemClock())
            truth = await read_bus(bus)
            assert truth.state.number == entry + 1
            jobs = list(truth.state.jobs.values())
            ends = await read_ends(bus, truth.cell, truth.state.jobs, entry + 1)
            wanted = plain(jobs_table(truth, jobs, ends))
            assert await every(served, "jobs", "jobs", entry=entry, limit=7) == wanted["jobs"]
            nodes = plain(nodes_table(truth, nodes_of(truth), {}))["nodes"]
            assert await every(served, "nodes", "nodes", entry=entry, limit=5) == nodes
            loans = plain(loans_table(truth))
            found = await served.get("loans", entry=entry)
            assert (found["loans"], found["totals"]) == (loans["loans"], loans["totals"])
            told = [one async for one in entries(bus, truth.cell, WANTED, entry + 1)]
            pools = {node.id: node.pool for node in nodes_of(truth)}
            past = plain(loans_in(told, pools, truth.state.now_s))
            assert (await served.get("loans/history", entry=entry))["loans"] == past
            overview = await served.get("overview", entry=entry)
            assert overview["now_s"] == truth.state.now_s
            assert overview["totals"] == plain(truth.state.totals)
            for job in [job.id for job in jobs][:: max(1, len(jobs) // 5)]:
                answer = Answer.of(truth, await read_story(bus, truth.cell, job, entry + 1))
                assert answer is not None
                assert await served.get(f"jobs/{job}/why", entry=entry) == plain(
                    why_document(answer)
                )
            await bus.close()


async def test_why_is_what_the_command_says(log: Path, tidegate: Run, serving: Serving) -> None:
    async with serving(log) as served:
        for job in list(served.feed.live.state.jobs)[::7] if served.feed.live else []:
            said = await asyncio.to_thread(tidegate.tells, "why", job, "--log", log)
            assert await served.get(f"jobs/{job}/why") == said
        said = await asyncio.to_thread(tidegate.tells, "jobs", "--all", "--log", log)
        assert await every(served, "jobs", "jobs") == said["jobs"]
        said = await asyncio.to_thread(tidegate.tells, "nodes", "--log", log)
        assert (await served.get("nodes"))["nodes"] == said["nodes"]
        said = await asyncio.to_thread(tidegate.tells, "loans", "history", "--log", log)
        assert (await served.get("loans/history"))["loans"] == said["loans"]


async def test_a_moment_of_time_is_the_last_entry_before_it(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        times = [(await served.get(f"entries/{n}"))["at_s"] for n in range(240, 270)]
        for number, (at_s, after_s) in enumerate(pairwise(times), 240):
            if at_s < after_s:
                middle_s = (at_s + after_s) / 2
                assert (await served.get("overview", at=repr(middle_s)))["entry"] == number
                assert (await served.get("overview", at=repr(at_s)))["entry"] == number
        iso = await served.get("overview", at="2026-01-05T00:10:00+00:00")
        assert iso == await served.get("overview", at="2026-01-05T00:10:00")
        assert iso["now_s"] <= 1_767_571_200.0 + 600.0
        later = await served.get(f"entries/{iso['entry'] + 1}")
        assert later["at_s"] > 1_767_571_200.0 + 600.0


async def test_decisions_are_found_by_subject_and_rule(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        end = served.feed.entries
        whole = await every(served, "decisions", "decisions", limit=500)
        assert [row["entry"] for row in whole] == list(range(end - 1, -1, -1))
        telling = await every(served, "decisions", "decisions", limit=40, telling=True)
        assert telling == [
            row for row in whole if row["commands"] or row["reasons_total"] or row["error"]
        ]
        assert 0 < len(telling) < len(whole)
        entries = {n: await served.get(f"entries/{n}") for n in range(0, end, 3)}
        rule = next(r["rule"] for row in whole for r in row["reasons"])
        found = {row["entry"] for row in await every(served, "decisions", "decisions", rule=rule)}
        job = next(iter(served.feed.live.state.jobs)) if served.feed.live else ""
        about = await every(served, "decisions", "decisions", subject=job, limit=3)
        for number, entry in entries.items():
            reasons = entry["decision"].get("reasons", [])
            assert (number in found) == any(one["rule"] == rule for one in reasons)
            facts = entry["decision"].get("facts", [])
            concerns = any(fields.get("job") == job for _, fields in facts)
            assert not concerns or number in {row["entry"] for row in about}
        said = await every(served, "decisions", "decisions", subject=job, limit=3, telling=True)
        found_telling = {row["entry"] for row in telling}
        assert [one["entry"] for one in said] == [
            one["entry"] for one in about if one["entry"] in found_telling
        ]
        both = await every(served, "decisions", "decisions", subject=job, rule=rule)
        assert {row["entry"] for row in both} <= found & {row["entry"] for row in about}


async def test_a_story_tells_each_event_with_its_entry(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        state = served.feed.live.state if served.feed.live else None
        assert state is not None
        job = next(job.id for job in state.jobs.values() if job.state == "completed")
        story = await served.get(f"jobs/{job}/story")
        kinds = [event["kind"] for event in story["events"]]
        assert kinds[0] == "JobAccepted"
        assert kinds[-1] == "JobCompleted"
        for event in story["events"]:
            entry = await served.get(f"entries/{event['entry']}")
            assert [event["kind"], event["fields"]] in entry["decision"]["facts"] or event[
                "kind"
            ] in ("JobFailed", "JobCancelled", "CancelRequested")
        started = next(event for event in story["events"] if event["kind"] == "GangStarting")
        assert started["because"]["sentence"]


async def test_two_moments_are_compared(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        end = served.feed.entries - 1
        found = await served.get("diff", entry=100, vs=end)
        before = {row["job"]: row for row in await every(served, "jobs", "jobs", entry=100)}
        after = {row["job"]: row for row in await every(served, "jobs", "jobs", entry=end)}
        told = {row["name"]: row for row in found["jobs"]}
        for name in after.keys() - before.keys():
            assert told[name]["change"] == "added"
        for name in before.keys() & after.keys():
            states = [before[name]["state"], after[name]["state"]]
            if states[0] != states[1]:
                assert told[name]["fields"]["state"] == states
        assert found["totals"]["jobs_submitted"] == len(after.keys() - before.keys())
        same = await served.get("diff", entry=100, vs=100)
        assert (same["jobs"], same["nodes"], same["totals"]) == ([], [], {})


async def test_the_tide_has_a_row_for_each_slot_and_one_for_now(
    log: Path, serving: Serving
) -> None:
    async with serving(log) as served:
        tide = await served.get("tide")
        times = [row["at_s"] for row in tide["rows"]]
        assert times == sorted(times)
        slots = [int(at_s // 300) for at_s in times]
        assert slots == list(range(slots[0], slots[-1] + 1))
        overview = await served.get("overview")
        assert tide["rows"][-1]["used"] == overview["gpus"]["held"]
        assert tide["rows"][-1]["queue"] == overview["jobs"].get("queued", 0)
        middle = tide["rows"][3]
        past = await served.get("tide", at=repr(middle["at_s"]))
        assert past["rows"][-1] == middle
        assert past["rows"] == tide["rows"][:4]
        few = await served.get("tide", points=2)
        assert few["rows"][-1] == tide["rows"][-1]
        assert len(few["rows"]) <= 2
        since = await served.get("tide", since=repr(times[2]), until=repr(times[4]))
        assert since["rows"] == tide["rows"][2:5]


class Gaps(SqliteBus):
    """A log on which the last offset has no record, as where a transaction ended on Kafka."""

    async def end(self, topic: str) -> int:
        return await super().end(topic) + 1


async def test_offsets_without_a_record_keep_nobody_waiting(log: Path) -> None:
    served = ServedLog(str(log), lambda: Gaps.open_readonly(log, SystemClock()), log, log.parent)
    await served.keep_open()
    feed = Feed(served, "default", keep_index=False)
    for _ in range(1000):
        if not await feed.advance():
            break
    assert feed.live is not None
    assert not feed.building
    assert feed.live.offset == feed.end, "what is refused before it can be told"
    feed.index.close()
    await served.close()
