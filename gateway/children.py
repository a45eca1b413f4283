"""Processes that work for the gateway, started one by one and ended with their work."""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any

import orjson

from gateway.assignment import LENGTH, Task

#: Is told what the process says of its work.
Told = Callable[[dict[str, Any]], None]


class Failed(Exception):
    """The work came to nothing; says why, and what to do."""


async def work(task: Task, told: Told) -> Any:
    """Have a task done by a process of its own; it ends if this is cancelled.

    Raises:
        Failed: it could not be done, or the process was ended.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # never a module of the folder that the gateway happens to be in
        "-m",
        "gateway.child",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # an interrupt at the terminal is the gateway's to hear
    )
    try:
        found = await _frames(process, task, told)
        if found is not None:
            return found["result"]
        raise Failed(_ended(await process.wait(), task))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and those that it started
        await _gone(process)


async def _gone(process: asyncio.subprocess.Process) -> None:
    """Let go of all that is left of a process that was killed."""
    given, said = process.stdin, process.stdout
    assert given is not None
    assert said is not None
    given.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await given.wait_closed()
    while await said.read(64 * 1024):
        pass
    await process.wait()


async def _frames(
    process: asyncio.subprocess.Process, task: Task, told: Told
) -> dict[str, Any] | None:
    """Hand the task over and listen; give the last frame, None if the process ended before."""
    given, said = process.stdin, process.stdout
    assert given is not None
    assert said is not None
    text = await asyncio.to_thread(pickle.dumps, task)
    try:
        given.write(LENGTH.pack(len(text)) + text)
        await given.drain()  # it stays open: the process ends when nobody holds it any more
        while True:
            (length,) = LENGTH.unpack(await said.readexactly(LENGTH.size))
            frame: dict[str, Any] = orjson.loads(await said.readexactly(length))
            if "problem" in frame:
                raise Failed(frame["problem"])
            if "result" in frame:
                return frame
            told(frame)
    except (asyncio.IncompleteReadError, BrokenPipeError, ConnectionResetError):
        return None


def _ended(status: int, task: Task) -> str:
    if status == -signal.SIGXCPU:
        return (
            f"it took more than the {task.bounds.cpu_s} s of a processor that it may; ask for "
            "fewer hours or runs"
        )
    if status < 0:
        return (
            f"its process was ended by signal {-status}, perhaps for want of memory; ask again, "
            "or for fewer hours"
        )
    return f"its process ended with status {status}, which is a bug; the gateway's output has more"
