"""What tenants are guaranteed and may have at most: who is within it, and what may be promised.

A guarantee is a right like that of a priority class, above all of them: jobs whose base sizes are
within it have those before anybody has more. A limit is a constraint on what a tenant's jobs hold
together, at all sites.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints, Snapshot
from scheduler.policies.ranges import MOST
from scheduler.policies.tide.market import Market
from scheduler.policies.tide.worth import START_MOST

#: A limit stops no job for another of its tenant that has its GPUs for less: that one has to wait
#: until they are left, others may come in between, and two would take turns.
STAYS_S = 600.0
#: Stands for no limit.
NO_LIMIT = int(MOST)


def read(tenant: str, text: str) -> tuple[int, int]:
    """Read what an operator wrote: `LEAST..MOST` GPUs, of which one may be left out.

    Raises:
        ValueError: It is no quota.
    """
    if not tenant:
        raise ValueError("quotas: a tenant without a name; write it as quotas.NAME=16..32")
    low, dots, high = (part.strip() for part in text.partition(".."))
    written = [part for part in (low, high) if part]
    if dots and written and all(part.isascii() and part.isdigit() for part in written):
        least, most = int(low or 0), int(high or NO_LIMIT)
        if least <= most <= NO_LIMIT:
            return least, most
    raise ValueError(
        f"quota of {tenant}: must be GPUs guaranteed and at most, as 16..32, 16.. or ..32, "
        f"got {text!r}"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Quotas:
    """Q tenants with a quota, and what it leaves to the r jobs on the market."""

    names: tuple[str, ...]  #: sorted.
    of: Ints  #: (r,) whose quota each job counts for, -1: its tenant has none.
    held: Ints  #: (r,) GPUs that each job has now.
    fresh: Bools  #: (r,) that has them since less than `STAYS_S`.
    apart: Ints  #: (Q,) GPUs of their jobs that may not be touched now, and stay theirs.
    leaving: Ints  #: (Q,) GPUs that their jobs are still to leave: nobody grows by them until then.
    least: Ints  #: (Q,) GPUs guaranteed, beyond those.
    most: Ints  #: (Q,) that the jobs on the market may hold; below 0 where the others hold more.
    #: Tenants whose quota an administrator set, in place of the one in the policy's options.
    given: frozenset[str] = frozenset()

    def rule(self, job: int) -> str:
        """Name the rule by which its tenant's quota keeps a job from GPUs."""
        return "quota.tenant" if self.names[self.of[job]] in self.given else "market.quota"

    @property
    def limited(self) -> Bools:
        """(r,) jobs of tenants with a limit."""
        if not self.names:
            return np.zeros(len(self.of), dtype=np.bool_)
        bounded = self.most + self.apart < NO_LIMIT
        found: Bools = np.append(bounded, False)[self.of]
        return found

    def now(self, gpus: Ints) -> Ints:
        """(Q,) what jobs on the market hold with so many GPUs, and what others are still to leave.

        Args:
            gpus: (r,) of each job on the market.
        """
        held = np.bincount(self.of + 1, gpus, len(self.most) + 1)[1:].astype(np.int64)
        return held + self.leaving

    def entitled(
        self, seen: Snapshot, market: Market, weight: Floats, bound: Ints, floor: Ints
    ) -> Bools:
        """(r,) jobs within guarantees, beside those with promises: by class, then by worth.

        Args:
            seen: What is known.
            market: Who could do what.
            weight: (r,) of `worth.weights`.
            bound: (r,) of `Promises`.
            floor: (r,) of `Promises`.
        """
        found = np.zeros(len(weight), dtype=np.bool_)
        if not np.count_nonzero(self.least):
            return found
        size, kept = market.sizes[market.base], np.where(bound >= 0, market.sizes[floor], 0)
        # Who runs stays: who waits has to be worth more by what a start may lose.
        keen = weight * np.where(market.home >= 0, 1.0, 1.0 - START_MOST)
        priority = seen.jobs.priority[market.rows]
        ranked = np.lexsort((np.arange(len(keen)), -keen, -priority))
        ranked = ranked[bound[ranked] < 0]
        for at, least in enumerate(self.least.tolist()):
            left = least - int(kept[self.of == at].sum())
            for job in ranked[self.of[ranked] == at].tolist() if left > 0 else ():
                if size[job] <= left:
                    found[job] = True
                    left -= int(size[job])
                    if not left:
                        break
        return found


