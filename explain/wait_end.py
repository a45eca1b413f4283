"""When a wait may end because other jobs end: an estimate, from their progress and nothing else.

A policy decides anew at each change, so it is never more than that: others may come first, shrink,
be moved or fail.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from explain.answer import Answer
from explain.progress import outlook
from explain.wording import joined
from scheduler.core.state import Job
from scheduler.core.transitions import JobState
from scheduler.policies.interface import Reason

#: Needs of GPUs that are there as soon as enough of who has them has ended. Not `gpus`, which is of
#: a market: what becomes free there goes to whom it is worth most.
_OF_GPUS = ("gpus_above_base", "free_gpus", "quota_gpus")


@dataclass(frozen=True, slots=True)
class WaitEnd:
    """When enough GPUs are free, about, and whose end makes them so."""

    at_s: float
    jobs: tuple[str, ...]
    guessed: bool  #: One of them declared no total of steps.

    def words(self, at: str) -> str:
        """Say it, the moment as it is written."""
        ended, so = ("has ended", "it runs") if len(self.jobs) == 1 else ("have ended", "they run")
        by = ", by a guess of how long that is" if self.guessed else ""
        return (
            f"Estimate: there is enough about {at}, when {joined(self.jobs)} {ended}, as {so} "
            f"now{by}; if nobody else has it first"
        )


def end_of(job: Job, now_s: float) -> float | None:
    """Give about when a job ends as it runs now.

    None: it does not run, it should have ended by now, or nobody knows.
    """
    left_s = outlook(job, now_s).left_s if job.state is JobState.RUNNING else None
    return now_s + left_s if left_s else None


def wait_end(job: Job, reason: Reason, jobs: Mapping[str, Job], now_s: float) -> WaitEnd | None:
    """Say when a waiting job's GPUs may be free; None where that cannot be said truly.

    Args:
        job: Who waits.
        reason: Why, with who has what it wants and how much is missing.
        jobs: The cell's.
        now_s: The moment of the state.
    """
    needs = [need for need in reason.needs if need.name in _OF_GPUS and need.want > need.have]
    if job.state is not JobState.QUEUED or job.target is not None or len(reason.needs) != 1:
        return None
    rivals = [jobs[name] for name in reason.lost_to if name in jobs]
    if not needs or len({rival.pool for rival in rivals if rival.size}) != 1:
        return None  # which of several pools is short of them is not said
    missing, found = needs[0].want - needs[0].have, list[tuple[float, Job]]()
    for rival in rivals:
        if (end_s := end_of(rival, now_s)) is not None:
            found.append((end_s, rival))
    ended: list[tuple[float, Job]] = []
    for end_s, rival in sorted(found, key=lambda one: one[0]):
        ended.append((end_s, rival))
        missing -= rival.size
        if missing <= 0:
            guessed = any(one.total_steps is None for _, one in ended)
            return WaitEnd(end_s, tuple(one.id for _, one in ended), guessed)
    return None


def wait_end_of(answer: Answer) -> WaitEnd | None:
    """Say when the job of an answer may have its GPUs, if it waits and that can be said."""
    job, given = answer.job, answer.given
    if job is None or given is None or given.reason.verb != "waits":
        return None
    return wait_end(job, given.reason, answer.reading.state.jobs, answer.now_s)
