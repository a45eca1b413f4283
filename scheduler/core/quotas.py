"""Quotas that people set: what a tenant's jobs hold together, and who has to wait for that.

What runs when a quota is set, or was begun, goes on; nothing starts or grows beyond it. A job that
leaves counts until it has left: another waits until those of its tenant that make room have gone.

A policy that does not keep quotas itself would plan, over and over, what the core must refuse, and
think that GPUs are taken which are not: so it is shown only the sizes that a quota leaves. The
number of jobs no policy knows; it is kept so for all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from scheduler.core.standing import Quota
from scheduler.core.state import ClusterState, Job
from scheduler.policies.interface import WAITING, Figure, Jobs, Need, Reason

#: Why a job waits for its tenant's quota.
RULE = "quota.tenant"
#: Of its tenant's jobs, so many are named that hold most.
_NAMED = 3


@dataclass(slots=True)
class Use:
    """What the jobs of a tenant with a quota hold, and are to have."""

    quota: Quota
    gpus: int = 0
    jobs: int = 0

    def allows(self, own: int, size: int) -> bool:
        """Whether a job that counts with `own` GPUs may count with `size`."""
        if not own and self.quota.jobs is not None and self.jobs >= self.quota.jobs:
            return False
        return size <= own or self.gpus - own + size <= self.quota.gpus

    def need(self, own: int, size: int) -> Need:
        """Say what would have to change so that a job may have so many GPUs."""
        if not own and self.quota.jobs is not None and self.jobs >= self.quota.jobs:
            return Need("quota_jobs", float(self.quota.jobs), float(self.jobs + 1))
        return Need("quota_gpus", float(self.quota.gpus), float(self.gpus - own + size))


def counted(job: Job) -> int:
    """Give the GPUs with which a job counts: the most of what it has, leaves, and is to have.

    A gang that changes its size leaves GPUs as it takes others, and runs on both at no time.
    """
    leaves = sum(map(len, job.leaving.values()))
    return max(job.size, leaves, sum(map(len, (job.target or {}).values())))


def uses(state: ClusterState) -> dict[str, Use]:
    """Give what tenants with a quota use now, by tenant."""
    found = {name: Use(quota) for name, quota in sorted(state.standing.quotas.items())}
    for job in state.jobs.values() if found else ():
        if (use := found.get(job.tenant)) is not None and (gpus := counted(job)):
            use.gpus += gpus
            use.jobs += 1
    return found


class Ledger:
    """What quotas leave to the jobs of a plan, one after the other."""

    def __init__(self, state: ClusterState) -> None:
        """Begin with what is held and claimed now."""
        self._state, self._uses = state, uses(state)

    def refusal(self, job: Job, size: int) -> Reason | None:
        """Say why a job may not have so many GPUs beside what others have; None if it may."""
        use = self._uses.get(job.tenant)
        if use is None or use.allows(own := counted(job), size):
            return None
        verb = "keeps" if job.allocation else "waits"
        figures = (Figure("gpus", float(size)),)
        return Reason(job.id, verb, RULE, figures, _most(self._state, job), (use.need(own, size),))

    def counts(self, job: Job) -> int:
        """Give the GPUs with which a job counts, if its tenant has a quota; else 0."""
        return counted(job) if job.tenant in self._uses else 0

    def take(self, job: Job, before: int) -> None:
        """Count what a job was given; `before` is what it counted with."""
        if (use := self._uses.get(job.tenant)) is not None:
            use.gpus += counted(job) - before
            use.jobs += not before


def shown(
    state: ClusterState, jobs: Jobs, *, keeps_quotas: bool
) -> tuple[Jobs, Mapping[str, Reason]]:
    """Leave out the sizes that quotas do not leave; say of jobs without any why they wait.

    Args:
        state: What is held, and which quotas there are.
        jobs: The columns of the live jobs.
        keeps_quotas: The policy keeps tenants within their GPUs itself.
    """
    found, rate, reasons = uses(state), jobs.rate.copy(), dict[str, Reason]()
    for row, (name, tenant) in enumerate(zip(jobs.ids, jobs.tenants, strict=True)):
        if (use := found.get(tenant)) is None:
            continue
        job, sizes = state.jobs[name], jobs.sizes[rate[row] > 0].tolist()
        own = counted(job)
        by_count = not use.allows(own, own)
        if keeps_quotas and not by_count:
            continue
        may = [size for size in sizes if not by_count and use.allows(own, size)]
        if len(may) == len(sizes):
            continue
        rate[row, ~np.isin(jobs.sizes, may)] = 0.0
        if not may and jobs.phase[row] == WAITING:
            need, waited = use.need(own, sizes[0]), state.now_s - job.waiting_since_s
            figures = (Figure("waited_s", waited),)
            reasons[name] = Reason(name, "waits", RULE, figures, _most(state, job), (need,))
    rate.flags.writeable = False
    return replace(jobs, rate=rate), reasons


def _most(state: ClusterState, job: Job) -> tuple[str, ...]:
    """Name the jobs of the same tenant that hold most."""
    others = [
        (-counted(other), other.number, other.id)
        for other in state.jobs.values()
        if other.tenant == job.tenant and other.id != job.id and counted(other)
    ]
    return tuple([name for _, _, name in sorted(others)[:_NAMED]])
