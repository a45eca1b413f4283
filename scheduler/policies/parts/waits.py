"""Why a job waits, in terms that stay the same while the cause does.

The engine stores such a reason again only when its rule or its names change. So the names are
those who keep the most GPUs, or the one gang that is waited for; not who grew a moment ago.
"""

from collections.abc import Mapping

import numpy as np

from scheduler.policies.interface import WAITING, Figure, Need, Reason
from scheduler.policies.parts.allot import Because, no_pool
from scheduler.policies.parts.draft import NAMES_MOST, Draft
from scheduler.policies.parts.gang import Outcome


def waits(draft: Draft, outcomes: Mapping[int, Outcome], base_only: bool = False) -> list[Reason]:
    """Explain every waiting job that the draft does not start, by job.

    Args:
        draft: With its sites decided.
        outcomes: What `gang.start` said of each job.
        base_only: The policy never scales in, so only free GPUs count.
    """
    jobs, curve, ids = draft.snapshot.jobs, draft.curve, draft.snapshot.jobs.ids
    found: list[Reason] = []
    running = np.flatnonzero((draft.site >= 0) & (draft.was >= 0))
    kept, base = curve.sizes[draft.floor], curve.sizes[curve.base]
    # Running jobs by the GPUs that they cannot give, most first.
    largest = draft.names(running[np.lexsort((running, -kept[running]))[:NAMES_MOST]].tolist())
    name = "free_gpus" if base_only else "gpus_above_base"
    rows = np.flatnonzero((jobs.phase == WAITING) & (draft.site < 0))
    for job, waited_s, runnable, rest_s, gpus in zip(
        rows.tolist(),
        (draft.now_s - jobs.waiting_since_s[rows]).tolist(),
        curve.runnable[rows].tolist(),
        (jobs.backoff_until_s[rows] - draft.now_s).tolist(),
        base[rows].tolist(),
        strict=True,
    ):
        figures = (Figure("waited_s", waited_s),)
        lost_to: tuple[str, ...] = ()
        outcome = outcomes.get(job)
        if not runnable:
            rule, need = "gang.size", Need("allowed_sizes", 0, 1)
        elif rest_s > 0:
            rule, need = "gang.backoff", Need("backoff_s", rest_s, 0.0)
        elif outcome is None or outcome.offered < 0:
            rule, need = "gang.no_pool", no_pool(draft.snapshot, job)
        else:
            rule = f"gang.{outcome.rule}"
            behind = outcome.behind >= 0 and outcome.rule != "capacity"
            lost_to = (ids[outcome.behind],) if behind else largest
            need = Need(name, outcome.offered, gpus)
        found.append(Reason(ids[job], "waits", rule, figures, lost_to, (need,)))
    return found


def backfilled(draft: Draft, head: int) -> Because:
    """Explain a start that passes a gang ahead of it.

    The gang ahead loses nothing by it, so it is not in `lost_to`: a figure names it.
    """
    jobs = draft.snapshot.jobs
    gpus = draft.size_at(head, int(draft.curve.base[head]))
    figures = (
        Figure("head_gpus", gpus),
        Figure("head_waited_s", draft.now_s - float(jobs.waiting_since_s[head])),
        Figure(f"gpus_first_wanted_by:{jobs.ids[head]}", gpus),
    )
    return Because("gang.backfilled", (), figures)
