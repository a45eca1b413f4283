"""Lenders: an edge server, an inference pool, or what one of several agents has in such a pool.

An agent says what its own servers need. Where several agents have nodes in an inference pool, each
of them is a lender of its own, named `POOL@AGENT` as its site is. One that is alone has the pool's
name. So when a second agent comes or goes, the first has another name from its next word on, and
what is remembered of it goes along (`LenderRenamed`).
"""

from collections.abc import Iterator

from scheduler.core.state import ClusterState, Lender, Node, site_id
from scheduler.core.transitions import NodeState

_AGENT_PREFIX = "/agents/"


def is_shared(state: ClusterState, pool: str) -> bool:
    """Whether several agents have nodes in a pool, but for those whose nodes are all dead."""
    known = state.pools.get(pool)
    first = None
    for name in known.nodes if known is not None else ():
        node = state.nodes[name]
        if node.state is NodeState.DEAD or node.agent == first:
            continue
        if first is not None:
            return True
        first = node.agent
    return False


def lender_id(state: ClusterState, pool: str, agent: str) -> str:
    """Name the lender that an agent is in an inference pool.

    One whose own nodes are all dead has not the pool's name while others are there: its late word
    would be taken for theirs.
    """
    known, mine, others = state.pools.get(pool), False, False
    for name in known.nodes if known is not None else ():
        node = state.nodes[name]
        if node.agent == agent:
            mine = True
        elif node.state is not NodeState.DEAD:
            others = True
        if mine and others:
            return site_id(pool, agent)
    return pool


def lender_of(state: ClusterState, node: Node) -> str:
    """Name the lender that a node is of."""
    if state.pools[node.pool].kind == "edge":
        return node.id
    return lender_id(state, node.pool, node.agent)


def known_as(state: ClusterState, lender: str, pool: str, agent: str) -> Lender | None:
    """Find what is known of an agent's part of an inference pool, by this name or that of before.

    Args:
        state: The state.
        lender: Its name now (`lender_id`).
        pool: The pool.
        agent: The agent.
    """
    own, whole = state.lenders.get(site_id(pool, agent)), state.lenders.get(pool)
    if own is not None:
        return own
    if whole is None or lender == pool or whole.source == _AGENT_PREFIX + agent:
        return whole
    return None


def known_of(state: ClusterState, node: Node) -> Lender | None:
    """Find what is known of the lender that a node is of."""
    if state.pools[node.pool].kind == "edge":
        return state.lenders.get(node.id)
    own = state.lenders.get(site_id(node.pool, node.agent))
    if own is not None:  # its name now need not be looked for among all nodes of the pool
        return own
    return known_as(state, lender_of(state, node), node.pool, node.agent)


def lenders_in(state: ClusterState, pool: str) -> Iterator[Lender]:
    """Give what is known of the lenders of a pool."""
    nodes = [state.nodes[name] for name in state.pools[pool].nodes]
    if state.pools[pool].kind == "edge":
        found = [state.lenders.get(node.id) for node in nodes]
    elif is_shared(state, pool):
        agents = dict.fromkeys(node.agent for node in nodes if node.state is not NodeState.DEAD)
        found = [known_as(state, site_id(pool, agent), pool, agent) for agent in agents]
    else:
        agent = next((node.agent for node in nodes if node.state is not NodeState.DEAD), "")
        found = [known_as(state, pool, pool, agent)]
    yield from (lender for lender in found if lender is not None)


def agent_of(source: str) -> str:
    """Name the agent that says something."""
    return source.removeprefix(_AGENT_PREFIX)
