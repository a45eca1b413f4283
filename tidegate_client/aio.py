"""The client for asyncio: the same as `Client`, with `await` and `async for`."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import httpx

from tidegate_client import asking, operations
from tidegate_client.base import AGAIN_S, ClientBase, HeadStream
from tidegate_client.errors import problem_of
from tidegate_client.events import Head
from tidegate_client.flow import Flow, Pause
from tidegate_client.jobs import Job
from tidegate_client.methods import OfBranches, OfClient, OfJob, OfJobs
from tidegate_client.parts import JobRow
from tidegate_client.rows import AsyncRows

Found = TypeVar("Found")


class _Awaits(ClientBase[httpx.AsyncClient]):
    """Carries flows out."""

    _makes_http = httpx.AsyncClient
    _rows = AsyncRows

    async def _run(self, flow: Flow[Found]) -> Found:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = flow.send(None)
                    continue
                try:
                    answer = await self._http.send(self._request(step))
                except httpx.RequestError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as ended:
            found: Found = ended.value
            return found


class AsyncClient(_Awaits, OfClient[httpx.AsyncClient]):
    """A gateway, and the moment that reads are about: now, unless `at` says otherwise.

    Use it as a context manager, or `close` it.
    """

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of its connections; clients of other moments share them."""
        await self._http.aclose()

    @property
    def jobs(self) -> "AsyncJobs":
        """The jobs: call it to list them, `submit` another."""
        return AsyncJobs(self._http, self._moment)

    @property
    def branches(self) -> "AsyncBranches":
        """The branches: call it to list them, `begin` one at the moment of this client."""
        return AsyncBranches(self._http, self._moment)

    async def job(self, job: str) -> "AsyncJobHandle":
        """Give a job.

        Raises:
            NotFound: there is none.
        """
        row = await self._run(operations.job_row(self._moment, job))
        return AsyncJobHandle(self, job, row)

    async def stream(self) -> AsyncIterator[Head]:
        """Give each new entry's number as it comes, for ever; a broken stream is opened again.

        Raises:
            NoGateway: the gateway is gone.
            Problem: it refuses.
        """
        events = HeadStream(self._moment)
        while True:
            error: httpx.TransportError | None = None
            try:
                async with self._http.stream("GET", "/stream", **events.asked()) as answer:
                    if answer.status_code >= 400:
                        await answer.aread()
                        events.refused(problem_of(answer))
                    else:
                        async for line in answer.aiter_lines():
                            for head in events.take(line):
                                events.goes_on()
                                yield head
            except httpx.TransportError as broken:
                error = broken
            events.broke(error)
            await asyncio.sleep(AGAIN_S)


class AsyncBranches(_Awaits, OfBranches):
    """The branches of a client, which end with the gateway."""


class AsyncJobs(_Awaits, OfJobs):
    """The jobs of a client: call it to list them, finished ones too."""

    def __aiter__(self) -> AsyncIterator[JobRow]:
        return aiter(self())

    async def submit(
        self, job: Job, *, reason: str = "", key: str | None = None, wait: float = 5.0
    ) -> "AsyncJobHandle":
        """Submit a job; with a key of one's own, it is submitted once, however often one tries.

        Raises:
            Refused: the scheduler refused it.
            Problem: the gateway did.
        """
        flow = asking.submit(self._moment, job, reason=reason, key=key, wait=wait)
        return AsyncJobHandle(self, await self._run(flow), None)


class AsyncJobHandle(_Awaits, OfJob[httpx.AsyncClient]):
    """A job: `row` is what was known of it last."""

    async def refresh(self) -> JobRow:
        """Look at it again."""
        self.row = await self._run(operations.job_row(self._moment, self.id))
        return self.row

    async def wait(
        self,
        state: str = "completed",
        *,
        timeout: float = 3600.0,  # noqa: ASYNC109 - it counts looks, and says what was seen last
    ) -> "AsyncJobHandle":
        """Wait until it is in a state, such as `running` or `completed`.

        Raises:
            JobEnded: it ended otherwise.
            TimedOut: it is not, in so many seconds.
            ValueError: there is no such state.
        """
        self.row = await self._run(operations.wait(self._moment, self.id, state, timeout=timeout))
        return self
