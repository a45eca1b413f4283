"""The queue of what processes compute for subjects: one at a time for each, some at once in all."""

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway import processes
from gateway.assignment import Assignment
from gateway.problems import later

#: Of one subject, so many computations may wait or run: few, so that nobody alone takes all places.
PER_SUBJECT_MAX = 4
#: And of all people and robots of one tenant.
PER_TENANT_MAX = 8
State = Literal["waiting", "running", "done", "failed", "ended"]
_log = logging.getLogger("tidegate.gateway")


@dataclass(slots=True, eq=False)
class Computation:
    """An assignment that a process carries out for a subject, and what came of it."""

    subject: str
    assignment: Assignment
    state: State = "waiting"
    done: float = 0.0
    problem: str | None = None
    result: Any = None
    took_s: float = 0.0
    tenant: str | None = None  #: Of the subject, if it is of one.
    _over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_over(self) -> bool:
        """Whether it is done, has failed or was ended."""
        return self._over.is_set()

    async def over(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, for so long at most; tell whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._over.wait()
        return self.is_over

    def end(self, state: State, problem: str | None = None) -> None:
        """Put it into its last state, unless it is over."""
        if not self.is_over:
            self.state, self.problem = state, problem
            self._over.set()


class ComputationQueue:
    """All computations that wait or run, in the order in which they came."""

    def __init__(self, at_once: int | None = None) -> None:
        """Run so many at once, by default as many as there are cores."""
        self.at_once = (os.cpu_count() or 1) if at_once is None else at_once
        self._waiting: list[Computation] = []
        self._running: dict[asyncio.Task[None], Computation] = {}

    def put(self, computation: Computation) -> Computation:
        """Add one; it starts when its turn comes.

        Raises:
            Problem: 429, the subject, or its tenant, has as many as it may.
        """
        present, tenant = [*self._waiting, *self._running.values()], computation.tenant
        own = sum(one.subject == computation.subject for one in present)
        ours = sum(one.tenant == tenant for one in present if tenant is not None)
        if own >= PER_SUBJECT_MAX or ours >= PER_TENANT_MAX:
            many = f"{own} branches and forecasts of yours"
            if own < PER_SUBJECT_MAX:
                many = f"{ours} branches and forecasts of your tenant"
            raise later(
                f"{many} wait or run already; ask again once one is done, or end one: DELETE "
                "/api/v1/branches/ID",
                5.0,
                429,
            )
        self._waiting.append(computation)
        self._start_next()
        return computation

    def end(self, computation: Computation) -> None:
        """End one that waits or runs, and its process."""
        if computation.is_over:
            return  # its process may be ending: it is left to that
        computation.end("ended")
        if computation in self._waiting:
            self._waiting.remove(computation)
        for task, one in self._running.items():
            if one is computation:
                task.cancel()

    async def close(self) -> None:
        """End all, and their processes."""
        for computation in [*self._waiting, *self._running.values()]:
            self.end(computation)
        if self._running:
            await asyncio.wait([*self._running])

    def _start_next(self) -> None:
        """Start those whose turn has come."""
        busy = {computation.subject for computation in self._running.values()}
        for computation in [*self._waiting]:
            if len(self._running) >= self.at_once:
                return
            if computation.subject not in busy:
                busy.add(computation.subject)
                self._waiting.remove(computation)
                computation.state = "running"
                task = asyncio.create_task(_run(computation))
                self._running[task] = computation
                task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._start_next()


async def _run(computation: Computation) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    def on_report(said: dict[str, Any]) -> None:
        computation.done = max(computation.done, float(said.get("done", 0.0)))

    try:
        computation.result = await processes.run(computation.assignment, on_report)
    except processes.ProcessFailed as failed:
        computation.end("failed", str(failed))
    except asyncio.CancelledError:
        computation.end("ended")
    except Exception:  # noqa: BLE001 - whoever asked is told, and others go on
        _log.exception("a process of the gateway could not be started")
        why = "the gateway could not start a process for it; its output says why"
        computation.end("failed", why)
    else:
        computation.took_s, computation.done = loop.time() - began_s, 1.0
        computation.end("done")
