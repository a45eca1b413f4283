"""Jobs that a branch adds: like one that the state has, under new names, submitted at the entry."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Cause
from schemas.events import JobSubmitted
from simulator.branch.origin import Lives
from simulator.branch.recorded_gangs import Arrival

#: A name is cut to so many characters before its number is added.
_NAME_MOST = 110


def submissions_like(
    state: ClusterState, wanted: Collection[tuple[str, int]], taken: Collection[str]
) -> Iterator[tuple[Arrival, Job]]:
    """Give the submissions, each with the job that it is like.

    Args:
        state: At the entry.
        wanted: Jobs of the state, and how many like each.
        taken: Names that jobs of the log have; of the state or to come.
    """
    number = 0
    for name, count in wanted:
        like = state.jobs[name]
        for _ in range(count):
            number += 1
            while (new := f"{name[:_NAME_MOST]}-like-{number}") in taken:
                number += 1
            said = _submission(like, new, state.now_s)
            cause = Cause(f"/tenants/{like.tenant}", 0, number, state.now_s)
            yield (state.now_s, said, said, cause), like


def knowledge_like(known_later: Lives, new: str, like: Job) -> Job:
    """Give what is known of a job as that of another like it: its speed, and how long it was."""
    return replace(known_later.get((like.id, like.submit_s), like), id=new)


def _submission(like: Job, name: str, now_s: float) -> JobSubmitted:
    alike = JobSubmitted.model_fields.keys() - {"job", "rates"}
    fields = {field: getattr(like, field) for field in alike}
    if like.deadline_s is not None:
        # It has as long as the other had.
        fields["deadline_s"] = now_s + max(0.0, like.deadline_s - like.submit_s)
    rates = [{"gpus": int(gpus), "samples_per_s": rate} for gpus, rate in like.rates]
    return JobSubmitted.model_validate(fields | {"job": name, "rates": rates})
