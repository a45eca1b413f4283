"""The spans of a job's life: when it waited and why, and where it ran."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from explain.answer import Answer
from explain.moments import day_clock, duration
from explain.story import Given, Story
from explain.wording import Wording, joined
from scheduler.core.transitions import TERMINAL
from scheduler.policies.interface import Reason

#: The longest waits that are shown; what is shorter than a minute explains nothing.
_SHOWN = 3
_SHORTEST_S = 60.0
_WAIT_BEGINS = ("JobAccepted", "JobQueued", "JobMigrating")
_WAIT_ENDS = ("GangStarting", "JobCompleted", "JobFailed", "JobCancelled")
_STAY_ENDS = ("JobQueued", "JobMigrating", "JobCompleted", "JobFailed", "JobCancelled")


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
        if event.kind in _WAIT_BEGINS and begin_s is None:
            begin_s = event.at_s
        elif event.kind in _WAIT_ENDS and begin_s is not None:
            reason = _longest(story.reasons, begin_s, event.at_s)
            found.append(Wait(begin_s, event.at_s, reason))
            begin_s = None
    return found


def _longest(reasons: list[Given], begin_s: float, end_s: float) -> Reason | None:
    """Each reason holds until the next; the rule that held longest gives its newest reason."""
    held: dict[str, float] = {}
    newest: dict[str, Reason] = {}
    ends = [*(given.at_s for given in reasons[1:]), end_s]
    for given, until_s in zip(reasons, ends, strict=False):
        if given.reason.verb == "waits" and given.at_s < end_s and until_s > begin_s:
            rule = given.reason.rule
            length_s = min(until_s, end_s) - max(given.at_s, begin_s)
            held[rule] = held.get(rule, 0.0) + length_s
            newest[rule] = given.reason
    if not held:
        return None
    return newest[max(sorted(held), key=lambda rule: held[rule])]


def longest(story: Story) -> list[Wait]:
    """Give the longest waits, in the order of time."""
    long = [wait for wait in waits(story) if wait.length_s >= _SHORTEST_S]
    long.sort(key=lambda wait: (-wait.length_s, wait.begin_s))
    return sorted(long[:_SHOWN], key=lambda wait: wait.begin_s)


def missed(answer: Answer) -> bool:
    """Tell whether the job was completed after its deadline."""
    deadline_s = answer.spec.get("deadline_s")
    return answer.state == "completed" and deadline_s is not None and deadline_s < answer.since_s


def ended(answer: Answer) -> str | None:
    """Say when a job ended, how long it took, and whether that was in time; None: it goes on."""
    if answer.job is not None and answer.job.state not in TERMINAL:
        return None
    accepted = answer.story.last("JobAccepted")
    said = f"at {day_clock(answer.since_s, answer.reading.origin_s)}"
    if accepted is not None:
        said += f", {duration(answer.since_s - accepted.at_s)} after it was submitted"
    deadline_s = answer.spec.get("deadline_s")
    if deadline_s is not None and answer.state == "completed":
        spare_s = deadline_s - answer.since_s
        said += f"; deadline {'met' if spare_s >= 0 else 'missed'} by {duration(abs(spare_s))}"
    return said


def missed_because(answer: Answer) -> str | None:
    """Say where the time went that the job had until its deadline; None: nobody knows any more."""
    accepted = answer.story.last("JobAccepted")
    if accepted is None:
        return None
    had_s = answer.spec["deadline_s"] - accepted.at_s
    total_s = sum(wait.length_s for wait in waits(answer.story))
    took_s = answer.since_s - accepted.at_s
    said = f"It had {duration(had_s)} and took {duration(took_s)}: {duration(total_s)} without GPUs"
    return f"{said}, {duration(took_s - total_s)} with them."


def because(wait: Wait, wording: Wording) -> str:
    """Say why it waited, and who was ahead of it."""
    if wait.reason is None:
        return "no reason was recorded; it was given GPUs at the next cycle, or between two pools"
    said = wording.sentence(wait.reason)
    rivals = [name for name in wait.reason.lost_to if name not in said]
    return f"{said} (ahead of it: {joined(rivals)})" if rivals else said


@dataclass(frozen=True, slots=True)
class Stay:
    """A stretch of time on the same GPUs. Moments in seconds since the Unix epoch."""

    since_s: float
    until_s: float | None  #: None: it is there still.
    pool: str
    nodes: tuple[str, ...]
    gpus: int
    #: How it came there: started, migrated, scaled.
    how: str
    step: int | None  #: That it began from, if it was started.


def stays_of(story: Story) -> Iterator[Stay]:
    """Give the stretches of a job's life on GPUs, in order; empty ones are left out."""
    open_: dict[str, Any] | None = None
    migrated = False

    def closed(until_s: float | None) -> Iterator[Stay]:
        if open_ is not None and (until_s is None or until_s > open_["since_s"]):
            yield Stay(until_s=until_s, **open_)

    for one in story.events:
        if one.kind == "GangStarting":
            yield from closed(one.at_s)
            how = "migrated" if migrated else "started"
            pool, step = one.fields["pool"], one.fields["step"]
        elif one.kind == "GangScaling" and open_ is not None:
            yield from closed(one.at_s)
            how, pool, step = "scaled", open_["pool"], None
        elif one.kind in _STAY_ENDS:
            yield from closed(one.at_s)
            open_, migrated = None, one.kind == "JobMigrating"
            continue
        else:
            continue
        allocation = one.fields["allocation"]
        open_ = {
            "since_s": one.at_s,
            "pool": pool,
            "nodes": tuple(sorted(allocation)),
            "gpus": sum(map(len, allocation.values())),
            "how": how,
            "step": step,
        }
    yield from closed(None)
