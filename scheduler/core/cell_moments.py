"""Moments that people say by their clocks, in a cell whose time is ahead of the clock."""

from schemas.requests import Request

#: A cell whose time is ahead of the clock goes so much slower, until the clock is there.
SLOWER = 0.1
#: What of a request's arguments are moments.
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
    said = {name: getattr(request.args, name, None) for name in _MOMENTS}
    known = {name: at_s for name, at_s in said.items() if at_s is not None}
    if not ahead_s or not known:
        return request
    moved = {name: cell_moment(at_s, now_s, ahead_s) for name, at_s in known.items()}
    return request.model_copy(update={"args": request.args.model_copy(update=moved)})
