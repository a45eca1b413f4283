"""Finish-time fairness: nobody shall end much later than with a share of its own: `themis`."""

import heapq
from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints, Phase, Plan, Snapshot
from scheduler.policies.parts.fixed import Gangs, Verdict, gangs, write
from scheduler.policies.parts.portable import log
from scheduler.policies.ranges import Amount, Share

#: Work and times are taken as at least this, so that no ratio is infinite.
_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class Themis:
    """Finish-time fairness with leases (Themis as recalled [M]).

    rho is the time from submission to the expected end, over the time the job would take from start
    to end on its 1/n of the cluster. GPUs whose lease has ended, and idle ones, are offered to the
    part 1 - f of the claimants with the worst rho: again and again to who lowers log rho most for
    each GPU, from nothing to a first size, or to the next, up to what was asked for. What they
    leave goes to the others in the same way. A lease holds for `lease_s`.

    What we do differently: an auction of bids would be truthful between users who bid; here the
    rates are known to one scheduler, so it takes the step of largest value itself. n is the number
    of jobs now, not over the job's life. The notes hold the job's total work, as first seen, and
    the end of its lease. Defaults are the paper's as recalled [M].
    """

    name: str = "themis"
    fairness: Share = 0.8  #: f.
    lease_s: Amount = 1200.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """Offer what is free."""
        found, jobs, now_s = gangs(snapshot), snapshot.jobs, snapshot.now_s
        total = np.where(np.isnan(jobs.notes[:, 0]), jobs.remaining_steps, jobs.notes[:, 0])
        lease_end_s = np.where(np.isnan(jobs.notes[:, 1]), now_s, jobs.notes[:, 1])
        ended = found.runs & (lease_end_s <= now_s)
        offered = ended | found.starts
        rho = self._rho(found, total)
        worst_first = np.argsort(np.where(offered, -rho, np.inf), kind="stable")
        count = int(offered.sum())
        some = max(1, int(np.ceil((1 - self.fairness) * count))) if count else 0
        back = np.bincount(found.pool[ended], found.size[ended], len(found.room))
        room: list[int] = (found.room + back.astype(np.int64)).tolist()
        given = np.where(ended, -1, found.pool)
        size = found.size.copy()
        for group in (worst_first[:some], worst_first[some:count]):
            self._auction(found, group.tolist(), room, given, size)
        notes = {}
        leased = (given >= 0) & offered
        leased_to_s = np.where(leased, now_s + self.lease_s, lease_end_s)
        fresh = np.isnan(jobs.notes[:, 0]) & (jobs.phase != Phase.MOVING)
        for job in np.flatnonzero(fresh | leased).tolist():
            notes[jobs.ids[job]] = (float(total[job]), float(leased_to_s[job]))
        figures = {"rho": rho}
        return write(found, Verdict(given, "themis.rho", size, figures=figures, notes=notes))

    def _rho(self, found: Gangs, total: Floats) -> Floats:
        """(n,) as it would be with what was asked for from now on."""
        jobs = found.seen.jobs
        gpus = int(found.room.sum() + found.size[found.runs].sum())
        share = max(1, gpus // max(1, len(jobs.ids)))
        alone = jobs.sizes <= share
        rate = np.where(alone, jobs.rate, 0.0).max(axis=1, initial=0.0)
        # With a share below its smallest size it would take turns: as much slower as it is smaller.
        first = (jobs.rate > 0).argmax(axis=1)
        slow = jobs.rate[np.arange(len(first)), first] * share / jobs.sizes[first]
        own_s = total / np.maximum(np.where(rate > 0, rate, slow), _LEAST)
        rho: Floats = (found.seen.now_s - jobs.submit_s + found.left_s) / np.maximum(own_s, 1.0)
        return rho

    def _auction(
        self, found: Gangs, group: list[int], room: list[int], given: Ints, size: Ints
    ) -> None:
        """Take the best step again and again, until nothing that fits is left."""
        if not any(room) or not group:
            return
        jobs = found.seen.jobs
        sizes = [0, *jobs.sizes.tolist()]
        worth, following = self._steps(found, group)
        row = {job: at for at, job in enumerate(group)}
        # (minus worth, job, level it has, level to get); level 0 is nothing.
        first = ((-worth[at][0], job, 0, following[at][0]) for job, at in row.items())
        heap = [bid for bid in first if bid[3]]
        heapq.heapify(heap)
        while heap and any(room):
            _, job, level, best = heapq.heappop(heap)
            more = sizes[best] - sizes[level]
            homes = [int(given[job])] if level else self._homes(found, job)
            pool = next((pool for pool in homes if room[pool] >= more), -1)
            if pool >= 0:
                given[job], size[job] = pool, sizes[best]
                room[pool] -= more
                gain = worth[row[job]][best]
                if gain > 0:
                    heapq.heappush(heap, (-gain, job, best, following[row[job]][best]))
            elif not level:  # then less, after all who can have what is best for them
                most = max((room[pool] for pool in homes), default=0)
                fit = (jobs.rate[job, : best - 1] > 0) & (jobs.sizes[: best - 1] <= most)
                if fit.any():
                    heapq.heappush(heap, (0.0, job, 0, int(np.flatnonzero(fit)[-1]) + 1))

    def _steps(self, found: Gangs, group: list[int]) -> tuple[list[list[float]], list[list[int]]]:
        """Per job and level that it may have, what its best next step gains per GPU, and where."""
        jobs, who = found.seen.jobs, np.array(group, dtype=np.int64)
        rate, work = jobs.rate[who], jobs.remaining_steps[who, None]
        speed = found.speed[who].max(axis=1, initial=_LEAST)[:, None]
        waited_s = found.seen.now_s - jobs.submit_s[who, None]
        # With nothing it waits for another lease, and then runs at what was asked for.
        left_s = np.concatenate(
            (
                self.lease_s + found.left_s[who, None],
                work / np.where(rate > 0, rate * speed, _LEAST),
            ),
            axis=1,
        )
        log_end = log(np.maximum(waited_s + left_s, 1.0))
        sizes = np.append(0, jobs.sizes)
        more = sizes[None, :] - sizes[:, None]
        limit = np.maximum(jobs.requested, found.size)[who, None]
        may = np.concatenate(
            (np.zeros((len(who), 1), dtype=np.bool_), (rate > 0) & (jobs.sizes <= limit)), axis=1
        )
        able: Bools = (more > 0) & may[:, None, :]
        gain = (log_end[:, :, None] - log_end[:, None, :]) / np.maximum(more, 1)
        worth = np.where(able, gain, -np.inf)
        # What it starts with is worth something even if it ends no sooner.
        worth[:, 0] = np.where(able[:, 0], np.maximum(worth[:, 0], 0.0), worth[:, 0])
        return worth.max(axis=2).tolist(), worth.argmax(axis=2).tolist()

    def _homes(self, found: Gangs, job: int) -> list[int]:
        return [int(found.pool[job])] if found.runs[job] else list(found.pools[job])
