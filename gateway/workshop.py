"""Who works for whom: processes of the gateway, one at a time for each subject, some in all."""

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway import children
from gateway.assignment import Task
from gateway.problems import later

#: Of one subject, so many works may wait or run: few, so that nobody takes all places alone.
EACH_MOST = 4
State = Literal["waiting", "running", "done", "failed", "ended"]
_log = logging.getLogger("tidegate.gateway")


@dataclass(slots=True, eq=False)
class Work:
    """Something that a process does for a subject."""

    subject: str
    task: Task
    state: State = "waiting"
    done: float = 0.0
    problem: str | None = None
    result: Any = None
    took_s: float = 0.0
    _over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self._over.is_set()

    async def over(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, for so long at most; tell whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._over.wait()
        return self.is_over

    def end(self, state: State, problem: str | None = None) -> None:
        """Let it be over."""
        if not self.is_over:
            self.state, self.problem = state, problem
            self._over.set()


class Workshop:
    """All works that wait or run, in the order in which they came."""

    def __init__(self, at_once: int | None = None) -> None:
        """Have so many run at once, by default as many as there are cores."""
        self.at_once = (os.cpu_count() or 1) if at_once is None else at_once
        self._waiting: list[Work] = []
        self._running: dict[asyncio.Task[None], Work] = {}

    def put(self, work: Work) -> Work:
        """Take a work on.

        Raises:
            Problem: 429, the subject has as many as it may.
        """
        works = [*self._waiting, *self._running.values()]
        if sum(one.subject == work.subject for one in works) >= EACH_MOST:
            raise later(
                f"{EACH_MOST} branches and forecasts of yours wait or run already; ask again once "
                "one is done, or end one: DELETE /api/v1/branches/ID",
                5.0,
                429,
            )
        self._waiting.append(work)
        self._go_on()
        return work

    def end(self, work: Work) -> None:
        """End a work that waits or runs."""
        if work.is_over:
            return  # its process may be ending: it is left to that
        work.end("ended")
        if work in self._waiting:
            self._waiting.remove(work)
        for task, one in self._running.items():
            if one is work:
                task.cancel()

    async def close(self) -> None:
        """End all works, and their processes."""
        for work in [*self._waiting, *self._running.values()]:
            self.end(work)
        if self._running:
            await asyncio.wait([*self._running])

    def _go_on(self) -> None:
        """Start what may start."""
        busy = {work.subject for work in self._running.values()}
        for work in [*self._waiting]:
            if len(self._running) >= self.at_once:
                return
            if work.subject not in busy:
                busy.add(work.subject)
                self._waiting.remove(work)
                work.state = "running"
                task = asyncio.create_task(_worked(work))
                self._running[task] = work
                task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._go_on()


async def _worked(work: Work) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    def told(said: dict[str, Any]) -> None:
        work.done = max(work.done, float(said.get("done", 0.0)))

    try:
        work.result = await children.work(work.task, told)
    except children.Failed as failed:
        work.end("failed", str(failed))
    except asyncio.CancelledError:
        work.end("ended")
    except Exception:  # noqa: BLE001 - whoever asked is told, and others go on
        _log.exception("a process of the gateway could not be started")
        work.end("failed", "the gateway could not start a process for it; its output says why")
    else:
        work.took_s, work.done = loop.time() - began_s, 1.0
        work.end("done")
