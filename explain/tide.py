"""The tide of a state, in GPUs: what owners need and have, what is on loan, what training uses."""

from dataclasses import dataclass

from scheduler.core.lenders import lenders_in
from scheduler.core.state import ClusterState
from scheduler.core.transitions import JobState, LoanState, NodeState

ON_LOAN = (LoanState.LENT, LoanState.RECLAIMING, LoanState.RETURNING)


@dataclass(frozen=True, slots=True)
class Tide:
    """What owners need and have, what is on loan and what training uses, in GPUs."""

    at_s: float
    need: float  #: What owners need by their newest reports.
    owned: int  #: Of their nodes in contact, GPUs that are theirs now.
    lent: int  #: On loan.
    unused: int  #: Of those on loan, without a job.
    used: int  #: GPUs that jobs hold, on loan or not.
    queue: int  #: Jobs that wait.


def tide_of(state: ClusterState) -> Tide:
    """Look at the tide of a state."""
    lenders = dict.fromkeys(pool.id for pool in state.pools.values() if pool.kind != "training")
    owned = lent = unused = 0
    for node in state.nodes.values():
        if node.pool not in lenders or node.state is not NodeState.ALIVE:
            continue
        if node.loan_state in ON_LOAN:
            lent += node.gpu_count
            unused += node.holder.count(None)
        else:
            owned += node.gpu_count
    return Tide(
        at_s=float(state.now_s),
        need=float(sum(one.gpus_needed for pool in lenders for one in lenders_in(state, pool))),
        owned=owned,
        lent=lent,
        unused=unused,
        used=state.gpus_held,
        queue=sum(job.state is JobState.QUEUED for job in state.jobs.values()),
    )
