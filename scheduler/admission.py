"""Whose nodes join which pool, with how many GPUs and how fast: as the operator listed them.

A birth says what an agent believes of itself. Jobs are placed by pool, kind, GPUs and speed, so
whoever may make these up is given any job: where pools are listed, a birth must fit its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from scheduler.core.state import ClusterState
from scheduler.speakers import Wrong
from schemas.events import NodeBorn, PoolKind


@dataclass(frozen=True, slots=True)
class PoolRule:
    """What a birth may say that names this pool."""

    name: str
    kind: PoolKind
    gpus_per_node: int  #: At most.
    speed_factor: float = 1.0
    agents: tuple[str, ...] = ("*",)  #: Names, in which `*` stands for anything.


def unlisted(rules: Sequence[PoolRule] | None, state: ClusterState, born: NodeBorn) -> Wrong | None:
    """Find what in a birth is not as the operator listed it.

    Args:
        rules: By pool what is allowed; None takes pools as their first births have them.
        state: A pool that is there keeps its kind in any case.
        born: The birth.
    """
    pool = state.pools.get(born.pool)
    if pool is not None and pool.kind != born.pool_kind:
        return "data.pool_kind", f"is {born.pool_kind}, but pool {born.pool} is {pool.kind}"
    if rules is None:
        return None
    rule = next((one for one in rules if one.name == born.pool), None)
    if rule is None:
        return "data.pool", f"{born.pool} is not listed; add it as [[scheduler.pool]]"
    listed = f"[[scheduler.pool]] {rule.name}"
    if not any(fnmatchcase(born.agent, pattern) for pattern in rule.agents):
        return "data.agent", f"{born.agent} is not among the agents of {listed}"
    if born.pool_kind != rule.kind:
        return "data.pool_kind", f"is {born.pool_kind}, but {listed} is {rule.kind}"
    if born.gpu_count > rule.gpus_per_node:
        allowed = f"{rule.gpus_per_node} on a node"
        return "data.gpu_count", f"is {born.gpu_count}, but {listed} has at most {allowed}"
    if born.speed_factor != rule.speed_factor:
        said = f"is {born.speed_factor:g}, but {listed} says {rule.speed_factor:g}"
        return "data.speed_factor", f"{said}; set one of the two"
    return None
