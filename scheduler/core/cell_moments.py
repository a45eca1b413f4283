"""Moments that people say by their clocks, in a cell whose time is ahead of the clock."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel

from scheduler.core.stimuli import SubmittedAhead
from schemas.events import JobSubmitted
from schemas.requests import Request, SubmitJob

Data = TypeVar("Data", bound=BaseModel)
#: A cell whose time is ahead of the clock goes so much slower, until the clock is there.
SLOWER = 0.1
#: What of a request's arguments are moments, beside the deadline of a job.
_MOMENTS = ("by_s", "until_s")


def cell_moment(at_s: float, now_s: float, ahead_s: float) -> float:
    """Give what the time of the cell will be when a clock shows this moment.

    Args:
        at_s: The moment.
        now_s: The time of the cell now.
        ahead_s: How far that is ahead of the clock. It comes down until then.
    """
    left_s = max(0.0, at_s - (now_s - ahead_s))
    return at_s + max(0.0, ahead_s - SLOWER * left_s)


def in_cell_time(request: Request, now_s: float, ahead_s: float) -> Request:
    """Give a request with the moments of its arguments as the cell's time will have them.

    When it was asked and when it expires stay as they are: they are held to the clock.
    """
    if not ahead_s:
        return request
    args = _moved(request.args, _MOMENTS, now_s, ahead_s)
    if isinstance(args, SubmitJob):
        spec = submission_in_cell_time(args.spec, now_s, ahead_s)
        args = args.model_copy(update={"spec": spec})
    return request if args is request.args else request.model_copy(update={"args": args})


def submission_in_cell_time(spec: JobSubmitted, now_s: float, ahead_s: float) -> JobSubmitted:
    """Give a job with its deadline as the cell's time will have it."""
    said_s = spec.deadline_s
    if not ahead_s or said_s is None:
        return spec
    moved = {"deadline_s": cell_moment(said_s, now_s, ahead_s), "deadline_said_s": said_s}
    return SubmittedAhead.model_construct(**{**dict(spec), **moved})


def _moved(data: Data, names: Sequence[str], now_s: float, ahead_s: float) -> Data:
    """Give data with these of its moments moved; itself where it has none."""
    said = {name: getattr(data, name, None) for name in names}
    moved = {n: cell_moment(at_s, now_s, ahead_s) for n, at_s in said.items() if at_s is not None}
    return data.model_copy(update=moved) if moved else data
