"""The Gittins index on GPU time: who is most likely to end soon, given what it has had: `gittins`.

Needs to know how long jobs are, but not which.
"""

from dataclasses import dataclass

import numpy as np

from scheduler.policies.interface import WAITING, Floats, Plan, Snapshot
from scheduler.policies.parts.fixed import Gangs, Verdict, gangs, sweep, write
from scheduler.policies.ranges import Amount

#: As many of the jobs there are stand for all of them, evenly spread over their service.
_SAMPLES = 512
#: As many (attained, sample) pairs are looked at in one piece of work, to stay in the cache.
_PIECE = 1 << 15


def gittins_rank(attained: Floats, samples: Floats) -> Floats:
    """(n,) the index of jobs that have had so much service: per unit, higher first.

    rank(A) = max over D of P(S - A <= D | S > A) / E[min(S - A, D) | S > A], for S drawn from the
    samples. The maximum is at a sample, D = S_j - A, so it is found among those, exactly: with the
    samples sorted, their cumulative sums c and i samples not above A, for each j >= i

        P = (j - i + 1) / (N - i)
        E = (c[j+1] - c[i] - (j - i + 1) A + (N - 1 - j) D_j) / (N - i).

    Beyond the last sample nothing is known. There the job is taken to need as much again as it
    had, so the rank is 1 / A (the released simulator has 0 there, which stops the longest jobs for
    good; it also sums S where S - A is meant).

    Args:
        attained: (n,) service so far.
        samples: (N,) service that jobs of the past took in all, in any order.
    """
    sizes = np.sort(samples)
    count = len(sizes)
    sums = np.concatenate(([0.0], np.cumsum(sizes)))
    rank: Floats = 1.0 / np.maximum(attained, 1e-9)
    first = sizes.searchsorted(attained, side="right")
    within = np.flatnonzero(first < count)
    step = max(1, _PIECE // max(count, 1))
    at = np.arange(count)
    for begin in range(0, len(within), step):
        rows = within[begin : begin + step]
        A, i = attained[rows, None], first[rows, None]
        ended = np.maximum(at - i + 1, 0)
        served = sums[1:] - sums[i] - ended * A + (count - 1 - at) * (sizes - A)
        # Of equal sizes rounding may leave nothing, or less.
        served = np.where(ended > 0, np.maximum(served, ended * 1e-9), 1.0)
        rank[rows] = (ended / served).max(axis=1)
    return rank


@dataclass(frozen=True, slots=True)
class Gittins:
    """Gittins index on attained GPU time (Tiresias' 2D-Gittins).

    All jobs are ordered by rank, then submission, and served in that order: who fits runs, others
    are preempted and passed. (The paper's variant has queues by thresholds of service, too.)

    The index needs the distribution of service. Without `samples` it is that of the jobs there
    are, each with the GPU time it had and what is left of it at the size it asks for: which job is
    how long is not used. (The released simulator reads a file of GPU times from another cluster.
    With no distribution at all the index would be that of least attained service, and two like
    jobs would take turns at every decision.) A long job is there for longer, so such samples lean
    to the long side; `samples` of jobs that have ended do not.

    What we do differently: a job that started a moment ago goes first until it has run for `settle`
    times its own pauses, since ranks that cross would swap two gangs again and again; the service
    beyond the last sample has a rank; equal ranks keep who runs.
    """

    name: str = "gittins"
    samples: tuple[Amount, ...] = ()  #: GPU-seconds that jobs took in all; (): as above.
    settle: Amount = 2.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """Serve by rank."""
        found = gangs(snapshot)
        rank, order = self._order(found)
        given = sweep(found, order)
        return write(found, Verdict(given, "gittins.rank", figures={"rank_per_gpu_s": rank}))

    def queue(self, snapshot: Snapshot) -> list[str]:
        """Name the waiting jobs in the order of their turns."""
        found, jobs = gangs(snapshot), snapshot.jobs
        _, order = self._order(found)
        return [jobs.ids[job] for job in order if jobs.phase[job] == WAITING]

    def _order(self, found: Gangs) -> tuple[Floats, list[int]]:
        """Give (n,) ranks, and the gangs that run or may in the order of their turns."""
        jobs = found.seen.jobs
        samples = np.array(self.samples) if self.samples else _present(found)
        rank = gittins_rank(jobs.attained_gpu_s, samples)
        pause_s = jobs.checkpoint_cost_s + jobs.start_cost_s
        fresh = found.runs & (found.seen.now_s - jobs.changed_s < self.settle * pause_s)
        order = np.lexsort((~found.runs, -rank, ~fresh))
        turns: list[int] = order[(found.runs | found.starts)[order]].tolist()
        return rank, turns


def _present(found: Gangs) -> Floats:
    """(s,) GPU-seconds that the jobs there are take in all, `_SAMPLES` at most."""
    rows = np.flatnonzero((found.size > 0) & np.isfinite(found.left_s))
    left = found.left_s[rows] * found.size[rows]
    whole = np.sort(found.seen.jobs.attained_gpu_s[rows] + left)
    if len(whole) <= _SAMPLES:
        return whole
    return whole[np.linspace(0, len(whole) - 1, _SAMPLES).astype(np.int64)]
