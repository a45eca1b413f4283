"""When a job waited, and why: what explains a deadline that was missed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from console.answer import Answer
from console.output import day_clock, duration
from console.phrases import Voice, joined
from console.story import Given, Story
from scheduler.policies.interface import Reason

#: The longest waits that are shown; what is shorter than a minute explains nothing.
_SHOWN = 3
_SHORTEST_S = 60.0
_BEGINS = ("JobAccepted", "JobQueued", "JobMigrating")
_ENDS = ("GangStarting", "JobCompleted", "JobFailed", "JobCancelled")


@dataclass(frozen=True, slots=True)
class Wait:
    """A time without GPUs, in seconds since the Unix epoch, and the reason that held longest."""

    begin_s: float
    end_s: float
    reason: Reason | None

    @property
    def length_s(self) -> float:
        """How long it was."""
        return self.end_s - self.begin_s


def waits(story: Story) -> list[Wait]:
    """Give all waits of a job that are over, by the journal."""
    found: list[Wait] = []
    begin_s: float | None = None
    for event in story.events:
        if event.kind in _BEGINS and begin_s is None:
            begin_s = event.at_s
        elif event.kind in _ENDS and begin_s is not None:
            reason = _longest(story.reasons, begin_s, event.at_s)
            found.append(Wait(begin_s, event.at_s, reason))
            begin_s = None
    return found


def _longest(reasons: list[Given], begin_s: float, end_s: float) -> Reason | None:
    """Each reason holds until the next; the rule that held longest gives its newest reason."""
    held: dict[str, float] = {}
    newest: dict[str, Reason] = {}
    for given, until_s in _held(reasons, end_s):
        if given.reason.verb == "waits" and given.at_s < end_s and until_s > begin_s:
            rule = given.reason.rule
            length_s = min(until_s, end_s) - max(given.at_s, begin_s)
            held[rule] = held.get(rule, 0.0) + length_s
            newest[rule] = given.reason
    if not held:
        return None
    return newest[max(sorted(held), key=lambda rule: held[rule])]


def _held(reasons: list[Given], end_s: float) -> Iterator[tuple[Given, float]]:
    ends = [*(given.at_s for given in reasons[1:]), end_s]
    return zip(reasons, ends, strict=False)


def longest(story: Story) -> list[Wait]:
    """Give the longest waits, in the order of time."""
    long = [wait for wait in waits(story) if wait.length_s >= _SHORTEST_S]
    long.sort(key=lambda wait: (-wait.length_s, wait.begin_s))
    return sorted(long[:_SHOWN], key=lambda wait: wait.begin_s)


def missed(answer: Answer) -> bool:
    """Tell whether the job was completed after its deadline."""
    deadline_s = answer.spec.get("deadline_s")
    return answer.state == "completed" and deadline_s is not None and deadline_s < answer.since_s


def missed_because(answer: Answer, voice: Voice) -> list[RenderableType]:
    """Say where the time went that the job had until its deadline."""
    accepted = answer.story.last("JobAccepted")
    if accepted is None:
        return []
    had_s = answer.spec["deadline_s"] - accepted.at_s
    total_s = sum(wait.length_s for wait in waits(answer.story))
    took_s = answer.since_s - accepted.at_s
    said = f"It had {duration(had_s)} and took {duration(took_s)}: {duration(total_s)} without GPUs"
    parts: list[RenderableType] = [Text(f"{said}, {duration(took_s - total_s)} with them.")]
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, style="yellow")
    table.add_column()
    for wait in longest(answer.story):
        when = day_clock(wait.begin_s, voice.origin_s)
        table.add_row(when, f"waited {duration(wait.length_s)}", _because(wait, voice))
    return [*parts, table] if table.row_count else parts


def _because(wait: Wait, voice: Voice) -> str:
    if wait.reason is None:
        return "no reason was recorded; it was given GPUs at the next cycle, or between two pools"
    said = voice.sentence(wait.reason)
    rivals = [name for name in wait.reason.lost_to if name not in said]
    return f"{said} (ahead of it: {joined(rivals)})" if rivals else said


def wait_document(wait: Wait, voice: Voice) -> dict[str, Any]:
    """Give a wait as JSON types."""
    return {
        "begin_s": wait.begin_s,
        "end_s": wait.end_s,
        "rule": None if wait.reason is None else wait.reason.rule,
        "sentence": None if wait.reason is None else voice.sentence(wait.reason),
        "lost_to": [] if wait.reason is None else list(wait.reason.lost_to),
    }
