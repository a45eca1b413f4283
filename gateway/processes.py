"""Starts a process for one assignment, hears its reports, and ends it with all that it started."""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import orjson

from gateway.assignment import LENGTH, Assignment, Report


class ProcessFailed(Exception):
    """The assignment came to nothing; says why, and what to do."""


async def run(assignment: Assignment, on_report: Report) -> Any:
    """Run an assignment in a process of its own, and give its result.

    The process is killed if this is cancelled.

    Raises:
        ProcessFailed: it could not be done, or the process was ended.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # never a module of the folder that the gateway happens to be in
        "-m",
        "gateway.process_main",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # an interrupt at the terminal is the gateway's to hear
    )
    try:
        found = await _hand_over(process, assignment, on_report)
        if found is not None:
            return found["result"]
        raise ProcessFailed(_why_it_ended(await process.wait(), assignment))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and those that it started
        await _whole(_reap(process))


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Do some work to its end, though this is cancelled meanwhile; then that comes after it.

    A process that has just given its result may be told to end while it is reaped. Broken off
    there, it would be left as it is, with its pipes.
    """
    doing, cancelled = asyncio.ensure_future(work), False
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError:
            cancelled = True
    doing.result()
    if cancelled:
        raise asyncio.CancelledError


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Close the pipes of a process that was killed, and wait for its end."""
    given, said = process.stdin, process.stdout
    assert given is not None
    assert said is not None
    given.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await given.wait_closed()
    while await said.read(64 * 1024):
        pass
    await process.wait()


async def _hand_over(
    process: asyncio.subprocess.Process, assignment: Assignment, on_report: Report
) -> dict[str, Any] | None:
    """Hand the assignment over, and listen; give the last frame, or None if there is none."""
    given, said = process.stdin, process.stdout
    assert given is not None
    assert said is not None
    text = await asyncio.to_thread(pickle.dumps, assignment)
    try:
        given.write(LENGTH.pack(len(text)) + text)
        await given.drain()  # it stays open: the process ends when nobody holds it any more
        while True:
            (length,) = LENGTH.unpack(await said.readexactly(LENGTH.size))
            frame: dict[str, Any] = orjson.loads(await said.readexactly(length))
            if "problem" in frame:
                raise ProcessFailed(frame["problem"])
            if "result" in frame:
                return frame
            on_report(frame)
    except (asyncio.IncompleteReadError, BrokenPipeError, ConnectionResetError):
        return None


def _why_it_ended(status: int, assignment: Assignment) -> str:
    if status == -signal.SIGXCPU:
        return (
            f"it took more than the {assignment.limits.cpu_s} s of a processor that it may; ask "
            "for fewer hours or runs"
        )
    if status < 0:
        return (
            f"its process was ended by signal {-status}, perhaps for want of memory; ask again, "
            "or for fewer hours"
        )
    return f"its process ended with status {status}, which is a bug; the gateway's output has more"
