"""Moments and lengths of time: as people write them, in every place that shows any."""

from datetime import UTC, datetime

#: Midnight of the day on which every demo's simulated time begins: 2026-01-05T00:00:00Z.
DEMO_START_S = 1_767_571_200.0
_DAY_S = 86_400.0
_YEAR_S = 365 * _DAY_S
_EARLY_S = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_FAR_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def is_demo(origin_s: float) -> bool:
    """Tell whether a log that began then is a demo's, by the day that they all begin on."""
    return DEMO_START_S <= origin_s < DEMO_START_S + _DAY_S


def is_simulated(origin_s: float) -> bool:
    """Tell whether a log that began then is a demo's, or a simulation's: those begin in 1970."""
    return origin_s < _YEAR_S or is_demo(origin_s)


def midnight_of(origin_s: float) -> float:
    """Give when day 0 of a log begins, which began at `origin_s`."""
    return origin_s - origin_s % _DAY_S


def day_clock(at_s: float | None, origin_s: float) -> str:
    """Write a moment of a log that began at `origin_s`, in UTC: `2026-11-21 06:30`.

    In a demo's simulated time a date means nothing: there it is `d0 06:30`, where day 0 is the
    one that `origin_s` is in. Both are seconds since the Unix epoch. A job may say that it takes so
    many steps that no calendar has the moment of its end, and a policy of one's own any figure.
    """
    if at_s is None or at_s != at_s:
        return "–"
    if at_s < _EARLY_S:
        return "before year 1"
    if at_s >= _FAR_S:
        return "beyond year 9999"
    if not is_simulated(origin_s):
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")
    day, rest_s = divmod(at_s - midnight_of(origin_s), _DAY_S)
    return f"d{int(day)} {int(rest_s // 3600):02d}:{int(rest_s % 3600 // 60):02d}"


def duration(seconds: float | None) -> str:
    """Write a length of time with its two largest units: `1 h 12 min`, `45 s`, `0.4 s`."""
    if seconds is None or seconds != seconds:
        return "–"
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds == float("inf"):
        return "for ever"
    if seconds < 10 and seconds != round(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit_s, unit, lesser_s, lesser in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        # Rounded to the lesser unit first, so that 59.9 min is 1 h.
        rounded = (whole + lesser_s // 2) // lesser_s * lesser_s
        if rounded >= unit_s:
            first, rest = divmod(rounded, unit_s)
            second = rest // lesser_s
            return f"{first} {unit} {second} {lesser}" if second else f"{first} {unit}"
    return f"{whole} s"


def seconds_of(text: str) -> float:
    """Read a length of time: `90`, `90s`, `45m`, `2h`, `1h30m`, `1.5d`.

    Raises:
        ValueError: It is none, or not above 0.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY_S}
    total_s, number = 0.0, ""
    for letter in text.strip().lower():
        if letter.isascii() and (letter.isdigit() or letter == "."):
            number += letter
        elif letter in units and number:
            total_s += float(number) * units[letter]
            number = ""
        else:
            raise ValueError(f"{text!r} is no length of time")
    if number:
        total_s += float(number)
    if not 0 < total_s <= 315_360_000:
        raise ValueError(f"{text!r} is not between 1 s and ten years")
    return total_s
