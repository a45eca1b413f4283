"""Jobs that a branch adds: like one that the state has, under new names, submitted at the entry."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Cause
from schemas.events import JobSubmitted
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


def knowledge_like(known_later: Mapping[str, Job], new: str, like: Job) -> Job:
    """Give what is known of a job as that of another like it: its speed, and how long it was."""
    return replace(known_later.get(like.id, like), id=new)


def _submission(like: Job, name: str, now_s: float) -> JobSubmitted:
    fields = {
        "job": name,
        "tenant": like.tenant,
        "model": like.model,
        "gpus_min": like.gpus_min,
        "gpus_max": like.gpus_max,
        "gpus": like.gpus,
        "total_steps": like.total_steps,
        "samples_per_step": like.samples_per_step,
        "rates": [{"gpus": int(gpus), "samples_per_s": rate} for gpus, rate in like.rates],
        # It has as long as the other had.
        "deadline_s": None
        if like.deadline_s is None
        else now_s + max(0.0, like.deadline_s - like.submit_s),
        "memory_mib": like.memory_mib,
        "checkpoint_mib": like.checkpoint_mib,
        "checkpoint_cost_s": like.checkpoint_cost_s,
        "start_cost_s": like.start_cost_s,
        "priority": like.priority,
        "edge_allowed": like.edge_allowed,
        "program": like.program,
    }
    return JobSubmitted.model_validate(fields)
