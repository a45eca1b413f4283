"""The client that waits for each answer."""

import time
from collections.abc import Iterator
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
from tidegate_client.rows import Rows

Found = TypeVar("Found")


class _Waits(ClientBase[httpx.Client]):
    """Runs flows, blocking."""

    _makes_http = httpx.Client
    _rows = Rows

    def _run(self, flow: Flow[Found]) -> Found:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = flow.send(None)
                    continue
                try:
                    answer = self._http.send(self._request(step))
                except httpx.RequestError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as ended:
            found: Found = ended.value
            return found


class Client(_Waits, OfClient[httpx.Client]):
    """A gateway, and the moment that reads are about: now, unless `at` says otherwise.

    Use it as a context manager, or `close` it.
    """

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of its connections; clients of other moments share them."""
        self._http.close()

    @property
    def jobs(self) -> "Jobs":
        """The jobs: call it to list them, `submit` another."""
        return Jobs(self._http, self._moment)

    @property
    def branches(self) -> "Branches":
        """The branches: call it to list them, `begin` one at the moment of this client."""
        return Branches(self._http, self._moment)

    def job(self, job: str) -> "JobHandle":
        """Give a job.

        Raises:
            NotFound: there is none.
        """
        row = self._run(operations.job_row(self._moment, job))
        return JobHandle(self, job, row)

    def stream(self) -> Iterator[Head]:
        """Give each new entry's number as it comes, for ever; a broken stream is opened again.

        Raises:
            NoGateway: the gateway is gone.
            Problem: it refuses.
        """
        events = HeadStream(self._moment)
        while True:
            error: httpx.TransportError | None = None
            try:
                with self._http.stream("GET", "/stream", **events.asked()) as answer:
                    if answer.status_code >= 400:
                        answer.read()
                        events.refused(problem_of(answer))
                    else:
                        for line in answer.iter_lines():
                            for head in events.take(line):
                                events.goes_on()
                                yield head
            except httpx.TransportError as broken:
                error = broken
            events.broke(error)
            time.sleep(AGAIN_S)


class Branches(_Waits, OfBranches):
    """The branches of a client, which end with the gateway."""


class Jobs(_Waits, OfJobs):
    """The jobs of a client: call it to list them, finished ones too."""

    def __iter__(self) -> Iterator[JobRow]:
        return iter(self())

    def submit(
        self, job: Job, *, reason: str = "", key: str | None = None, wait: float = 5.0
    ) -> "JobHandle":
        """Submit a job; with a key of one's own, it is submitted once, however often one tries.

        Raises:
            Refused: the scheduler refused it.
            Problem: the gateway did.
        """
        flow = asking.submit(self._moment, job, reason=reason, key=key, wait=wait)
        return JobHandle(self, self._run(flow), None)


class JobHandle(_Waits, OfJob[httpx.Client]):
    """A job: `row` is what was known of it last."""

    def refresh(self) -> JobRow:
        """Look at it again."""
        self.row = self._run(operations.job_row(self._moment, self.id))
        return self.row

    def wait(
        self,
        state: str = "completed",
        *,
        timeout: float = 3600.0,
    ) -> "JobHandle":
        """Wait until it is in a state, such as `running` or `completed`.

        Raises:
            JobEnded: it ended otherwise.
            TimedOut: it is not, in so many seconds.
            ValueError: there is no such state.
        """
        self.row = self._run(operations.wait(self._moment, self.id, state, timeout=timeout))
        return self
