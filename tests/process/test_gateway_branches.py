"""Branches and forecasts of the gateway: they are what the command says, and may be forgotten."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.branches import KeptBranch
from gateway.computation_queue import PER_SUBJECT_MAX
from gateway.subjects import Role, Sight, Subject
from simulator.branch.deeds import Deed
from simulator.branch.run import branch
from tests.gateway.conftest import Served, serve
from tests.gateway.test_sight import As
from tests.golden.alter import Capture, ran
from tests.patience import until
from tests.process.branching import asked, ended, one_done


async def test_a_branch_is_what_the_command_says(log: Path, capsys: Capture) -> None:
    async with serve(log) as served:
        entry = served.feed.entries // 2
        like = (await served.get("jobs", entry=entry))["jobs"][-1]["job"]
        change = {"policy": "fifo", "jobs": [{"like": like, "count": 2}]}
        begun = await asked(served, entry=entry, hours=0.4, runs=2, change=change)
        assert begun["state"] in ("waiting", "running")
        assert begun["asked"]["change"]["jobs"] == [{"like": like, "count": 2}]
        found = await ended(served, begun["branch"])
        assert (found["state"], found["problem"], found["done"]) == ("done", None, 1.0)
        result = found["result"]
        (listed,) = (await served.get("branches"))["branches"]
        assert (listed["branch"], listed["result"]) == (begun["branch"], None)
        saved = (await served.raw(f"branches/{begun['branch']}/log")).content
        await _views_are_of_the_branch(served, begun["branch"], entry, result, like)
    command = ("branch", log, "--entry", entry, "--policy", "fifo", "--job", f"{like}=2")
    code, shown, _ = await asyncio.to_thread(
        ran, capsys, *command, "--hours", 0.4, "--runs", 2, "--json", "-"
    )
    assert code == 0
    said = orjson.loads(shown)
    tide, deeds = result.pop("tide"), result.pop("deeds")
    assert result.pop("previews") == [], "nobody asks for anything"
    assert result == said | {"log": str(log)}
    assert deeds[0] == result["first_difference"]
    assert [one["at_s"] for one in deeds] == sorted(one["at_s"] for one in deeds)
    for side in ("recorded", "control", "branch"):
        rows = tide[side]
        assert 10 < len(rows) <= 202
        assert rows[0]["at_s"] == result["at_s"]
        assert [row["at_s"] for row in rows] == sorted({row["at_s"] for row in rows})
    assert tide["recorded"][0] == tide["control"][0], "they begin at one state"
    assert tide["control"][-1]["at_s"] == result["until_s"]
    path = log.with_name("branch.db")
    path.write_bytes(saved)
    code, shown, _ = await asyncio.to_thread(ran, capsys, "replay", path, "--json", "-")
    assert (code, orjson.loads(shown)["identical"]) == (0, True)
    code, shown, _ = await asyncio.to_thread(
        ran, capsys, "jobs", "--log", path, "--all", "--json", "-"
    )
    names = [row["job"] for row in orjson.loads(shown)["jobs"]]
    assert sum(name.startswith(f"{like}-like-") for name in names) == 2


async def _views_are_of_the_branch(
    served: Served, name: str, entry: int, result: dict[str, Any], like: str
) -> None:
    cell = f"branch-{name}"
    ends = await served.get("overview", cell=cell)
    assert (ends["cell"], ends["policy"]) == (cell, "fifo")
    begins = await served.get("overview", cell=cell, entry=entry)
    before = await served.get("overview", entry=entry)
    assert begins == before | {"cell": cell}, "they share a past"
    done = "jobs_completed"
    assert ends["totals"][done] - begins["totals"][done] == result["branch"]["done"]
    why = await served.get(f"jobs/{like}-like-1/why", cell=cell)
    assert why["job"] == f"{like}-like-1"
    await served.get(f"jobs/{like}-like-1", 404)
    diff = await served.get("diff", cell=cell, entry=entry, vs=ends["entry"])
    assert f"{like}-like-1" in {one["name"] for one in diff["jobs"]}
    assert cell not in str(await served.get("cells"))
    for asked_ in ("jobs/x/forecast", "verified"):
        assert (await served.get(asked_, 422, cell=cell))["parameter"] == "cell"
    await served.get("overview", 404, cell="branch-of-nobody")


async def test_what_cannot_be_is_refused_with_its_field(log: Path) -> None:
    refused: list[tuple[dict[str, Any], int, str | None]] = [
        ({"entry": 10**9}, 404, "entry"),
        ({"hours": 1000}, 422, "hours"),
        ({"runs": 0}, 422, "runs"),
        ({"runs": True}, 422, "runs"),
        ({"entry": True}, 422, "entry"),
        ({"change": {"jobs": [{"like": "job-0000", "count": 501}] * 2}}, 422, "change.jobs"),
        ({"policy": "fifo"}, 422, "policy"),
        ({"change": {"policy": "fofi"}}, 422, "change.policy"),
        ({"change": {"settings": {"nothing": 1}}}, 422, "change.settings"),
        ({"change": {"settings": {"cycle_s": 1e-300}}}, 422, "change.settings"),
        ({"change": {"settings": {"load_slot_s": 1e-300}}}, 422, "change.settings"),
        ({"change": {"add_nodes": {"moon": 2}}}, 422, "change.add_nodes"),
        ({"change": {"lose": ["nobody"]}}, 422, "change.lose"),
        ({"change": {"demand": -1}}, 422, "change.demand"),
        ({"change": {"jobs": [{"like": "nobody"}]}}, 422, "change.jobs"),
        (
            {"change": {"requests": [{"verb": "node.paint", "node": "n"}]}},
            422,
            "change.requests[0]",
        ),
    ]
    async with serve(log, at_once=0) as served:
        for body, status, field in refused:
            served.gateway.limits._writes.clear()
            found = await asked(served, status, **body)
            assert found.get("parameter", "").startswith(field), (body, found)
        for _ in range(PER_SUBJECT_MAX):
            served.gateway.limits._writes.clear()
            await asked(served)
        assert "wait or run already" in (await asked(served, 429))["detail"]
    shy = As(Role.TENANT, Sight.OWN_NAMES, "vision")
    async with serve(log, authority=shy, at_once=0) as served:
        assert "forecast" in (await asked(served, 403))["detail"]


async def test_a_request_that_the_engine_refuses_fails_the_branch(log: Path) -> None:
    async with serve(log) as served:
        request = {"verb": "node.cordon", "node": "nobody"}
        name = (await asked(served, hours=0.1, change={"requests": [request]}))["branch"]
        found = await ended(served, name)
        assert found["problem"].startswith("change.requests: args.node: "), found["problem"]


async def test_what_a_request_moves_is_what_the_command_previews(
    log: Path, capsys: Capture
) -> None:
    async with serve(log) as served:
        jobs = (await served.get("jobs", state="running", pool="training"))["jobs"]
        node = next(iter(jobs[0]["allocation"]))
        request = {"verb": "node.drain", "node": node, "by_s": 600}
        name = (await asked(served, hours=0.5, change={"requests": [request]}))["branch"]
        result = (await ended(served, name))["result"]
    (found,) = result["previews"]
    assert [one["node"] for one in found["nodes"]] == [node]
    assert found["moves"][0]["is_subject"]
    command = ("node", "drain", node, "--by", "10m", "--dry-run", "--preview", 0.5)
    code, shown, _ = await asyncio.to_thread(ran, capsys, *command, "--log", log, "--json", "-")
    assert code == 0
    assert orjson.loads(shown)["preview"] == found


async def test_a_forecast_is_the_range_of_branches_without_change(log: Path) -> None:
    async with serve(log) as served:
        entry = served.feed.entries // 2
        jobs = (await served.get("jobs", state="queued,running", entry=entry))["jobs"]

        async def forecast(job: str) -> dict[str, Any]:
            asked = {"entry": entry, "hours": 0.4, "runs": 2}
            answer = await served.raw(f"jobs/{job}/forecast", **asked)
            while answer.status_code == 202:
                assert answer.headers["Retry-After"] == "1"
                answer = await served.raw(f"jobs/{job}/forecast", **asked)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        found = {row["job"]: await forecast(row["job"]) for row in jobs}
        journal = await served.gateway.branches._journal(served.feed, entry)
        assert len(served.gateway.branches.forecasts._kept) == 1, "one is of all jobs"
        deeds = await asyncio.to_thread(_deeds, journal, entry)
        ended = (await served.get("jobs", state="completed", entry=entry))["jobs"][0]["job"]
        assert (await forecast(ended))["ends"] is None
        await served.get("jobs/nobody/forecast", 404)
    for row in jobs:
        job = row["job"]
        assert (found[job]["starts"] is None) is bool(row["gpus"])
        _same(found[job]["ends"], [_first(run, job, "is done") for run in deeds])
        if found[job]["starts"] is not None:
            _same(found[job]["starts"], [_first(run, job, "starts on") for run in deeds])


def _deeds(journal: Any, entry: int) -> list[list[Deed]]:
    begin = journal.origin(entry, 0.4)
    return [branch(begin, None, seed).deeds for seed in range(2)]


def _first(deeds: list[Deed], job: str, kind: str) -> float | None:
    return next((one.at_s for one in deeds if (one.subject, one.kind) == (job, kind)), None)


def _same(told: dict[str, Any], moments: list[float | None]) -> None:
    known = [one for one in moments if one is not None]
    assert told["none"] == len(moments) - len(known)
    assert told["least_s"] == min(known, default=None)
    assert told["most_s"] == max(known, default=None)


async def test_who_sees_own_names_alone_by_now_sees_no_branch_that_it_asked_for(
    log: Path,
) -> None:
    authority = As(Role.TENANT, Sight.ALL_NAMES, "vision")
    async with serve(log, authority=authority, at_once=0) as served:
        name = (await asked(served))["branch"]
        assert (await served.get(f"branches/{name}"))["branch"] == name
        authority.who = replace(authority.who, sight=Sight.OWN_NAMES)
        assert (await served.get("branches"))["branches"] == []
        await served.get(f"branches/{name}", 404)
        await served.get("overview", 404, cell=f"branch-{name}")


async def test_a_branch_may_be_forgotten_while_its_log_is_made(
    log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serve(log) as served:
        name = await one_done(served)
        kept = served.gateway.branches._kept[name]
        making = [
            asyncio.create_task(served.client.get(f"/api/v1/branches/{name}/log")) for _ in range(2)
        ]
        await until(lambda: kept.saving.locked(), "somebody waits for the log")
        await served.client.delete(f"/api/v1/branches/{name}")
        for answer in await asyncio.gather(*making):
            assert (answer.status_code, answer.json()["parameter"]) == (404, "branch_id")
        assert [*kept.folder.glob(f"{name}*")] == [], "nothing of it is left"
    assert "Traceback" not in capfd.readouterr().err


async def test_a_branch_may_be_forgotten_while_its_log_is_read(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(log) as served:
        name = await one_done(served)
        branches = served.gateway.branches
        whole, make = (await served.raw(f"branches/{name}/log")).content, branches.log

        async def made(kept: KeptBranch, who: Subject) -> Path:
            path = await make(kept, who)
            asyncio.get_running_loop().call_soon(branches.end, kept)
            return path

        monkeypatch.setattr(branches, "log", made)
        answer = await served.raw(f"branches/{name}/log")
        assert (answer.status_code, answer.content) == (200, whole)
        assert answer.headers["Content-Length"] == str(len(whole))
        await served.get(f"branches/{name}/log", 404)
