"""What both clients ask for, as flows: requests of people, and what became of them.

The first argument of each is the moment that it is about, of which the cell alone matters; the
others are those of the client's method.
"""

import contextlib
import math
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from tidegate_client.errors import NotFound, Refused
from tidegate_client.flow import (
    WAIT_MOST_S,
    Call,
    Flow,
    Moment,
    Parameters,
    call,
    model_of,
    new_key,
)
from tidegate_client.jobs import Job, seconds_of
from tidegate_client.operations import log_now_s

#: So many seconds at most after a moment was worked out here the gateway wrote its request.
_WITHIN_S = 600.0


class Outcome(BaseModel):
    """What became of a request. What else the gateway says of it is kept, too."""

    model_config = ConfigDict(extra="allow", frozen=True)

    #: Its id: the key that it was made with.
    request: str
    #: `pending` until the scheduler has answered; then `done`.
    result: str
    #: The entry of the journal that has it.
    entry: int | None = None
    #: What it is about: a job, a node.
    about: str = ""
    #: The verb and its arguments; None where a gateway of an earlier release does not say them.
    args: dict[str, Any] | None = None
    #: When it was asked for, in the log's time.
    asked_s: float = 0.0
    #: What it was refused for, and why.
    field: str = ""
    refused_because: str = ""
    #: Of what is pending: why no scheduler takes it now, and what to do; it waits for one.
    nobody_leads: str | None = None
    #: Of a dry run: what it may be refused for that nobody looked at.
    note: str | None = None


def ask(
    at: Moment,
    /,
    verb: str,
    *,
    reason: str = "",
    key: str | None = None,
    wait: float = 5.0,
    dry_run: bool = False,
    **args: Any,
) -> Flow[Outcome]:
    """Ask the scheduler for something, such as `ask("node.cordon", node="train-3")`.

    Args:
        at: Of which the cell alone matters; a client knows it.
        verb: Its name; docs/events.md lists them with their arguments.
        reason: Why, for those who ask later.
        key: What is asked twice with one key takes effect once; by default it is new.
        wait: Seconds to wait for the answer of the scheduler, 30 at most.
        dry_run: Only say what would come of it now: `would_be_done`, or it is refused.
        args: The verb's arguments.

    Raises:
        Refused: the scheduler refused it.
        Problem: the gateway did, before anybody else saw it.
    """
    headers = {"Idempotency-Key": new_key() if key is None else key}
    wait_s = math.ceil(min(max(wait, 0.0), WAIT_MOST_S))
    if wait_s:
        headers["Prefer"] = f"wait={wait_s}"
    body: dict[str, Any] = {"args": {"verb": verb, **args}, "reason": reason}
    if dry_run:
        body["dry_run"] = True
    answer = yield from call(Call("POST", "/requests", _cell(at), body, headers, wait_s))
    return _checked(model_of(Outcome, answer))


def outcome(at: Moment, request: str) -> Flow[Outcome]:
    """Tell what became of a request.

    Raises:
        Refused: the scheduler refused it.
    """
    answer = yield from call(Call("GET", f"/requests/{quote(request, safe='')}", _cell(at)))
    return _checked(model_of(Outcome, answer))


def _cell(at: Moment) -> Parameters:
    return Moment(cell=at.cell).parameters()


def _checked(found: Outcome) -> Outcome:
    if found.result in ("refused", "dead_letter"):
        where = f"{found.field}: " if found.field else ""
        text = f"the scheduler refused it: {where}{found.refused_because}"
        raise Refused(409, text, found.field or None, None)
    return found


def cordon(at: Moment, /, node: str, **how: Any) -> Flow[Outcome]:
    """Let no new work onto a node; `how` is as in `ask`."""
    return ask(at, "node.cordon", node=node, **how)


def uncordon(at: Moment, /, node: str, **how: Any) -> Flow[Outcome]:
    """Let a node take work again."""
    return ask(at, "node.uncordon", node=node, **how)


def drain(
    at: Moment, /, node: str, by: str | float = "30m", *, force: bool = False,
    key: str | None = None, **how: Any,
) -> Flow[Outcome]:  # fmt: skip
    """Empty a node within a time: its gangs move, or save their work and wait."""
    by_s = yield from _until(at, seconds_of(by), None if how.get("dry_run") else key, "by_s")
    return (yield from ask(at, "node.drain", node=node, by_s=by_s, force=force, key=key, **how))


def ask_of(at: Moment, job: str, /, verb: str, **how: Any) -> Flow[Outcome]:
    """Ask for something of this job, such as `ask("job.priority", priority=5)`."""
    return ask(at, verb, job=job, **how)


def cancel(at: Moment, job: str, /, **how: Any) -> Flow[Outcome]:
    """Cancel it; if it runs, its gang leaves."""
    return ask(at, "job.cancel", job=job, **how)


def hold(at: Moment, job: str, /, **how: Any) -> Flow[Outcome]:
    """Keep it from running until it is released."""
    return ask(at, "job.hold", job=job, **how)


def release(at: Moment, job: str, /, **how: Any) -> Flow[Outcome]:
    """Let it run again."""
    return ask(at, "job.release", job=job, **how)


def submit(
    at: Moment, job: Job, *, reason: str = "", key: str | None = None, wait: float = 5.0
) -> Flow[str]:
    """Submit a job; give its id.

    With a key of your own it is submitted once, however often you try.

    Raises:
        Refused: the scheduler refused it.
        Conflict: with this key something else was asked for before.
        Problem: the gateway refused it.
    """
    name = job.named(key)
    spec = job.spec(name, 0.0)
    if job.deadline is not None:
        length_s = seconds_of(job.deadline)
        spec["deadline_s"] = yield from _until(at, length_s, key, "spec", "deadline_s")
    yield from ask(at, "job.submit", spec=spec, reason=reason, key=key, wait=wait)
    return name


def _until(at: Moment, length_s: float, key: str | None, *field: str) -> Flow[float]:
    """Give the moment at which a length of time ends that counts from now.

    Where something was asked for with this key before, the length counts from then: else a request
    that is tried again would name another moment, and the gateway would take it for another one.

    Args:
        at: Of which the cell alone matters.
        length_s: So long from now.
        key: Of the request that will name the moment.
        field: Where the arguments of that request name it.
    """
    if key is not None:
        with contextlib.suppress(NotFound):
            before = yield from outcome(at, key)
            first: Any = before.args
            for name in field:
                first = first.get(name) if isinstance(first, dict) else None
            if (
                isinstance(first, (int, float))
                and abs(first - before.asked_s - length_s) <= _WITHIN_S
            ):
                return first
    return (yield from log_now_s(at)) + length_s
