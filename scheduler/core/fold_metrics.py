"""The fold of what jobs report of themselves: the newest values, for people alone."""

from scheduler.core import facts
from scheduler.core.registry import check_holding, folds, job_of
from scheduler.core.state import ClusterState
from schemas.values import MAX_METRICS


@folds(facts.JobMeasured)
def _job_measured(state: ClusterState, fact: facts.JobMeasured) -> None:
    job = job_of(state, fact)
    check_holding(job, fact)
    before = job.metrics or {}
    # Of too many names those of the newest report stay. In their order, since a state that was read
    # back knows no other.
    room = MAX_METRICS - len(fact.metrics)
    older = [name for name in sorted(before) if name not in fact.metrics][:room]
    found = {**{name: before[name] for name in older}, **fact.metrics}
    job.metrics = {name: found[name] for name in sorted(found)}
