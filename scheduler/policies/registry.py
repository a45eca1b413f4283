"""Policies by name."""

from collections.abc import Callable, Mapping

from scheduler.policies.fifo import Fifo
from scheduler.policies.interface import Policy
from scheduler.policies.tide import Tide

#: Name -> what makes it with its default options.
POLICIES: Mapping[str, Callable[[], Policy]] = {"fifo": Fifo, "tide": Tide}


def make_policy(name: str) -> Policy:
    """Make a policy with its default options.

    Raises:
        ValueError: No policy has this name; the message lists those there are.
    """
    try:
        return POLICIES[name]()
    except KeyError:
        known = ", ".join(sorted(POLICIES))
        raise ValueError(f"policy {name!r} is not known; choose one of: {known}") from None
