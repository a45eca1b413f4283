"""Which nodes may join which pool, with how many GPUs and how fast: as the operator listed them.

A birth says what an agent believes of itself. Jobs are placed by pool, kind, GPUs and speed, so
whoever may make these up is given any job: where pools are listed, a birth must fit its own, or
what an operator accepted of this node or agent since (`tidegate node accept`).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from scheduler.core.standing import Accepted
from scheduler.core.state import ClusterState
from scheduler.core.transitions import NodeState
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
    if (wrong := _owners_name(rules or (), state, born)) is not None:
        return wrong
    if rules is None:
        return None
    wrong = _beyond_list(rules, born)
    if wrong is None:
        return None
    for name in dict.fromkeys((born.node, born.agent)):
        accepted = state.standing.accepted.get(name)
        if accepted is None or accepted.node not in (None, born.node):
            continue
        if (other := _beyond_accepted(name, accepted, born)) is None:
            return None
        wrong = other
    return wrong[0], f"{wrong[1]}. If it is right: {command(born)}"


def as_joined(state: ClusterState, born: NodeBorn) -> NodeBorn | None:
    """Give the birth of a node that stays as it joined, though it would not be let in any more.

    Its agent is there and says what runs on it. Without that word the node would count as one that
    its agent has no more, and its gangs would be stopped.
    """
    node = state.nodes.get(born.node)
    if node is None or node.state is NodeState.DEAD:
        return None
    held = [
        gang.model_copy(update={"gpus": here})
        for gang in born.held
        if (here := [gpu for gpu in gang.gpus if gpu < node.gpu_count])
    ]
    known = {
        "pool": node.pool,
        "pool_kind": state.pools[node.pool].kind,
        "gpu_count": node.gpu_count,
        "gpu_type": node.gpu_type,
        "gpu_memory_mib": node.gpu_memory_mib,
        "speed_factor": node.speed_factor,
        "transfer_mib_per_s": node.transfer_mib_per_s,
        "held": held,
    }
    return born.model_copy(update=known)


def _owners_name(rules: Sequence[PoolRule], state: ClusterState, born: NodeBorn) -> Wrong | None:
    """Find an owner of the same name: one is named by its inference pool, or by its edge server."""
    if born.pool_kind == "edge":
        pools = {pool.id for pool in state.pools.values() if pool.kind == "inference"}
        pools.update(rule.name for rule in rules if rule.kind == "inference")
        if born.node in pools:
            return "data.node", f"{born.node} is an inference pool; give the server another name"
    elif born.pool_kind == "inference" and born.pool not in state.pools:
        node = state.nodes.get(born.pool)
        if node is not None and state.pools[node.pool].kind == "edge":
            return "data.pool", f"{born.pool} is an edge server; give the pool another name"
    return None


def command(born: NodeBorn) -> str:
    """Write what an operator types to accept a birth as it is."""
    words = ["tidegate", "node", "accept", born.node]
    if born.agent != born.node:
        words += ["--agent", born.agent]
    words += ["--pool", born.pool, "--kind", born.pool_kind, "--gpus", str(born.gpu_count)]
    if born.speed_factor != 1.0:
        words += ["--speed", repr(born.speed_factor)]
    return shlex.join(words)


def _beyond_list(rules: Sequence[PoolRule], born: NodeBorn) -> Wrong | None:
    rule = next((one for one in rules if one.name == born.pool), None)
    if rule is None:
        return "data.pool", f"{born.pool} is not listed as [[scheduler.pool]]"
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


def _beyond_accepted(name: str, accepted: Accepted, born: NodeBorn) -> Wrong | None:
    """Find what in a birth is not as it was accepted."""
    was = f"{name} was accepted"
    if born.agent != accepted.agent:
        return "data.agent", f"is {born.agent}, but {was} of agent {accepted.agent}"
    if born.pool != accepted.pool:
        return "data.pool", f"is {born.pool}, but {was} in {accepted.pool}"
    if born.pool_kind != accepted.pool_kind:
        return "data.pool_kind", f"is {born.pool_kind}, but {was} as {accepted.pool_kind}"
    if born.gpu_count > accepted.gpu_count:
        allowed = f"with at most {accepted.gpu_count}"
        return "data.gpu_count", f"is {born.gpu_count}, but {was} {allowed}"
    if born.speed_factor != accepted.speed_factor:
        return "data.speed_factor", (
            f"is {born.speed_factor:g}, but {was} with {accepted.speed_factor:g}"
        )
    return None
