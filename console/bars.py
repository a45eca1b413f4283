"""Bars of characters, told apart by shape as well as by colour."""

from collections.abc import Mapping, Sequence

from rich.text import Text

from explain.uses import USES, Use

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


#: Of each use, its mark and its style.
MARKS: Mapping[Use, tuple[str, str]] = {
    Use.TRAINING: ("█", "green"),
    Use.SERVING: ("▓", "blue"),
    Use.LENT: ("▒", "yellow"),
    Use.IDLE: ("░", "bright_black"),
    Use.LEAVING: ("▚", "magenta"),
    Use.SILENT: ("?", "red"),
    Use.OWNED: ("▓", "blue"),
}


def progress(share: float, width: int, style: str = "green") -> Text:
    """Draw how much of a whole is done."""
    share = min(max(share, 0.0), 1.0)
    eighths = int(share * width * 8)
    full, part = divmod(eighths, 8)
    done = "█" * full + (_EIGHTHS[part] if part else "")
    text = Text(done, style)
    text.append("·" * (width - len(done)), "bright_black")
    return text


def sparkline(values: Sequence[float | None], top: float) -> str:
    """Draw a row of heights from 0 to `top`; a space where nothing is known."""
    return "".join(
        " "
        if value is None
        else _LEVELS[min(7, max(0, int(value / top * 8 - 1e-9)))]
        if top > 0
        else _LEVELS[0]
        for value in values
    )


def bar(uses: dict[Use, int], width: int) -> Text:
    """Draw GPUs by use, one mark each, or shared out over `width` if they are more."""
    total = sum(uses.values())
    if total == 0:
        return Text("no GPUs", "dim")
    text = Text()
    shown = [*USES, *(use for use in uses if use not in USES)]
    for use, count in zip(shown, _shares([uses.get(use, 0) for use in shown], width), strict=True):
        mark, style = MARKS[use]
        text.append(mark * count, style)
    return text


def _shares(counts: list[int], width: int) -> list[int]:
    """Share out `width` marks by largest remainder; whoever has any gets one, if there is room."""
    total = sum(counts)
    if total <= width:
        return counts
    exact = [count * width / total for count in counts]
    marks = [max(int(share), count > 0) for share, count in zip(exact, counts, strict=True)]
    order = sorted(range(len(counts)), key=lambda i: (marks[i] - exact[i], i))
    for index in order:
        if sum(marks) < width and counts[index]:
            marks[index] += 1
    while sum(marks) > width:
        largest = max(range(len(marks)), key=lambda i: (marks[i], -i))
        marks[largest] -= 1
    return marks


def legend(uses: Sequence[Use] = USES) -> Text:
    """Say what the marks mean."""
    text = Text()
    for use in uses:
        mark, style = MARKS[use]
        text.append(f"{mark} ", style)
        text.append(f"{use}  ", "dim")
    return text
