"""The jobs that come during a branch: those of the log, and those that the branch adds.

The name of a job that is over may be given again once it is forgotten. So what the log knows of a
job goes by its name and by when it was submitted.
"""

from collections.abc import Collection

from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Requested, Stimulus
from schemas.events import JobSubmitted
from schemas.requests import SubmitJob
from simulator.branch.added import knowledge_like, submissions_like
from simulator.branch.origin import Lives, Origin
from simulator.branch.recorded_gangs import Arrival


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
    added: list[tuple[Arrival, Job]] = list(submissions_like(state, more, taken))
    for (at_s, said, _, _), like in added:
        known[said.job, at_s] = knowledge_like(known, said.job, like)
    return [*(one for one, _ in added), *found], known, rest


def _submission(one: Stimulus) -> JobSubmitted | None:
    if isinstance(one.data, JobSubmitted):
        return one.data
    if isinstance(one.data, Requested) and isinstance(one.data.request.args, SubmitJob):
        return one.data.request.args.spec
    return None
