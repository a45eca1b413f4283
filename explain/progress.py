"""How far a job came and what that is known from, how fast it is, and when it will end."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from explain.moments import day_clock, duration
from explain.shares import percent as written
from explain.wording import Tone
from explain.work import Work
from scheduler.core.job_work import declared_rate, expected_steps
from scheduler.core.state import Job, Node
from scheduler.core.transitions import TERMINAL, JobState

#: What a running job is shown as at most: it is done only when it reports so.
_NEARLY = 0.99


def steps_now(job: Job, now_s: float) -> float:
    """Give the steps that it took by now: what it did since its last report counts as done."""
    quiet_s = max(0.0, now_s - job.step_at_s) if job.state is JobState.RUNNING else 0.0
    return job.step + quiet_s * job.samples_per_s / job.samples_per_step


def share_done(job: Job, now_s: float) -> float:
    """Give the part of its steps that it took; a guess if it declared no total."""
    if job.state is JobState.COMPLETED:
        return 1.0
    done = job.step / expected_steps(job)
    return max(done, min(steps_now(job, now_s) / expected_steps(job), _NEARLY))


def percent(job: Job, now_s: float) -> str:
    """Say that part, and whether it is a guess."""
    guess = job.total_steps is None and job.state is not JobState.COMPLETED
    return f"{'~' if guess else ''}{written(share_done(job, now_s))}"


@dataclass(frozen=True, slots=True)
class Length:
    """How many steps a job has in all, and what that is known from."""

    steps: float
    #: `declared`, `kin` (jobs like it that took more steps than it did so far, or run and are
    #: further), or `itself` (its own steps so far).
    known_from: Literal["declared", "kin", "itself"]
    kin_ended: int
    kin_took: Sequence[float]  #: The fewest and the most steps of those, if there are any.
    kin_running: int


def length_of(job: Job) -> Length:
    """Give what is known of its length."""
    length = job.length or {"ended": 0, "took": [], "running": 0}
    ended, running = length["ended"], length["running"]
    known_from: Literal["declared", "kin", "itself"] = "kin" if ended or running else "itself"
    if job.total_steps is not None:
        known_from = "declared"
    return Length(expected_steps(job), known_from, ended, length["took"], running)


def length_line(job: Job) -> str:
    """Say the same in a line."""
    known, work = length_of(job), Work(job.samples_per_step)
    steps = work.amount(known.steps)
    if known.known_from == "declared":
        return f"Length: {steps}, as declared."
    if known.kin_ended:
        low, high = map(work.count, known.kin_took)
        took = low if low == high else f"{low} to {high}"
        kin = f"{known.kin_ended} of its kin that went further took {took}"
    elif known.kin_running:
        kin = f"{known.kin_running} of its kin run, and are further"
    else:
        kin = "it has no kin that came as far"
    return f"Length: some {steps}, not declared: {kin}."


@dataclass(frozen=True, slots=True)
class Point:
    """How fast a job is on so many GPUs; steps are those of the declared batch."""

    gpus: int
    steps_per_s: float
    samples_per_s: float
    measured: bool
    age_s: float | None  #: How long ago; None: it was not measured, or nobody noted when.


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast a job is at each size, as far as that was learned of it."""

    learned_s: float | None  #: When, in seconds since the Unix epoch.
    points: tuple[Point, ...]
    #: By other pool: how many times as fast as `points` it was measured there.
    affinity: Mapping[str, float]
    #: The pool whose GPUs the points are of; None: GPUs of `speed_factor` 1.
    pool: str | None = None


