"""Moments as options of verbs that read a log: of the calendar, or since the log began."""

import re
from datetime import UTC, datetime
from typing import NamedTuple

from console.output import fail
from explain.moments import midnight_of, seconds_of

#: As moments in simulated time are written.
_DAY_CLOCK = re.compile(r"d([0-9]{1,6}) ([01]?[0-9]|2[0-3]):([0-5][0-9])")


class When(NamedTuple):
    """A moment in one of three ways, or in none: then there is no limit."""

    at_s: float | None = None  #: In seconds since the Unix epoch.
    length_s: float | None = None  #: Since the log began.
    clock_s: float | None = None  #: Since the midnight before it began.

    def since(self, origin_s: float, default: float) -> float:
        """Give the moment in a log that began then, both in seconds since the Unix epoch."""
        if self.at_s is not None:
            return self.at_s
        if self.clock_s is not None:
            return midnight_of(origin_s) + self.clock_s
        return default if self.length_s is None else origin_s + self.length_s


def moment_or_length(option: str, text: str | None) -> When:
    """Read a moment, or a length since the log began; or neither.

    Ends the command if it is none.
    """
    if text is None:
        return When()
    if text in ("0", "0s", "0m", "0h", "0d"):  # no length of time; but a moment, the beginning
        return When(length_s=0.0)
    if shown := _DAY_CLOCK.fullmatch(text):
        day, hour, minute = map(int, shown.groups())
        return When(clock_s=day * 86_400.0 + hour * 3600.0 + minute * 60.0)
    try:
        return When(length_s=seconds_of(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"{option}: {text!r} is no moment; write seconds or 6h30m since the log's beginning, "
            "or a time such as 2026-01-05T06:30:00Z, or 'd0 06:30' as moments are shown."
        )
    return When((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
