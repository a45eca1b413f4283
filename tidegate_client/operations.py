"""The operations of both clients, as flows: reads, lists, and waiting for a job.

The first argument of each is the moment that it is about, which the client fills in; the others are
those of the client's method.
"""

import contextlib
import html
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from tidegate_client import models
from tidegate_client.errors import JobEnded, NotFound
from tidegate_client.flow import (
    Call,
    Flow,
    Looks,
    Moment,
    Parameters,
    read,
)
from tidegate_client.jobs import ENDED, STATES
from tidegate_client.parts import JobRow, PastLoan, Stay

Row = TypeVar("Row", bound=BaseModel)
Words = str | Sequence[str] | None

#: A log whose newest entry is further away than this lives in a time of its own, as demos do.
_OWN_TIME_S = 7 * 86_400.0
#: Rows of a page.
_PAGE = 500
#: In these states a job has been where one waits for it to be `running`.
_RAN = ("running", "scaling", "checkpointing", "completed")


class Why(models.WhyInWords):
    """Why a job is as it is. As text it is what `tidegate why JOB` prints."""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


@dataclass(frozen=True, slots=True)
class ListQuery(Generic[Row]):
    """A list that the API gives in pages: its path, its kind of row, and how it is filtered."""

    path: str
    field: str
    kind: type[Row]
    parameters: Parameters

    def page(self, moment: Moment, cursor: str | None) -> Flow[tuple[list[Row], str | None]]:
        """Give the rows of a page, and the cursor of the next."""
        more = {} if cursor is None else {"cursor": cursor}
        answer = yield from read(_Page, self.path, moment, {**self.parameters, **more})
        rows = (answer.model_extra or {}).get(self.field, [])
        return [self.kind.model_validate(row) for row in rows], answer.next


class _Page(BaseModel):
    model_config = ConfigDict(extra="allow")

    next: str | None = None


def _list(path: str, field: str, kind: type[Row], **asked: Words) -> ListQuery[Row]:
    """Make the query of a list; filters that are None are left out."""
    said: dict[str, Any] = {"limit": _PAGE}
    for name, value in asked.items():
        if value is not None:
            said[name] = value if isinstance(value, str) else ",".join(value)
    return ListQuery(path, field, kind, said)


# --- lists ---


def jobs(
    *,
    state: Words = None,
    tenant: str | None = None,
    pool: str | None = None,
    text: str | None = None,
    sort: str | None = None,
    position: bool = False,
) -> ListQuery[JobRow]:
    """List jobs, finished ones too; several states may be given.

    With `position`, rows of jobs that wait tell when their turn comes, if the policy keeps an
    order.
    """
    asked = {"state": state, "tenant": tenant, "pool": pool, "text": text, "sort": sort}
    return _list("/jobs", "jobs", JobRow, **asked, position="true" if position else None)


def nodes(
    *, state: Words = None, pool: str | None = None, text: str | None = None
) -> ListQuery[models.NodeRow]:
    """List nodes."""
    return _list("/nodes", "nodes", models.NodeRow, state=state, pool=pool, text=text)


def agents(*, text: str | None = None) -> ListQuery[models.AgentRow]:
    """List agents: their nodes, contact, and commands that they refused or left unanswered."""
    return _list("/agents", "agents", models.AgentRow, text=text)


def decisions(
    *, subject: str | None = None, rule: str | None = None, telling: bool = False
) -> ListQuery[models.Decided]:
    """List decisions, newest first; with `telling` only those with commands, reasons or errors."""
    only = "true" if telling else None
    return _list(
        "/decisions", "decisions", models.Decided, subject=subject, rule=rule, telling=only
    )


def requests(
    *, subject: str | None = None, verb: str | None = None, about: str | None = None
) -> ListQuery[models.Act]:
    """List what people asked for, newest first."""
    return _list("/requests", "acts", models.Act, subject=subject, verb=verb, about=about)


