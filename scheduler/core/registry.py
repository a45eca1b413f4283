"""Where folds are registered by the kind of fact, and the look-ups that they share."""

from collections.abc import Callable
from typing import Any

from scheduler.core.facts import FACTS, Allocation
from scheduler.core.state import ClusterState, Job, Node
from scheduler.core.transitions import HOLDING, JOB, InvalidTransition, step

Fold = Callable[[ClusterState, Any], None]
FOLDS: dict[type[Any], Fold] = {}
#: What facts of a kind name: of job, node and command, those that it has a field for.
NAMES = {
    kind: tuple(name for name in ("job", "node", "command") if name in kind.__dataclass_fields__)
    for kind in FACTS.values()
}


def folds(kind: type[Any]) -> Callable[[Fold], Fold]:
    """Register the fold of one kind of fact."""

    def register(fold: Fold) -> Fold:
        FOLDS[kind] = fold
        return fold

    return register


def job_of(state: ClusterState, fact: Any) -> Job:
    """Give the job that the fact is about, or raise `InvalidTransition`."""
    job = state.jobs.get(fact.job)
    if job is None:
        raise InvalidTransition(fact.job, "unknown", type(fact).__name__)
    return job


def node_of(state: ClusterState, fact: Any) -> Node:
    """Give the node that the fact is about, or raise `InvalidTransition`."""
    node = state.nodes.get(fact.node)
    if node is None:
        raise InvalidTransition(fact.node, "unknown", type(fact).__name__)
    return node


def check_holding(job: Job, fact: Any) -> None:
    """Refuse a fact about a gang of a job that has none."""
    if job.state not in HOLDING:
        raise InvalidTransition(job.id, job.state, type(fact).__name__)


def check_gone(state: ClusterState, fact: Any) -> None:
    """Refuse a fact that says that the job is off its GPUs while it is not."""
    job = job_of(state, fact)
    if job.allocation or job.leaving:
        raise InvalidTransition(job.id, "on GPUs", type(fact).__name__)


def check_gpus(node: Node, gpus: list[int], fact: Any) -> None:
    """Refuse a fact about GPUs that the node does not have."""
    if gpus and not 0 <= min(gpus) <= max(gpus) < node.gpu_count:
        raise InvalidTransition(node.id, f"of {node.gpu_count} GPUs", type(fact).__name__)


def check_placement(state: ClusterState, job: Job, allocation: Allocation, fact: Any) -> None:
    """Refuse a fact that gives a job no GPUs, unknown ones, or ones claimed by another job."""
    kind, allowed = type(fact).__name__, (None, job.id)
    if not any(allocation.values()):
        raise InvalidTransition(job.id, "given no GPU", kind)
    for name, gpus in allocation.items():
        node = state.nodes.get(name)
        if node is None:
            raise InvalidTransition(job.id, f"given unknown node {name}", kind)
        check_gpus(node, gpus, fact)
        claim = node.claim
        for gpu in gpus:
            if claim[gpu] not in allowed and gpu not in job.allocation.get(name, ()):
                raise InvalidTransition(job.id, f"{name}/{gpu} is claimed", kind)


def check_allocation(state: ClusterState, job: Job, fact: Any) -> None:
    """Refuse an allocation of GPUs that others hold, or with an epoch that was used."""
    kind, allowed = type(fact).__name__, (None, job.id)
    if fact.epoch <= job.epoch:
        raise InvalidTransition(job.id, f"at epoch {job.epoch}", kind)
    check_placement(state, job, fact.allocation, fact)
    for name, gpus in fact.allocation.items():
        holder = state.nodes[name].holder
        for gpu in gpus:
            if holder[gpu] not in allowed:
                raise InvalidTransition(job.id, f"{name}/{gpu} is held", kind)


def move(state: ClusterState, fact: Any) -> Job:
    """Move the job's life cycle by the fact."""
    job = job_of(state, fact)
    job.state = step(JOB, job.id, job.state, type(fact).__name__)
    return job


def lift(
    state: ClusterState, standing: dict[Any, Any], name: str, fact: Any, otherwise: str
) -> None:
    """End what a request left standing by this name; refuse the fact if nothing stands there."""
    if name not in standing:
        raise InvalidTransition(name or "every lender", otherwise, type(fact).__name__)
    del standing[name]
    state.dirty = True


def settled(state: ClusterState, job: Job) -> None:
    """Note that a gang is done with a change, or with a part of it.

    A policy should see that if it was asked in between, when the job had to be left alone. If it
    was not, all is as its last plan wanted it.
    """
    if state.cycle_number > job.ordered_number:
        state.dirty = True
