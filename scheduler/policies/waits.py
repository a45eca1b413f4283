"""Why a job waits, in terms that stay the same while the cause does.

The engine stores such a reason again only when its rule or its names change. So the names are
those who keep the most GPUs, or the one gang that is waited for; not who grew a moment ago.
"""

import numpy as np

from scheduler.policies.draft import Draft, Why
from scheduler.policies.gang import Outcome
from scheduler.policies.interface import Figure, Need, Phase


def waits(draft: Draft, outcomes: dict[int, Outcome], base_only: bool = False) -> dict[int, Why]:
    """Explain every waiting job that the draft does not start.

    Args:
        draft: With its sites decided.
        outcomes: What `gang.start` said of each job.
        base_only: The policy never scales in, so only free GPUs count.
    """
    jobs, curve = draft.snapshot.jobs, draft.curve
    found: dict[int, Why] = {}
    largest: tuple[str, ...] | None = None
    running = [job for job, at in enumerate(draft.site) if at >= 0 and draft.was[job] >= 0]
    above = curve.sizes[draft.promised] - curve.sizes[curve.base]
    promised = 0 if base_only else int(above[running].sum())
    for job in np.flatnonzero(jobs.phase == Phase.WAITING).tolist():
        if draft.site[job] >= 0:
            continue
        waited = Figure("waited_s", draft.now_s - float(jobs.waiting_since_s[job]))
        if not curve.runnable[job]:
            found[job] = Why("gang.size", (), (waited,), (Need("allowed_sizes", 0, 1),))
            continue
        base = draft.size_at(job, int(curve.base[job]))
        if jobs.backoff_until_s[job] > draft.now_s:
            rest_s = float(jobs.backoff_until_s[job]) - draft.now_s
            found[job] = Why("gang.backoff", (), (waited,), (Need("backoff_s", rest_s, 0.0),))
            continue
        outcome = outcomes.get(job)
        if outcome is None or outcome.offered < 0:
            need = float(jobs.memory_mib[job])
            most = max(draft.memory_mib.tolist(), default=0.0)
            found[job] = Why("gang.no_pool", (), (waited,), (Need("gpu_memory_mib", most, need),))
            continue
        if outcome.behind >= 0 and outcome.rule != "capacity":
            lost_to = draft.names([outcome.behind])
        else:
            if largest is None:
                largest = draft.names(_largest(draft, running))
            lost_to = largest
        figures = [waited]
        if promised > 0 and outcome.rule == "capacity":
            figures.append(Figure("promised_gpus", promised))
        needs = (Need("free_gpus" if base_only else "gpus_above_base", outcome.offered, base),)
        found[job] = Why(f"gang.{outcome.rule}", lost_to, tuple(figures), needs)
    return found


def backfilled(draft: Draft, head: int) -> Why:
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
    return Why("gang.backfilled", (), figures)


def _largest(draft: Draft, running: list[int]) -> list[int]:
    """Return running jobs by the GPUs that they cannot give, most first."""
    kept = draft.curve.sizes[draft.promised]
    return sorted(running, key=lambda job: (-int(kept[job]), job))
