"""When a job will end: the one place that says so, for `why` and for `jobs`."""

from dataclasses import dataclass

from rich.text import Text

from console.output import day_clock, duration
from scheduler.core.state import Job, declared_rate, expected_steps
from scheduler.core.transitions import TERMINAL, JobState


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be said of a job's end. Lengths in seconds, moments since the Unix epoch."""

    left_s: float | None  #: At the reported speed; None if none is reported.
    #: Without one: start and run at its best declared size, at least; None if it declared none.
    needs_s: float | None
    ends_s: float | None  #: About when it ends, or ended; of a job that waits, at the earliest.
    #: To spare before its deadline, negative if late; None without one, and of a job that goes on
    #: and declared no total.
    slack_s: float | None


def outlook(job: Job, now_s: float) -> Outlook:
    """Look ahead from `now_s`; what a job did since its last report is counted as done."""
    left_s = needs_s = None
    ends_s = job.end_s
    if job.state not in TERMINAL:
        samples = (expected_steps(job) - job.step) * job.samples_per_step
        if job.samples_per_s > 0:
            left_s = samples / job.samples_per_s
            if job.state is JobState.RUNNING:
                left_s = max(0.0, left_s - max(0.0, now_s - job.step_at_s))
            ends_s = now_s + left_s
        else:
            rates = (declared_rate(job, int(gpus)) for gpus, _ in job.rates if _allowed(job, gpus))
            best = 0.0 if _made_up(job) else max(rates, default=0.0)
            start_s = 0.0 if job.state is JobState.RUNNING else job.start_cost_s
            needs_s = start_s + samples / best if best > 0 else None
            ends_s = None if needs_s is None else now_s + needs_s
    slack_s = None
    if job.deadline_s is not None and (job.end_s is not None or job.total_steps is not None):
        slack_s = job.deadline_s - (now_s if ends_s is None else ends_s)
    return Outlook(left_s, needs_s, ends_s, slack_s)


def _made_up(job: Job) -> bool:
    """Whether the rates are those that a command gets which says none: one, for each GPU one."""
    return job.program is not None and all(rate == gpus for gpus, rate in job.rates)


def _allowed(job: Job, gpus: float) -> bool:
    return job.gpus_min <= gpus <= job.gpus_max


def ending(job: Job, now_s: float, origin_s: float) -> Text:
    """Say when an unfinished job ends, and whether that is in time."""
    found = outlook(job, now_s)
    text = Text()
    if found.left_s is not None and found.ends_s is not None:
        text.append(f" · {duration(found.left_s)} left at its speed")
        text.append(f", ends about {day_clock(found.ends_s, origin_s)}")
    elif found.needs_s is not None and found.slack_s is None:
        text.append(f" · needs at least {duration(found.needs_s)}")
    if job.deadline_s is None:
        return text
    text.append(f" · deadline {day_clock(job.deadline_s, origin_s)}")
    if job.deadline_s < now_s:
        return text.append(f", {duration(now_s - job.deadline_s)} ago", "red")
    if found.slack_s is None:
        return text.append(", not promised: it declared no total", "yellow")
    if found.left_s is not None:
        if found.slack_s < 0:
            return text.append(f", {duration(-found.slack_s)} too late at this speed", "red")
        return text.append(f", in time with {duration(found.slack_s)} to spare", "green")
    if found.slack_s >= 0:
        text.append(", can still be met", "green")
    else:
        text.append(", cannot be met any more", "red")
    if found.needs_s is not None:
        has = duration(job.deadline_s - now_s)
        text.append(f": needs at least {duration(found.needs_s)}, has {has}")
    return text
