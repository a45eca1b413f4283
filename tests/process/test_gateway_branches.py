"""Branches and forecasts of the gateway, in real processes: they come out right, and they end."""

import asyncio
import contextlib
import operator
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from bus.reading import import_log, open_log
from gateway import branches, processes as gateway_processes
from gateway.assignment import Assignment, ProcessLimits
from gateway.branches import KeptBranch
from gateway.computation_queue import PER_SUBJECT_MAX
from gateway.subjects import Role, Sight, Subject
from simulator.branch.deeds import Deed
from simulator.branch.run import branch
from tests.demo_log import _demo, log
from tests.gateway.conftest import Served, serve
from tests.gateway.test_sight import As
from tests.golden.alter import Capture, ran, rechained
from tests.patience import until, wait_until

__all__ = ["_demo", "log"]
#: Longer than any test waits.
LONG: dict[str, Any] = {"hours": 168, "runs": 20}


async def asked(served: Served, status: int = 202, **body: Any) -> dict[str, Any]:
    answer = await served.client.post("/api/v1/branches", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    if status == 202:
        assert answer.headers["Location"] == f"/api/v1/branches/{found['branch']}"
    return found


async def come_to(served: Served, name: str, *states: str) -> dict[str, Any]:
    """Wait until a branch is in one of these states; give it."""
    found: dict[str, Any] = {}

    async def look() -> bool:
        nonlocal found
        found = await served.get(f"branches/{name}")
        return found["state"] in states

    while not await look():  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return found


def children() -> list[psutil.Process]:
    """Give the processes that work for gateways of this one."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "gateway.process_main" in one.cmdline():
                found.append(one)
    return found


async def test_a_branch_is_what_the_command_says(log: Path, capsys: Capture) -> None:
    async with serve(log) as served:
        entry = served.feed.entries // 2
        like = (await served.get("jobs", entry=entry))["jobs"][-1]["job"]
        change = {"policy": "fifo", "jobs": [{"like": like, "count": 2}]}
        begun = await asked(served, entry=entry, hours=0.4, runs=2, change=change)
        assert begun["state"] in ("waiting", "running")
        assert begun["asked"]["change"]["jobs"] == [{"like": like, "count": 2}]
        found = await come_to(served, begun["branch"], "done", "failed")
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


async def test_one_runs_at_a_time_and_each_ends_when_it_is_told(log: Path) -> None:
    async with serve(log) as served:
        first = (await asked(served, **LONG))["branch"]
        await served.get("overview", 409, cell=f"branch-{first}")
        second = (await asked(served, **LONG))["branch"]
        await until(children, "no process began")
        assert (await served.get(f"branches/{second}"))["state"] == "waiting"
        assert len(children()) == 1
        gone = await served.client.delete(f"/api/v1/branches/{second}")
        assert gone.json()["state"] == "ended"
        await served.client.delete(f"/api/v1/branches/{first}")
        await until(lambda: not children(), "it went on")
        assert (await served.get(f"branches/{first}"))["state"] == "ended"
        forgotten = await served.client.delete(f"/api/v1/branches/{first}")
        assert forgotten.status_code == 200
        await served.get(f"branches/{first}", 404)
        third = (await asked(served, **LONG))["branch"]
        await until(children, "no process began")
    assert third
    assert not children(), "it outlived its gateway"


async def test_a_branch_that_is_killed_or_takes_too_long_says_so(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(log) as served:
        name = (await asked(served, **LONG))["branch"]
        await until(children, "no process began")
        children()[0].kill()
        found = await come_to(served, name, "failed", "done")
        assert "ended by signal 9" in found["problem"]
        monkeypatch.setattr(branches, "CPU_S", 1)
        name = (await asked(served, hours=168))["branch"]
        found = await come_to(served, name, "failed", "done")
        assert "took more than the 1 s of a processor" in found["problem"]
        said = (await served.get(f"branches/{name}/log", 409))["detail"]
        assert "is failed" in said


async def test_a_process_that_is_done_is_reaped_though_it_is_told_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reaped: list[asyncio.subprocess.Process] = []
    reap, begun, on = gateway_processes._reap, asyncio.Event(), asyncio.Event()

    async def slow(process: asyncio.subprocess.Process) -> None:
        begun.set()
        await on.wait()
        await reap(process)
        reaped.append(process)

    monkeypatch.setattr(gateway_processes, "_reap", slow)
    assignment = Assignment(operator.is_, (1,), ProcessLimits())
    running = asyncio.create_task(gateway_processes.run(assignment, lambda _: None))
    await begun.wait()
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0)
    on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [process.returncode for process in reaped] in ([0], [-signal.SIGKILL])
    assert not children()


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
        found = await come_to(served, name, "failed", "done")
        assert found["problem"].startswith("change.requests: args.node: "), found["problem"]


async def test_what_a_request_moves_is_what_the_command_previews(
    log: Path, capsys: Capture
) -> None:
    async with serve(log) as served:
        jobs = (await served.get("jobs", state="running", pool="training"))["jobs"]
        node = next(iter(jobs[0]["allocation"]))
        request = {"verb": "node.drain", "node": node, "by_s": 600}
        name = (await asked(served, hours=0.5, change={"requests": [request]}))["branch"]
        result = (await come_to(served, name, "failed", "done"))["result"]
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


async def test_the_log_is_proven(log: Path) -> None:
    async with serve(log) as served:
        assert (await served.get("verified"))["state"] == "none"

        async def state() -> str:
            return str((await served.get("verified"))["state"])

        while (now := await state()) == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert now == "identical"
        found = await served.get("verified")
        assert found["entries"] == found["of"] == served.feed.entries
        assert len(children()) == 1, "it waits for what is new"
    assert not children()


async def test_a_proof_whose_process_was_killed_is_begun_again(log: Path) -> None:
    async with serve(log) as served:
        verifying = served.gateway.verifying
        await served.get("verified")
        await served.until(children)
        children()[0].kill()
        proof = verifying._proofs[served.feed.cell]
        await served.until(lambda: proof.problem)
        assert (await served.get("verified"))["state"] == "failed"
        verifying.again_s = 0.0
        assert (await served.get("verified"))["state"] == "none"
        verifying.again_s = 1e9
        again = verifying._proofs[served.feed.cell]
        await served.until(lambda: again.caught_up)
        assert (await served.get("verified"))["state"] == "identical"


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


async def test_a_log_that_decides_otherwise_is_told(log: Path) -> None:
    changed: list[int] = []

    def change(number: int, stimulus: dict[str, Any], decision: dict[str, Any]) -> None:
        if number >= 300 and decision.get("reasons") and not changed:
            decision["reasons"] = []
            changed.append(number)

    path = log.with_name("altered.db")
    with open_log(rechained(log, log.with_name("altered.jsonl"), change)) as altered:
        await asyncio.to_thread(import_log, altered, path)
    async with serve(path) as served:
        await served.get("verified")
        proof = served.gateway.verifying._proofs[served.feed.cell]
        await served.until(lambda: proof.difference or proof.problem)
        found = await served.get("verified")
    assert (found["state"], found["problem"]) == ("differs", None)
    assert f"entry {changed[0]}, on " in found["first_difference"]
    assert found["entries"] == changed[0]


def test_a_process_ends_with_a_gateway_that_is_killed(log: Path, tmp_path: Path) -> None:
    program = tmp_path / "starts.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from functools import partial
            from pathlib import Path
            from gateway import processes
            from gateway.assignment import ProcessLimits, Assignment
            from gateway.verifying import verify_journal
            from gateway.branch_runs import Journal
            from tests.gateway.conftest import opened

            journal = Journal(partial(opened, Path({str(log)!r})), "default", 0.0)
            assignment = Assignment(verify_journal, (journal,), ProcessLimits())
            asyncio.run(processes.run(assignment, lambda said: None))
            """
        )
    )
    root = Path(__file__).resolve().parents[2]
    gateway = subprocess.Popen(
        [sys.executable, str(program)], env={**os.environ, "PYTHONPATH": str(root)}
    )
    try:
        found: list[psutil.Process] = []

        def child() -> bool:
            found[:] = psutil.Process(gateway.pid).children()
            return bool(found) and "gateway.process_main" in found[0].cmdline()

        wait_until(child, "it started none")
    finally:
        gateway.send_signal(signal.SIGKILL)
        gateway.wait()
    wait_until(lambda: not found[0].is_running() or found[0].status() == psutil.STATUS_ZOMBIE)


async def test_a_branch_may_be_forgotten_while_its_log_is_made(
    log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serve(log) as served:
        name = (await asked(served, entry=served.feed.entries - 1, hours=0.1))["branch"]
        assert (await come_to(served, name, "done", "failed"))["state"] == "done"
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
        name = (await asked(served, entry=served.feed.entries - 1, hours=0.1))["branch"]
        assert (await come_to(served, name, "done", "failed"))["state"] == "done"
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
