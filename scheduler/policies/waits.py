"""Why a job waits, in terms that stay the same while the cause does.

The engine stores such a reason again only when its rule or its names change. So the names are
those who keep the most GPUs, or the one gang that is waited for; not who grew a moment ago.
"""

import numpy as np

from scheduler.policies.allot import Because
from scheduler.policies.draft import NAMES_MOST, Draft
from scheduler.policies.gang import Outcome
from scheduler.policies.interface import Figure, Need, Phase


def waits(
    draft: Draft, outcomes: dict[int, Outcome], base_only: bool = False
) -> dict[int, Because]:
    """Explain every waiting job that the draft does not start.

    Args:
        draft: With its sites decided.
        outcomes: What `gang.start` said of each job.
        base_only: The policy never scales in, so only free GPUs count.
    """
    jobs, curve = draft.snapshot.jobs, draft.curve
    found: dict[int, Because] = {}
    running = np.flatnonzero((draft.site >= 0) & (draft.was >= 0))
    kept, base = curve.sizes[draft.promised], curve.sizes[curve.base]
    promised = 0 if base_only else int((kept - base)[running].sum())
    # Running jobs by the GPUs that they cannot give, most first.
    largest = draft.names(running[np.lexsort((running, -kept[running]))[:NAMES_MOST]].tolist())
    most_mib = float(draft.memory_mib.max()) if len(draft.memory_mib) else 0.0
    name = "free_gpus" if base_only else "gpus_above_base"
    rows = np.flatnonzero((jobs.phase == Phase.WAITING) & (draft.site < 0))
    for job, waited_s, runnable, rest_s, gpus in zip(
        rows.tolist(),
        (draft.now_s - jobs.waiting_since_s[rows]).tolist(),
        curve.runnable[rows].tolist(),
        (jobs.backoff_until_s[rows] - draft.now_s).tolist(),
        base[rows].tolist(),
        strict=True,
    ):
        waited = Figure("waited_s", waited_s)
        if not runnable:
            found[job] = Because("gang.size", (), (waited,), (Need("allowed_sizes", 0, 1),))
            continue
        if rest_s > 0:
            found[job] = Because("gang.backoff", (), (waited,), (Need("backoff_s", rest_s, 0.0),))
            continue
        outcome = outcomes.get(job)
        if outcome is None or outcome.offered < 0:
            need = Need("gpu_memory_mib", most_mib, float(jobs.memory_mib[job]))
            found[job] = Because("gang.no_pool", (), (waited,), (need,))
            continue
        figures: tuple[Figure, ...] = (waited,)
        if promised > 0 and outcome.rule == "capacity":
            figures = (waited, Figure("promised_gpus", promised))
        behind = outcome.behind >= 0 and outcome.rule != "capacity"
        lost_to = (jobs.ids[outcome.behind],) if behind else largest
        need = Need(name, outcome.offered, gpus)
        found[job] = Because(f"gang.{outcome.rule}", lost_to, figures, (need,))
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
