"""The processes that work for a gateway: one runs at a time, and each ends when it should."""

import asyncio
import operator
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from gateway import branches, processes as gateway_processes
from gateway.assignment import Assignment, ProcessLimits
from tests.gateway.conftest import serve
from tests.patience import until, wait_until
from tests.process.branching import LONG, asked, children, ended


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
        found = await ended(served, name)
        assert "ended by signal 9" in found["problem"]
        monkeypatch.setattr(branches, "CPU_S", 1)
        name = (await asked(served, hours=168))["branch"]
        found = await ended(served, name)
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
