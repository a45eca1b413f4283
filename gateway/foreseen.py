"""What owners are forecast to need, as the policy in force sees it at a moment."""

from dataclasses import replace
from typing import Any

from scheduler.core.state import ClusterState
from scheduler.core.view import View
from scheduler.policies.parts.lending import foreseen
from scheduler.policies.parts.loans import LoanOptions
from scheduler.policies.registry import make_policy


def forecast_of(state: ClusterState) -> list[dict[str, Any]]:
    """Give by lender what it is forecast to need; nothing under a policy that does not lend."""
    try:
        options = getattr(make_policy(state.leader.policy), "loans", None)
    except ValueError:  # nobody leads yet, or it is not one of this release's
        return []
    if not isinstance(options, LoanOptions):
        return []
    seen = View().snapshot(_of_lenders(state))
    return [
        {
            "lender": lender,
            "rows": [
                {"at_s": state.now_s + after_s, "need": need, "need_high": high}
                for after_s, need, high in rows
            ],
        }
        for lender, rows in foreseen(seen, options)
    ]


def _of_lenders(state: ClusterState) -> ClusterState:
    """Give the part that a forecast follows from: what can be lent, and who is there.

    The columns of a whole cell of 50,000 jobs take more than a second, in which a gateway answers
    nothing else; of this part, a twentieth.
    """
    named = {node.id for node in state.nodes.values() if state.pools[node.pool].kind != "training"}
    there = {job for name in named for job in state.nodes[name].holder}
    jobs = {name: job for name, job in state.jobs.items() if name in there}
    for job in jobs.values():
        named.update(job.allocation, job.leaving, job.target or ())
    nodes = {name: node for name, node in state.nodes.items() if name in named}
    return replace(state, jobs=jobs, nodes=nodes)
