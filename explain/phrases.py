"""Reasons in words: one table from rule to sentence, one to what fits into a column.

A sentence may hold parts in brackets; such a part is said only if all its figures were recorded.
`{lost_to}` and the figures' names stand for what the reason recorded.
"""

from collections.abc import Mapping

from explain.policy_phrases import POLICY_PHRASES, VERB_PHRASES, VERB_SHORT

_CHEAPEST = "[{lost_to} is forecast to need {forecast_gpus}; ]this node costs least to empty"

#: By rule, or by `rule verb` where a verb needs its own sentence.
PHRASES: Mapping[str, str] = {
    # --- waiting
    "gang.capacity": (
        "no pool that it may use has enough GPUs for its smallest size"
        "[: the most that one could give is {have:gpus_above_base} of {want:gpus_above_base} GPUs]"
        "[: the most that one has free is {have:free_gpus} of {want:free_gpus} GPUs]"
        "[; most of what cannot be taken is held by {lost_to}]"
    ),
    "gang.backfill": (
        "it would fit, but starting it now would delay [{lost_to}, ]a gang ahead of it"
    ),
    "gang.strict": "a gang ahead of it does not fit yet[ ({lost_to})], and nobody may pass",
    "gang.start": "it was given a place, and waits for the GPUs to be free",
    "gang.size": "no size between its smallest and largest has a declared rate",
    "sizes.too_many": (
        "jobs declare more sizes than a decision weighs[, which is {sizes_most}], and none of its "
        "own was among the first; declare fewer, or sizes that others have"
    ),
    "gang.backoff": "it failed, and rests[ for {have:backoff_s}] before it is tried again",
    "gang.left_behind": (
        "what it ran before may still run on a node that was given up; it starts when that is "
        "known to have ended, or its lease is over"
    ),
    "gang.no_node": (
        "no node is in contact; start an agent that brings some, or see `tidegate nodes` for those "
        "that were there"
    ),
    "gang.no_pool": (
        "no node that it may use, and that takes new work, is large enough"
        "[: it needs {want:gpu_memory_mib} on each GPU, the most there is {have:gpu_memory_mib}]"
    ),
    "quota.tenant": (
        "its tenant's quota leaves it no more"
        "[: its jobs may hold {have:quota_gpus} GPUs together, and with it that would be "
        "{want:quota_gpus}]"
        "[: {have:quota_jobs} of its jobs may hold GPUs at once, and it would be one more]"
        "[; most are held by {lost_to}]"
    ),
    "plan.refused": (
        "what was planned for it[, {gpus},] cannot be had[: it stays with {lost_to}]; "
        "the next cycle plans again"
    ),
    "claims.in_way": (
        "others[, {lost_to},] wait for GPUs that it is to leave; so it leaves now, and gets its "
        "new ones when they are free"
    ),
    "claims.unanswered": (
        "the GPUs planned for it should long be free[, but {lost_to} did not go]; "
        "the next cycle plans again"
    ),
    # --- starting
    "gang.backfilled": (
        "it fits, and does not delay the gang ahead of it"
        "[, which needs {head_gpus} and has waited {head_waited_s}]"
    ),
    "gang.repack": (
        "it makes room on a node[ for {lost_to}], which would else lie on more nodes than it needs"
    ),
    "fifo.order": "it was next in order of submission, and fits",
    # --- the edge
    "edgeflow.rule1": "a job at the edge stays at the edge (EdgeFlow, rule 1)",
    "edgeflow.rule2": (
        "no cloud GPU is idle, and an edge server ends it in time"
        "[: at {edge_end_s}, deadline {deadline_s}] (EdgeFlow, rule 2)"
    ),
    "edgeflow.rule3": (
        "it would miss its deadline in the cloud"
        "[, ending {cloud_end_s}; at the edge it ends {edge_end_s}, deadline {deadline_s}]"
        " (EdgeFlow, rule 3)"
    ),
    # --- sizes and moves
    "elastic.marginal_return": "these GPUs gain most with it",
    "elastic.marginal_return waits": "other jobs gain more from these GPUs than it would",
    "elastic.marginal_return scales_out": "the next GPUs gain more here than with any other job",
    "elastic.marginal_return scales_in": "its last GPUs gain more elsewhere[, with {lost_to}]",
    "elastic.marginal_return migrates": "the same number of GPUs is better placed there",
    # --- loans
    "loans.idle": (
        "its owner has no use for it[: needs {needed_gpus} now]"
        "[, {peak_gpus} at most within half an hour]"
        "[, and keeps {headroom_gpus} as headroom]"
    ),
    "loans.reclaim": (
        "[{lost_to} takes back ]nodes that it runs on[, and it keeps {kept_gpus} elsewhere]"
    ),
    "loans.unused": "nobody has a use for it[, lent for {lent_s}]",
    "operator.drain": "an operator has its node drained[, by {drain_by_s}]",
    "operator.hold": "it is held[; the promise that it ends by {unpromised_s} is called off]",
    "operator.requeue": "somebody asked for it to leave and wait for its turn",
    "operator.pause": "starts and growth are paused",
    "operator.scale": (
        "its size is set[ to {gpus}]"
        "[; it needs {want:free_gpus} more GPUs where it runs, and {have:free_gpus} are free]"
        "[; its tenant may have {limit_gpus} in all, so it keeps what it has]"
    ),
    "operator.recall": "an operator called its node back[, to be with its owner by {due_s}]",
    "policy.recall": (
        "the policy that decides now never gives nodes on loan back, so its node goes back at once"
    ),
    "loans.unheard": (
        "nothing is heard of its owner's load[ for {silent_s}], so the node goes back to it"
        "[ by {due_s}]"
    ),
    "loan.reclaimed": "its node goes back to the owner[, who is expected to need it by {due_s}]",
    "victims.free": "[{lost_to} is forecast to need {forecast_gpus}; ]nobody is on this node",
    "victims.fraction": _CHEAPEST,
    "victims.count": _CHEAPEST,
    "victims.ratio": _CHEAPEST,
    "victims.mended": _CHEAPEST,
    # --- trouble
    "gang.died": "a part of the gang was lost[; it goes on from {step_kept}]",
    "gang.size_refused": "its agent refused to change its size, so it saves its work and leaves",
    "gang.start_timeout": "it was not up[ within {limit_s}], so it is stopped and tried again",
    "node.pool_changed": "it says that it is in another pool now; it is left out",
    **{rule: sentence for rule, (sentence, _) in POLICY_PHRASES.items()},
    **VERB_PHRASES,
}

