"""The jobs that come during a branch: those of the log, and those that the branch adds.

The name of a job that is over may be given again once it is forgotten. So what the log knows of a
job goes by its name and by when it was submitted.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Cause, Requested, Stimulus
from schemas.events import JobSubmitted
from schemas.requests import SubmitJob
from simulator.branch.origin import Lives, Origin
from simulator.branch.recorded_gangs import Arrival

#: A name of an added job is cut to so many characters before its number is added.
_NAME_MOST = 110


def arrivals_of(
    state: ClusterState, origin: Origin, more: Collection[tuple[str, int]]
) -> tuple[list[Arrival], Lives, list[Stimulus]]:
    """Give what comes, in order, what is known of it, and the rest of what comes from outside.

    Args:
        state: At the entry.
        origin: What the log has.
        more: Jobs of the state, and how many like each are added.
    """
    known, named = dict(origin.record.jobs), set(state.jobs)
    found, rest, lives = list[Arrival](), list[Stimulus](), set[tuple[str, float]]()
    for one in origin.future:
        said = _submission(one)
        life = None if said is None else (said.job, one.at_s)
        if said is None or life in lives or (life not in known and said.job in named):
            rest.append(one)  # of a job, what says again what was said
            continue
        named.add(said.job)
        lives.add((said.job, one.at_s))
        found.append((one.at_s, said, one.data, one.cause))
    taken = named | {name for name, _ in known}
    added: list[tuple[Arrival, Job]] = list(_submissions_like(state, more, taken))
    for (at_s, said, _, _), like in added:
        known[said.job, at_s] = _knowledge_like(known, said.job, like)
    return [*(one for one, _ in added), *found], known, rest


def _submission(one: Stimulus) -> JobSubmitted | None:
    if isinstance(one.data, JobSubmitted):
        return one.data
    if isinstance(one.data, Requested) and isinstance(one.data.request.args, SubmitJob):
        return one.data.request.args.spec
    return None


def _submissions_like(
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
            said = _copied(like, new, state.now_s)
            cause = Cause(f"/tenants/{like.tenant}", 0, number, state.now_s)
            yield (state.now_s, said, said, cause), like


def _knowledge_like(known_later: Lives, new: str, like: Job) -> Job:
    """Give what is known of a job as that of another like it: its speed, and how long it was."""
    return replace(known_later.get((like.id, like.submit_s), like), id=new)


def _copied(like: Job, name: str, now_s: float) -> JobSubmitted:
    alike = JobSubmitted.model_fields.keys() - {"job", "rates"}
    fields = {field: getattr(like, field) for field in alike}
    if like.deadline_s is not None:
        # It has as long as the other had.
        fields["deadline_s"] = now_s + max(0.0, like.deadline_s - like.submit_s)
    rates = [{"gpus": int(gpus), "samples_per_s": rate} for gpus, rate in like.rates]
    return JobSubmitted.model_validate(fields | {"job": name, "rates": rates})
