"""Why gangs change or wait, with the figures that say what a change is worth.

Why a job waits is said in terms that stay the same while the cause does: the engine stores such a
reason again only when its rule or its names change. So the names are those who keep the most GPUs,
or the one gang that is waited for; not who grew a moment ago.
"""

from collections.abc import Mapping

import numpy as np

from scheduler.policies.interface import WAITING, Figure, Floats, Ints, Need, Reason
from scheduler.policies.parts.allot import Because, no_pool
from scheduler.policies.parts.draft import Draft
from scheduler.policies.parts.gang import Outcome

#: What decided where nothing else did.
_USUAL = Because("elastic.marginal_return")


def changes(draft: Draft, rows: Ints, after: Ints) -> list[Reason]:
    """Return one reason for each of r jobs that change.

    Args:
        draft: With the pools and causes of all jobs.
        rows: (r,) the jobs.
        after: (r,) GPUs each shall have.
    """
    jobs, curve, was = draft.seen.jobs, draft.curve, draft.was[rows]
    before = np.where(was >= 0, jobs.size[rows], 0)
    there = np.where(after > 0, draft.pool[rows], was)
    rivals: dict[int, tuple[str, ...]] = {}
    for at in np.unique(was[(after < before) & (after > 0)]).tolist():
        grow = np.flatnonzero((after > before) & (there == at))
        rivals[at] = draft.names(rows[grow[np.argsort(was[grow] >= 0, kind="stable")]])
    level = curve.sizes.searchsorted(np.where(after > 0, after, before))
    rate: Floats = curve.rate[rows, np.minimum(level, len(curve.sizes) - 1)]
    rate = rate * jobs.affinity[rows, there]
    left_s = jobs.remaining_steps[rows] / np.maximum(rate, 1e-12)
    columns = (
        rows,
        before,
        after,
        was,
        there,
        rate,
        left_s,
        jobs.rate_age_s[rows],
        curve.change_s[rows],
    )
    found = []
    for job, had, gets, old, new, pace, ends_s, age_s, pause_s in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        cause = draft.why.get(job, _USUAL)
        lost_to = cause.lost_to
        if not gets:
            verb = "preempts"
        elif old < 0:
            verb = "starts"
        elif new != old or gets == had:
            verb = "migrates"
        elif gets < had:
            verb, lost_to = "scales_in", lost_to or rivals.get(old, ())
        else:
            verb = "scales_out"
        figures = (
            Figure("gpus_before", had),
            Figure("gpus_after", gets),
            Figure("steps_per_s", pace, age_s),
            Figure("left_s", ends_s, age_s),
            Figure("pause_s", pause_s),
            *cause.figures,
        )
        found.append(Reason(jobs.ids[job], verb, cause.rule, figures, lost_to, cause.needs))
    return found


def waits(draft: Draft, outcomes: Mapping[int, Outcome], have: str) -> list[Reason]:
    """Explain every waiting job that does not start, by job.

    Args:
        draft: With the pools of all jobs.
        outcomes: What became of each job that could start.
        have: What `Outcome.offered` counts.
    """
    seen, curve = draft.seen, draft.curve
    jobs, ids = seen.jobs, seen.jobs.ids
    running = np.flatnonzero((draft.pool >= 0) & (draft.was >= 0))
    kept = curve.sizes[draft.floor[running]]
    # By the GPUs that they cannot give, most first.
    largest = draft.names(running[np.lexsort((running, -kept))])
    found: list[Reason] = []
    for job in ((jobs.phase == WAITING) & (draft.pool < 0)).nonzero()[0].tolist():
        rest_s = float(jobs.backoff_until_s[job]) - seen.now_s
        lost_to: tuple[str, ...] = ()
        outcome = outcomes.get(job)
        if not curve.runnable[job]:
            rule, need = "gang.size", Need("allowed_sizes", 0, 1)
        elif rest_s > 0:
            rule, need = "gang.backoff", Need("backoff_s", rest_s, 0.0)
        elif outcome is None or outcome.offered < 0:
            rule, need = "gang.no_pool", no_pool(seen, job)
        else:
            rule = f"gang.{outcome.rule}"
            behind = outcome.behind >= 0 and outcome.rule != "capacity"
            lost_to = (ids[outcome.behind],) if behind else largest
            need = Need(have, outcome.offered, int(curve.sizes[curve.base[job]]))
        waited = Figure("waited_s", seen.now_s - float(jobs.waiting_since_s[job]))
        found.append(Reason(ids[job], "waits", rule, (waited,), lost_to, (need,)))
    return found
