"""The client that waits for each answer."""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

import httpx
from pydantic import BaseModel

from tidegate_client import operations
from tidegate_client.base import AGAIN_S, ClientBase, HeadStream, options
from tidegate_client.contexts import Place, find
from tidegate_client.errors import problem_of
from tidegate_client.events import Head
from tidegate_client.flow import Flow, Moment, Pause
from tidegate_client.jobs import Job
from tidegate_client.operations import ListQuery
from tidegate_client.parts import JobRow
from tidegate_client.rows import Rows

Given = ParamSpec("Given")
Found = TypeVar("Found")
Row = TypeVar("Row", bound=BaseModel)


class _Waits(ClientBase[httpx.Client]):
    """Runs flows, blocking."""

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
                except httpx.TransportError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as ended:
            found: Found = ended.value
            return found


def as_method(
    flow: Callable[Concatenate[Moment, Given], Flow[Found]],
) -> Callable[Concatenate[_Waits, Given], Found]:
    """Make a method of an operation: the client gives it its moment."""

    @functools.wraps(flow)
    def run(self: _Waits, /, *args: Given.args, **named: Given.kwargs) -> Found:
        return self._run(flow(self._moment, *args, **named))

    return run


def as_list_method(
    question: Callable[Given, ListQuery[Row]],
) -> "Callable[Concatenate[_Waits, Given], Rows[Row]]":
    """Make a method of a list: it gives rows that are read as they are needed."""

    def run(self: _Waits, /, *args: Given.args, **named: Given.kwargs) -> Rows[Row]:
        return Rows(self._run, question(*args, **named), self._moment)

    run.__doc__ = question.__doc__
    return run


def of_job(
    flow: Callable[Concatenate[Moment, str, Given], Flow[Found]],
) -> "Callable[Concatenate[JobHandle, Given], Found]":
    """Make a flow about a job a method of its handle."""

    @functools.wraps(flow)
    def run(self: "JobHandle", /, *args: Given.args, **named: Given.kwargs) -> Found:
        return self._run(flow(self._moment, self.id, *args, **named))

    return run


class Client(_Waits):
    """A gateway, and the moment that reads are about: now, unless `at` says otherwise.

    Use it as a context manager, or `close` it.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        cell: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Name the gateway; nothing is asked yet.

        Args:
            url: Such as `http://127.0.0.1:8321`. Other hosts are reached by https alone.
            token: What lets one in.
            cell: Which cell of the log; by default `default`, or the only one.
            transport: Of httpx, such as one of a test.
        """
        http = httpx.Client(**options(Place(url, token), transport))
        super().__init__(http, Moment(cell=cell))

    @classmethod
    def from_context(cls, name: str | None = None, *, cell: str | None = None) -> "Client":
        """Find the gateway: the named context, $TIDEGATE_CONTEXT, the current one, or a local one.

        Raises:
            ContextError: the context cannot be used.
            NoGateway: there is none, or several run here.
        """
        place = find(name)
        return cls(place.url, place.token, cell=cell)

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

    def job(self, job: str) -> "JobHandle":
        """Give a job.

        Raises:
            NotFound: there is none.
        """
        row = self._run(operations.job_row(self._moment, job))
        return JobHandle(self, job, row)

    overview = as_method(operations.overview)
    rules = as_method(operations.rules)
    loans = as_method(operations.loans)
    loan_history = as_method(operations.loan_history)
    why = as_method(operations.why)
    stays = as_method(operations.stays)
    curves = as_method(operations.curves)
    pieces = as_method(operations.pieces)
    log_now_s = as_method(operations.log_now_s)
    nodes = as_list_method(operations.nodes)
    decisions = as_list_method(operations.decisions)
    requests = as_list_method(operations.requests)

    ask = as_method(operations.ask)
    outcome = as_method(operations.outcome)
    cordon = as_method(operations.cordon)
    uncordon = as_method(operations.uncordon)
    drain = as_method(operations.drain)

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
                        raise problem_of(answer)
                    for line in answer.iter_lines():
                        for head in events.take(line):
                            events.goes_on()
                            yield head
            except httpx.TransportError as broken:
                error = broken
            events.broke(error)
            time.sleep(AGAIN_S)


class Jobs(_Waits):
    """The jobs of a client: call it to list them, finished ones too."""

    __call__ = as_list_method(operations.jobs)

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
        flow = operations.submit(self._moment, job, reason=reason, key=key, wait=wait)
        return JobHandle(self, self._run(flow), None)


class JobHandle(_Waits):
    """A job: `row` is what was known of it last."""

    def __init__(self, client: _Waits, job: str, row: JobRow | None) -> None:
        super().__init__(client._http, client._moment)
        self.id, self.row = job, row

    def __repr__(self) -> str:
        return f"<{self.id}: {self.row.state if self.row else 'submitted'}>"

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
        """
        self.row = self._run(operations.wait(self._moment, self.id, state, timeout=timeout))
        return self

    why = of_job(operations.why)
    stays = of_job(operations.stays)
    curves = of_job(operations.curves)
    ask = of_job(operations.ask_of)
    cancel = of_job(operations.cancel)
    hold = of_job(operations.hold)
    release = of_job(operations.release)
