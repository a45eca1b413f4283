"""How long a gang that is told to leave is given to save its work.

A save that is cut off loses all since the last checkpoint, and where a job saves only as it leaves,
all that it ever did there: it would never end. So a save that is known to take longer than usual is
given longer, where no owner waits for the GPUs meanwhile.
"""

import math

from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState, Job

#: Saves take this many times as long as they are known to, at most.
_MARGIN = 1.5


def longest_s(settings: Settings, job: Job) -> float:
    """Give the most that the gang of a job is given; an order is given up after a while, too."""
    most_s = settings.command_ttl_s - settings.resend_s
    return max(settings.grace_s, min(_MARGIN * job.checkpoint_cost_s, most_s))


def grace_s(state: ClusterState, settings: Settings, job: Job) -> float:
    """Give what the gang of a job is given if it is told to leave now.

    On an owner's node that goes back it ends so long before the owner needs it that the node can be
    handed over, but the usual time is given in any case; on one that does not go back, as the owner
    may need it at any time, the usual time.
    """
    due_s = math.inf
    for name in (*job.allocation, *job.leaving):
        node = state.nodes[name]
        if state.pools[node.pool].kind != "training":
            due_s = min(due_s, state.now_s if node.due_s is None else node.due_s)
    left_s = due_s - state.now_s - settings.resend_s
    return max(settings.grace_s, min(longest_s(settings, job), left_s))
