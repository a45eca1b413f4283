"""What single policies decide by, in words: rule -> (sentence, what fits into a column)."""

from collections.abc import Mapping

_SURPLUS = ("the GPUs that no deadline needs help it most", "gain of the next GPU")
_WORTH = "[: {worth_per_gpu} a GPU, where the price is {price_per_gpu}]"
_MOST = "[; most are held by {lost_to}]"
_LIMIT = "[; its tenant's limit would have to be {want:quota_gpus}, not {have:quota_gpus}]"
_ROOM = "[: it ends at {planned_end_s}, due at {deadline_s}]"

POLICY_PHRASES: Mapping[str, tuple[str, str]] = {
    # --- tide
    "market.price": (f"no other use of these GPUs is worth more{_WORTH}", "worth its price"),
    "market.gang": (
        "it uses GPUs that would be left over, and with them gains more than those lose that had "
        f"to go{_WORTH}",
        "fits where GPUs are left",
    ),
    "market.outbid": (
        f"others make more of the GPUs{_WORTH}"
        "[; it would have its smallest size if there were {want:gpus} GPUs there, not {have:gpus}]"
        f"{_LIMIT}{_MOST}",
        "outbid by others",
    ),
    "market.quota": (
        "its tenant's jobs may have no more together[ than {have:quota_gpus} GPUs]"
        "[; with {want:quota_gpus} it would have its smallest size]"
        "[, if there were {want:gpus} GPUs there, not {have:gpus}][; most of them: {lost_to}]",
        "its tenant's limit",
    ),
    "market.promised": (f"it was promised to be in time{_ROOM}", "promised to be in time"),
    "market.in_time": (f"it can be in time like this{_ROOM}", "can be in time"),
    "market.lends": (
        "it has time to spare, and lends GPUs to a short job[ until {back_s}]",
        "lends GPUs for a while",
    ),
    "market.too_large": (
        "no site is as large as its smallest size[: it needs {want:gpus} GPUs, of {have:gpus}]",
        "larger than any site",
    ),
    # --- the literature
    "sjf.order": ("jobs go by how short they are, and it fits", "the shortest first"),
    "srtf.order": ("jobs go by what is left of them, the least first", "least left first"),
    "edf.deadline": ("jobs go by their deadlines, the nearest first", "nearest deadline first"),
    "drf.share": ("its tenant has the smallest dominant share", "its tenant's share"),
    "capacity.order": ("its queue has the smallest use for its guarantee", "its queue's turn"),
    "capacity.guaranteed": ("its queue's guarantee covers it", "guaranteed"),
    "capacity.bonus": ("it runs on what its queue is not guaranteed", "as a bonus"),
    "capacity.maximum": ("its queue would go over its maximum", "its queue's maximum"),
    "capacity.user_limit": ("its tenant has as much of the queue as one may", "its tenant's limit"),
    "capacity.cooldown": ("it was preempted as a bonus a moment ago", "preempted just now"),
    "capacity.reclaim": (
        "[{lost_to} wait for what their queue is guaranteed, and ]this was a bonus",
        "another queue's guarantee",
    ),
    "tiresias.sweep": ("jobs go by the GPU time they had, the least first", "least served first"),
    "gittins.rank": ("jobs go by how likely they are to end soon", "likely to end soon"),
    "optimus.marginal_gain": ("a GPU shortens its remaining time most", "gain of the next GPU"),
    "afs.two_jobs": ("it wins the next GPU in pairs with the others", "won the next GPU"),
    "pollux.speedup": ("the mean speed-up over fair shares is best so", "best mean speed-up"),
    "deepboot.speedup": ("the sum of speed-ups over fair shares is best so", "best speed-ups"),
    "elasticflow.share": ("its least share that keeps its deadline", "its least share"),
    "elasticflow.surplus": _SURPLUS,
    "elasticflow.late": ("its deadline is lost; it goes on as best effort", "deadline lost"),
    "elasticflow.declined": (
        "not all deadlines promised before could be kept with it, so it was declined",
        "declined",
    ),
    "elasticflow.best_effort": ("it has no deadline, and takes what is left", "has no deadline"),
    "edgeflow.share": ("its least share that keeps its deadline", "its least share"),
    "edgeflow.surplus": _SURPLUS,
    "themis.rho": ("it is the furthest behind its fair finish", "furthest behind"),
    "gandiva.slice": ("jobs take turns, and so it is", "its slice of time"),
    "gandiva.gather": ("it was spread over more nodes than it needs", "gathered"),
    "gavel.share": ("its share of time on this type of GPU is due", "its share of time"),
    "sia.goodput": ("the sum of goodputs is best so", "best goodputs"),
}

#: `rule verb` -> what fits into a column, where a verb needs its own.
VERB_SHORT: Mapping[str, str] = {"market.price waits": "no edge server has room"}

#: `rule verb` -> sentence, where a verb needs its own.
VERB_PHRASES: Mapping[str, str] = {
    # A gang at the edge has one server; whoever finds none with room waits.
    "market.price waits": (
        "the edge servers that it would get have enough GPUs free together, but none of them alone"
    ),
    "market.price scales_in": (
        f"others make more of the GPUs that it gives up[: {{lost_per_gpu}} a GPU, where the price "
        f"is {{price_per_gpu}}][; it would keep its size if there were {{want:gpus}} GPUs there, "
        f"not {{have:gpus}}]{_LIMIT}{_MOST}"
    ),
    "market.price migrates": (
        "it gains more there[: {worth_per_gpu} a GPU, where the price is {price_per_gpu}]"
        "[, and {home_worth_per_gpu} where the price is {home_price_per_gpu} here]"
        f"[; it would stay if there were {{want:gpus}} GPUs here, not {{have:gpus}}]{_MOST}"
    ),
    "market.quota scales_in": (
        "its tenant's jobs may have no more together[ than {have:quota_gpus} GPUs]"
        "[; with {want:quota_gpus} it would keep its size]"
        "[, if there were {want:gpus} GPUs there, not {have:gpus}][; most of them: {lost_to}]"
    ),
}
