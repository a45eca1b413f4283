"""What both clients have: how they come to a gateway, and a table of methods.

`overview = as_method(operations.overview)`: a method has the arguments and the docstring of its
operation. What it gives depends on whose it is: of a `Client` the result, of an `AsyncClient`
what is awaited.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import httpx
from pydantic import BaseModel

from tidegate_client import asking, branching, operations
from tidegate_client.base import ClientBase, Http, options
from tidegate_client.contexts import Place, find
from tidegate_client.errors import reading_authorities
from tidegate_client.flow import Flow, Moment
from tidegate_client.operations import ListQuery
from tidegate_client.parts import JobRow
from tidegate_client.rows import AsyncRows, Rows

Given = ParamSpec("Given")
Found = TypeVar("Found", covariant=True)
Row = TypeVar("Row", bound=BaseModel)
Self = TypeVar("Self", bound="OfClient[Any]")


class Method(Protocol[Given, Found]):
    """A method that gives one answer."""

    @overload
    def __get__(self, it: ClientBase[httpx.Client], of: Any = None) -> Callable[Given, Found]: ...
    @overload
    def __get__(
        self, it: ClientBase[httpx.AsyncClient], of: Any = None
    ) -> Callable[Given, Coroutine[Any, Any, Found]]: ...


class ListMethod(Protocol[Given, Row]):
    """A method that gives rows, which are read as they are needed."""

    @overload
    def __get__(
        self, it: ClientBase[httpx.Client], of: Any = None
    ) -> Callable[Given, Rows[Row]]: ...
    @overload
    def __get__(
        self, it: ClientBase[httpx.AsyncClient], of: Any = None
    ) -> Callable[Given, AsyncRows[Row]]: ...


def as_method(flow: Callable[Concatenate[Moment, Given], Flow[Found]]) -> Method[Given, Found]:
    """Make a method of an operation: the client gives it its moment."""

    @functools.wraps(flow)
    def run(self: Any, /, *args: Given.args, **named: Given.kwargs) -> Any:
        return self._run(flow(self._moment, *args, **named))

    return cast("Method[Given, Found]", run)


def of_job(flow: Callable[Concatenate[Moment, str, Given], Flow[Found]]) -> Method[Given, Found]:
    """Make a flow about a job a method of its handle."""

    @functools.wraps(flow)
    def run(self: Any, /, *args: Given.args, **named: Given.kwargs) -> Any:
        return self._run(flow(self._moment, self.id, *args, **named))

    return cast("Method[Given, Found]", run)


def as_list_method(question: Callable[Given, ListQuery[Row]]) -> ListMethod[Given, Row]:
    """Make a method of a list."""

    def run(self: Any, /, *args: Given.args, **named: Given.kwargs) -> Any:
        return self._rows(self._run, question(*args, **named), self._moment)

    run.__doc__ = question.__doc__
    return cast("ListMethod[Given, Row]", run)


class OfClient(ClientBase[Http]):
    """How a gateway is named, and what is asked of it."""

    _makes_http: Callable[..., Any]

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        cell: str | None = None,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Name the gateway; nothing is asked yet.

        Args:
            url: Such as `http://127.0.0.1:8321`. Other hosts are reached by https alone.
            token: What lets one in.
            cell: Which cell of the log; by default `default`, or the only one.
            transport: Of httpx, such as one of a test.
        """
        with reading_authorities():
            http: Any = self._makes_http(**options(Place(url, token), transport))
        super().__init__(http, Moment(cell=cell))

    @classmethod
    def from_context(cls: type[Self], name: str | None = None, *, cell: str | None = None) -> Self:
        """Find the gateway: the named context, $TIDEGATE_CONTEXT, the current one, or a local one.

        Raises:
            ContextError: the context cannot be used.
            NoGateway: there is none, or several run here.
        """
        place = find(name)
        return cls(place.url, place.token, cell=cell)

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
    agents = as_list_method(operations.agents)
    decisions = as_list_method(operations.decisions)
    requests = as_list_method(operations.requests)

    ask = as_method(asking.ask)
    outcome = as_method(asking.outcome)
    cordon = as_method(asking.cordon)
    uncordon = as_method(asking.uncordon)
    drain = as_method(asking.drain)


class OfBranches:
    """What is asked of its branches."""

    __call__ = as_method(branching.branches)
    begin = as_method(branching.begin)
    one = as_method(branching.one)
    wait = as_method(branching.wait)
    end = as_method(branching.end)


class OfJobs:
    """What is asked of its jobs."""

    __call__ = as_list_method(operations.jobs)


class OfJob(ClientBase[Http]):
    """What is asked of one job."""

    def __init__(self, client: ClientBase[Http], job: str, row: JobRow | None) -> None:
        http: Any = client._http
        super().__init__(http, client._moment)
        self.id, self.row = job, row

    def __repr__(self) -> str:
        return f"<{self.id}: {self.row.state if self.row else 'submitted'}>"

    why = of_job(operations.why)
    stays = of_job(operations.stays)
    curves = of_job(operations.curves)
    ask = of_job(asking.ask_of)
    cancel = of_job(asking.cancel)
    hold = of_job(asking.hold)
    release = of_job(asking.release)