def speeds_of(job: Job, nodes: Mapping[str, Node], now_s: float) -> Speeds | None:
    """Give its speeds on the GPUs that it runs on; None: nothing is known but what was declared.

    Of a job that waits they are on GPUs of speed 1, as the estimator has them. `nodes` are the
    cell's, by name.
    """
    curve = job.curve
    if curve is None:
        return None
    pool, here = job.pool if job.allocation else None, 1.0
    if pool is not None:
        here = curve["affinity"].get(pool) or min(nodes[n].speed_factor for n in job.allocation)
    at_s = dict(zip(curve["measured"], curve.get("at_s", ()), strict=False))
    if job.size in at_s and job.rate_at_s is not None:  # it goes on being confirmed
        at_s[job.size] = max(at_s[job.size], job.rate_at_s)
    points = tuple(
        Point(
            gpus=int(size),
            steps_per_s=here * work / curve["per_step"],
            samples_per_s=here * work / curve["per_step"] * job.samples_per_step,
            measured=int(size) in curve["measured"],
            age_s=max(0.0, now_s - at_s[int(size)]) if int(size) in at_s else None,
        )
        for size, work in curve["points"]
    )
    others = {name: speed / here for name, speed in curve["affinity"].items() if name != pool}
    return Speeds(job.curve_at_s, points, others, pool)


class Piece(NamedTuple):
    """A piece of a sentence, and how it sounds."""

    text: str
    tone: Tone | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be said of a job's end. Lengths in seconds, moments since the Unix epoch."""

    left_s: float | None  #: At the reported speed; None if none is reported.
    #: Without one: start and run at its best declared size, at least; None if it declared none.
    needs_s: float | None
    ends_s: float | None  #: About when it ends, or ended; of a job that waits, at the earliest.
    #: To spare before its deadline, negative if late; None without one, of a job that goes on and
    #: declared no total, and of one that ended without being done.
    slack_s: float | None


def outlook(job: Job, now_s: float) -> Outlook:
    """Look ahead from `now_s`; what a job did since its last report is counted as done."""
    left_s = needs_s = None
    ends_s = job.end_s
    # No step beyond those declared is counted: its own program alone says when it ends.
    if job.state not in TERMINAL and not _beyond(job):
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
    gave_up = job.state in TERMINAL and job.state is not JobState.COMPLETED
    known = not gave_up and (job.end_s is not None or job.total_steps is not None)
    if job.deadline_s is not None and known:
        slack_s = job.deadline_s - (now_s if ends_s is None else ends_s)
    return Outlook(left_s, needs_s, ends_s, slack_s)


def _beyond(job: Job) -> bool:
    """Whether it runs on though it did all the steps that it declared."""
    return job.state is JobState.RUNNING and job.step >= (job.total_steps or math.inf)


def _made_up(job: Job) -> bool:
    """Whether the rates are those that a command gets which says none: one, for each GPU one."""
    return job.program is not None and all(rate == gpus for gpus, rate in job.rates)


def _allowed(job: Job, gpus: float) -> bool:
    return job.gpus_min <= gpus <= job.gpus_max


def ending(job: Job, now_s: float, origin_s: float) -> Iterator[Piece]:
    """Say when an unfinished job ends, and whether that is in time."""
    found = outlook(job, now_s)
    beyond = _beyond(job)
    if beyond:
        yield Piece(" · all the steps that it declared are done, and it has not ended", "change")
    elif found.left_s is not None and found.ends_s is not None:
        yield Piece(f" · {duration(found.left_s)} left at its speed")
        yield Piece(f", ends about {day_clock(found.ends_s, origin_s)}")
    elif found.needs_s is not None and found.slack_s is None:
        yield Piece(f" · needs at least {duration(found.needs_s)}")
    if job.deadline_s is None:
        return
    yield Piece(f" · deadline {day_clock(job.deadline_s, origin_s)}")
    if job.deadline_s < now_s:
        yield Piece(f", {duration(now_s - job.deadline_s)} ago", "bad")
    elif beyond:
        return
    elif found.slack_s is None:
        yield Piece(", not promised: it declared no total", "change")
    elif found.left_s is not None and found.slack_s < 0:
        yield Piece(f", {duration(-found.slack_s)} too late at this speed", "bad")
    elif found.left_s is not None:
        yield Piece(f", in time with {duration(found.slack_s)} to spare", "good")
    else:
        if found.slack_s >= 0:
            yield Piece(", can still be met", "good")
        else:
            yield Piece(", cannot be met any more", "bad")
        if found.needs_s is not None:
            has = duration(job.deadline_s - now_s)
            yield Piece(f": needs at least {duration(found.needs_s)}, has {has}")