#: What is said in its place once the job runs on: of where it is now, it would be false.
SINCE: Mapping[str, str] = {
    "its node goes back": "its node went back",
    "its node is being drained": "its node was drained",
    "others wait for its GPUs": "made way for others",
}

#: By rule, or by `rule verb`, what fits into a column of a table.
SHORT: Mapping[str, str] = {
    "gang.capacity": "too few GPUs free",
    "gang.backfill": "would delay another",
    "gang.strict": "nobody may pass",
    "gang.start": "place given",
    "gang.size": "no rate for its sizes",
    "sizes.too_many": "too many sizes declared",
    "gang.backoff": "rests after a failure",
    "gang.left_behind": "its old gang may run",
    "gang.no_pool": "no open node is large enough",
    "gang.no_node": "no node is in contact",
    "plan.refused": "GPUs were gone",
    "claims.in_way": "others wait for its GPUs",
    "claims.unanswered": "others did not leave",
    "gang.backfilled": "fits, delays nobody",
    "gang.repack": "makes room on a node",
    "fifo.order": "its turn, and it fits",
    "edgeflow.rule1": "stays at the edge",
    "edgeflow.rule2": "in time at the edge",
    "edgeflow.rule3": "late in the cloud",
    "elastic.marginal_return": "gain of the next GPU",
    "loans.idle": "its owner's idle GPUs",
    "loans.reclaim": "its node goes back",
    "loans.unused": "nobody has a use for it",
    "operator.drain": "its node is being drained",
    "operator.hold": "held",
    "operator.requeue": "requeued",
    "operator.pause": "starts are paused",
    "operator.scale": "its size is set",
    "operator.recall": "its node goes back",
    "policy.recall": "its node goes back",
    "loans.unheard": "its owner is not heard",
    "quota.tenant": "its tenant's quota",
    "loan.reclaimed": "its node goes back",
    "victims.free": "nobody is on it",
    "victims.fraction": "cheapest to empty",
    "victims.count": "cheapest to empty",
    "victims.ratio": "cheapest to empty",
    "victims.mended": "cheapest to empty",
    "gang.died": "a worker was lost",
    "gang.size_refused": "its new size was refused",
    "gang.start_timeout": "did not come up",
    "node.pool_changed": "changed its pool",
    **{rule: short for rule, (_, short) in POLICY_PHRASES.items()},
    **VERB_SHORT,
}
