"""When the turn of a waiting job comes: only the policy knows, and not every policy does."""

from collections.abc import Mapping

from scheduler.core.state import ClusterState
from scheduler.core.view import View
from scheduler.policies.interface import Queueing
from scheduler.policies.registry import make_policy


def keeps_order(line: str) -> bool:
    """Whether a policy serves waiting jobs in an order that it can name."""
    return _queueing(line) is not None


def _queueing(line: str) -> Queueing | None:
    try:
        policy = make_policy(line)
    except ValueError:  # it is not one of this release's
        return None
    return policy if isinstance(policy, Queueing) else None


def positions(state: ClusterState) -> Mapping[str, int]:
    """Give by job its place among those that wait for their turn, from 1.

    It is the order in which the policy would try to start them now. Empty where the policy keeps
    none: most set prices, shares or sizes of all jobs at once. A job that waits for something else,
    such as the end of a hold or of a pause, or a node in contact, has no place.
    """
    policy = _queueing(state.leader.policy)
    if policy is None:  # a snapshot of a large cell takes long
        return {}
    seen = View().snapshot(state)
    turns = policy.queue(seen) if seen.nodes.ids else []
    return {job: place for place, job in enumerate(turns, 1)}