def quotas_of(seen: Snapshot, market: Market, quotas: Mapping[str, str]) -> Quotas:
    """Find whose quota each job counts for, and what is left of it.

    Args:
        seen: What is known.
        market: Who may be given what.
        quotas: Tenant -> as `read` takes it; what an administrator set comes before it.
    """
    jobs, rows = seen.jobs, market.rows
    own = jobs.size[rows]
    fresh = (own > 0) & (jobs.changed_s[rows] > seen.now_s - STAYS_S)
    if not quotas and not seen.quotas:
        none = own[:0]
        return Quotas((), np.full(len(rows), -1), own, fresh, none, none, none, none)
    # One that goes on with fewer GPUs has those that it was told to leave until it has left.
    stays = np.where(jobs.leaves, 0, jobs.size)
    goes = np.maximum(jobs.size, jobs.held) - stays
    stays[rows] = goes[rows] = 0
    read_all = {name: read(name, text) for name, text in quotas.items()} | dict(seen.quotas)
    named = dict(sorted(read_all.items()))
    at = {name: index for index, name in enumerate(named)}
    of = np.array([at.get(tenant, -1) for tenant in jobs.tenants], dtype=np.int64)
    apart, leaving = (
        np.bincount(of + 1, gpus, len(at) + 1)[1:].astype(np.int64) for gpus in (stays, goes)
    )
    least, most = np.array([*named.values()], dtype=np.int64).reshape(-1, 2).T
    left = np.maximum(least - apart - leaving, 0)
    given = frozenset(seen.quotas)
    return Quotas(tuple(at), of[rows], own, fresh, apart, leaving, left, most - apart, given)


class Pledges:
    """GPUs that promises may take: of each tenant its limit, of all what is guaranteed to nobody.

    What is guaranteed to others may be taken back, as lent GPUs may: nothing is promised on it. A
    job counts with the most that its course has, now or later.
    """

    def __init__(self, quotas: Quotas, gpus: int) -> None:
        """Begin with no promise.

        Args:
            quotas: Of the jobs on the market; some.
            gpus: Of all sites that nobody takes back.
        """
        self._quotas = quotas
        self._of, self._held = list[int](), list[int]()
        self._least: list[int] = quotas.least.tolist()
        self._most: list[int] = quotas.most.tolist()
        self._limit: list[int] = (quotas.most + quotas.apart).tolist()
        self._used = [0] * len(self._least)
        #: what limits leave beside what all jobs hold now
        self._room: list[int] = (quotas.most - quotas.now(quotas.held)).tolist()
        # Where nothing is guaranteed, what GPUs there are is for the courses of those promised.
        self._left = gpus - sum(self._least) if any(self._least) else math.inf

    def turn_to(self, jobs: Ints) -> None:
        """Say who may be promised something from now on: a job is an index into these."""
        self._of = self._quotas.of[jobs].tolist()
        self._held = self._quotas.held[jobs].tolist()

    def within(self, job: int, gpus: int) -> bool:
        """Whether a limit leaves a job so many GPUs beside promises, once others have left."""
        at = self._of[job]
        return at < 0 or self._used[at] + gpus <= self._limit[at]

    def gives(self, job: int, gpus: int) -> bool:
        """Whether so many GPUs may be promised to a job."""
        beyond, at = self._beyond(job, gpus), self._of[job]
        if at >= 0 and (
            gpus - self._held[job] > max(self._room[at], 0)
            or self._used[at] + gpus > self._most[at]
        ):
            return False  # until others of its tenant have left
        return not beyond or beyond <= self._left

    def take_all(self, jobs: Sequence[int], gpus: Sequence[int]) -> int:
        """Count what is promised to one job after the other, as long as it may be; say to how many.

        Args:
            jobs: Whose.
            gpus: Of each, or of more.
        """
        for count, (job, own) in enumerate(zip(jobs, gpus, strict=False)):
            if not self.gives(job, own):
                return count
            self.take(job, own)
        return len(jobs)

    def take(self, job: int, gpus: int) -> None:
        """Count what was promised."""
        self._left -= self._beyond(job, gpus)
        if self._of[job] >= 0:
            self._used[self._of[job]] += gpus
            self._room[self._of[job]] -= max(gpus - self._held[job], 0)

    def _beyond(self, job: int, gpus: int) -> int:
        """Return how many of so many GPUs are beyond what its tenant is guaranteed."""
        at = self._of[job]
        return gpus if at < 0 else gpus - min(gpus, max(self._least[at] - self._used[at], 0))
