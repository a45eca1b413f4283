"""Why jobs change, with the figures that say what the change is worth."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scheduler.policies.interface import Figure, Need, Reason, Target

if TYPE_CHECKING:
    from scheduler.policies.parts.draft import Draft


class _Change(NamedTuple):
    """What changes about a job."""

    before: int  #: GPUs
    after: int
    was: int  #: site, -1: none
    site: int  #: that it shall be in, or is taken from
    rate: float  #: steps per second there
    left_s: float
    age_s: float  #: of what is known about its speed
    pause_s: float


def explain(draft: "Draft", targets: Mapping[int, Target | None]) -> list[Reason]:
    """Return one reason for each job that changes.

    Args:
        draft: With the sites and causes of all jobs.
        targets: Job -> what it gets, by job.
    """
    jobs, curve = draft.snapshot.jobs, draft.curve
    rows = np.array(list(targets), dtype=np.int64)
    before = draft.held[rows]
    after = np.array([target.size if target else 0 for target in targets.values()], dtype=np.int64)
    was, site = draft.was[rows], np.where(after > 0, draft.site[rows], draft.was[rows])
    rivals: dict[int, tuple[str, ...]] = {}
    for at in np.unique(was[(after < before) & (after > 0)]).tolist():
        grow = np.flatnonzero((after > before) & (site == at))
        rivals[at] = draft.names(rows[grow[np.argsort(was[grow] >= 0, kind="stable")]].tolist())
    level = curve.sizes.searchsorted(np.where(after > 0, after, before))
    level = np.minimum(level, len(curve.sizes) - 1)
    rate = curve.rate[rows, level] * draft.pace(rows, site)
    left_s = jobs.remaining_steps[rows] / np.maximum(rate, 1e-12)
    columns = (before, after, was, site, rate, left_s, jobs.rate_age_s[rows], curve.change_s[rows])
    return [
        _explain(draft, job, _Change(*row), rivals)
        for job, *row in zip(targets, *(column.tolist() for column in columns), strict=True)
    ]


def _explain(
    draft: "Draft", job: int, change: _Change, rivals: Mapping[int, tuple[str, ...]]
) -> Reason:
    before, after, was, site, rate, left_s, age_s, pause_s = change
    jobs = draft.snapshot.jobs
    why = draft.why.get(job)
    rule = "elastic.marginal_return"
    lost_to: tuple[str, ...] = ()
    more: tuple[Figure, ...] = ()
    needs: tuple[Need, ...] = ()
    if why:
        rule, lost_to, more, needs = why.rule, why.lost_to, why.figures, why.needs
    if not after:
        verb = "preempts"
    elif was < 0:
        verb = "starts"
    elif site != was or after == before:
        verb = "migrates"
    elif after < before:
        verb = "scales_in"
        lost_to = lost_to or rivals.get(was, ())
    else:
        verb = "scales_out"
    figures = (
        Figure("gpus_before", before),
        Figure("gpus_after", after),
        Figure("steps_per_s", rate, age_s),
        Figure("left_s", left_s, age_s),
        Figure("pause_s", pause_s),
        *more,
    )
    return Reason(jobs.ids[job], verb, rule, figures, lost_to, needs)