# --- reads ---


def overview(at: Moment) -> Flow[models.Overview]:
    """Give a cell at a glance."""
    return read(models.Overview, "/overview", at)


def rules(at: Moment) -> Flow[models.RulesAnswer]:
    """Give what holds in a cell: the policy, tenants' quotas, pauses and freezes."""
    return read(models.RulesAnswer, "/rules", at)


def loans(at: Moment) -> Flow[models.LoansAnswer]:
    """Give the nodes on loan, and how lending went so far."""
    return read(models.LoansAnswer, "/loans", at)


def loan_history(at: Moment, *, late: bool = False) -> Flow[list[PastLoan]]:
    """Give every loan of the log, or only those that came back late."""
    answer = yield from read(models.LoanHistoryAnswer, "/loans/history", at, {"late": late})
    return answer.loans


def why(at: Moment, job: str, *, width: int = 100) -> Flow[Why]:
    """Tell why a job is as it is; `str()` of it is what a terminal so wide shows."""
    return read(Why, f"{_job(job)}/why", at, {"text": width})


def stays(at: Moment, job: str) -> Flow[list[Stay]]:
    """Give where a job ran, when and how large."""
    answer = yield from read(models.StaysAnswer, f"{_job(job)}/stays", at)
    return answer.stays


def curves(at: Moment, job: str) -> Flow[models.CurvesAnswer]:
    """Give what a job reported of itself over time, such as its loss."""
    return read(models.CurvesAnswer, f"{_job(job)}/curves", at)


def job_row(at: Moment, job: str) -> Flow[JobRow]:
    """Give what is known of a job now.

    Raises:
        NotFound: there is none.
    """
    answer = yield from read(models.JobAnswer, _job(job), at)
    return answer.job


def pieces(
    at: Moment, job: str, reader: str, *, after: int | None = None
) -> Flow[models.PiecesAnswer]:
    """Give what a worker wrote, as far as its agent has sent it to a reader since `after`."""
    where = {"reader": reader} | ({} if after is None else {"after": str(after)})
    return read(models.PiecesAnswer, f"{_job(job)}/output", Moment(cell=at.cell), where)


def log_now_s(at: Moment) -> Flow[float]:
    """Give now in the time that the log lives in, in seconds since the Unix epoch."""
    frame = yield from read(models.Overview, "/overview", Moment(cell=at.cell))
    here_s = time.time()
    return here_s if abs(here_s - frame.now_s) < _OWN_TIME_S else frame.now_s


def _job(job: str) -> str:
    return f"/jobs/{quote(job, safe='')}"


# --- waiting ---


def wait(
    at: Moment,
    job: str,
    state: str = "completed",
    *,
    timeout: float = 3600.0,
    now_s: Callable[[], float] = time.monotonic,
) -> Flow[JobRow]:
    """Wait until a job is in a state; one that has run to its end also counts as `running`.

    Once the gateway has answered, the wait goes on while it is away.

    Raises:
        JobEnded: it ended in another state, and will never be in this one.
        TimedOut: it was not in this state within `timeout` seconds.
        ValueError: there is no such state.
    """
    if state not in STATES:
        raise ValueError(f"state: {state!r} is none of a job's; choose among {', '.join(STATES)}")
    looks, last = Looks(timeout, now_s), "not known to the scheduler yet"
    asked = Call("GET", _job(job), Moment(cell=at.cell).parameters())
    while True:
        answer = None
        with contextlib.suppress(NotFound):  # just submitted: no scheduler has taken it up
            answer = yield from looks.look(models.JobAnswer, asked)
        if answer is not None:
            row = answer.job
            if row.state == state or (state == "running" and row.state in _RAN):
                return row
            if row.state in ENDED:
                raise JobEnded(job, row.state, row.why_in_words)
            last = row.state
        yield looks.again(f"{job} is {last} after {timeout:g} s; it was to be {state}")
