"""Moments as options of verbs that read a log: of the calendar, or since the log began."""

from datetime import UTC, datetime

from console.output import fail
from explain.moments import seconds_of


def moment_or_length(option: str, text: str | None) -> tuple[float | None, float | None]:
    """Read a moment in seconds since the Unix epoch, or a length since the log began; or neither.

    Ends the command if it is none.
    """
    if text is None:
        return None, None
    if text in ("0", "0s", "0m", "0h", "0d"):  # no length of time; but a moment, the beginning
        return None, 0.0
    try:
        return None, seconds_of(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"{option}: {text!r} is no moment; write seconds or 6h30m since the log's beginning, "
            "or a time such as 2026-01-05T06:30:00Z."
        )
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), None
