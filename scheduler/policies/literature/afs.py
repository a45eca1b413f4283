"""AFS, apathetic future share (NSDI '21): short jobs against efficient ones, pair by pair."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler.policies.interface import Floats, Ints, Plan, Snapshot
from scheduler.policies.parts.problem import Problem, problems, write
from scheduler.policies.ranges import Positive


@dataclass(frozen=True, slots=True)
class Afs:
    """Minimises the mean completion time without counting on GPUs that may never come free.

    A GPU is given to the winner of a tournament over all jobs. Of two jobs, a that
    would end first and b, b wins if and only if (p'b - pb) / p'b > (p'a - pa) / pa, with p the
    speed now and p' with one more: when a has ended, b gets that GPU anyway. A job that holds
    nothing counts as the longer one, of two such jobs the shorter wins, and a tie goes to the one
    that holds nothing.

    `lengths="unknown"` takes attained service for length, the less the shorter, in steps of
    `quantum_gpu_s`, so that a job is overtaken by those that had less and nobody starves (the
    paper's variant, as recalled, divides time likewise).

    Differences: the relation is not transitive, so who meets whom matters; the paper (as recalled)
    goes through a list, here neighbours meet, then the winners, all in order of length at the
    smallest size, then of index, so that a change is played again in log n meetings. Sizes need
    not step by one GPU, so gains are per GPU of the next allowed size.

    Cost: O(n k + steps log n); there are as many steps as levels given, at most n k.
    """

    name: str = "afs"
    lengths: Literal["known", "unknown"] = "known"
    quantum_gpu_s: Positive = 3600.0  #: only for unknown lengths.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide all sizes."""
        decided = []
        for problem in problems(snapshot):
            served = np.floor(snapshot.jobs.attained_gpu_s[problem.rows] / self.quantum_gpu_s)
            level = share(problem, None if self.lengths == "known" else served)
            decided.append((problem, level))
        return write(snapshot, decided, "afs.two_jobs")


def share(problem: Problem, served: Floats | None = None) -> Ints:
    """Hold tournaments until no GPU is free or nobody gains.

    Args:
        problem: Who takes part.
        served: (r,) stands for the length of each job; None: the run time at its present level.

    Returns:
        (r,) levels.
    """
    rows = np.arange(len(problem.rows))
    first = problem.work / problem.rate[rows, problem.base] if served is None else served
    order = np.lexsort((rows, first))
    field = _Field(problem, order, None if served is None else served[order])
    left = problem.gpus
    while left > 0 and (winner := field.winner()) >= 0:
        step = field.step[winner]
        if step > left:
            field.retire(winner)
            continue
        left -= step
        field.advance(winner)
    found: Ints = np.zeros(len(rows), dtype=np.int64)
    found[order] = field.level
    return found


class _Field:
    """A tournament that is held again after every change, of which it plays only what changed.

    Plain lists: one pair at a time is compared, and numpy is slow at single numbers.
    """

    def __init__(self, problem: Problem, order: Ints, served: Floats | None) -> None:
        n = len(order)
        self._sizes: list[int] = problem.sizes.tolist()
        self._rate: list[list[float]] = problem.rate[order].tolist()
        self._next: list[list[int]] = _next_level(problem.allowed[order]).tolist()
        self._work: list[float] = problem.work[order].tolist()
        self._known = served is None
        self._length: list[float] = [np.inf] * n if served is None else served.tolist()
        self.level = [0] * n
        self.step = [0] * n  #: GPUs that each job would be given next; 0: no more.
        #: What each job would gain per GPU, as the longer of two and as the shorter.
        self._as_long, self._as_short = [0.0] * n, [0.0] * n
        self._leaves = 1 << max(n - 1, 0).bit_length()
        self._tree = [-1] * (2 * self._leaves)
        for job in range(n):
            self._look(job)
            self._tree[self._leaves + job] = job if self.step[job] else -1
        for at in range(self._leaves - 1, 0, -1):
            self._tree[at] = self._meet(self._tree[2 * at], self._tree[2 * at + 1])

    def winner(self) -> int:
        """Return who wins; -1 if nobody would gain anything."""
        return self._tree[1]

    def advance(self, job: int) -> None:
        """Give a job its next level."""
        self.level[job] = self._next[job][self.level[job]]
        if self._known:
            self._length[job] = self._work[job] / self._rate[job][self.level[job]]
        self._look(job)
        self._play(job, enters=self.step[job] > 0)

    def retire(self, job: int) -> None:
        """Leave a job out from now on."""
        self._play(job, enters=False)

    def _play(self, job: int, *, enters: bool) -> None:
        at = self._leaves + job
        self._tree[at] = job if enters else -1
        while at > 1:
            at //= 2
            self._tree[at] = self._meet(self._tree[2 * at], self._tree[2 * at + 1])

    def _meet(self, i: int, j: int) -> int:
        """Return the winner of two, of whom i is the earlier."""
        if i < 0 or j < 0:
            return max(i, j)
        if not self.level[i]:
            if not self.level[j]:
                return i  # the one that is shorter at its smallest size
            return j if self._as_short[j] > self._as_long[i] else i
        if not self.level[j]:
            return j if self._as_long[j] >= self._as_short[i] else i
        if self._length[j] >= self._length[i]:
            return j if self._as_long[j] > self._as_short[i] else i
        return i if self._as_long[i] > self._as_short[j] else j

    def _look(self, job: int) -> None:
        """See what the next level of a job would give it."""
        to = self._next[job][self.level[job]]
        now = self._rate[job][self.level[job]]
        then = self._rate[job][to] if to >= 0 else now
        if then <= now:
            self.step[job] = 0
            return
        more = self._sizes[to] - self._sizes[self.level[job]]
        self.step[job] = more
        self._as_long[job] = (then - now) / then / more
        # A job that holds nothing gains all of the speed it then has.
        self._as_short[job] = (then - now) / now / more if now > 0 else 1.0 / more


def _next_level(allowed: np.ndarray) -> Ints:
    """(r, k) the next allowed level above each, -1 if there is none."""
    n, k = allowed.shape
    found = np.full((n, k), -1, dtype=np.int64)
    for column in range(k - 2, -1, -1):
        found[:, column] = np.where(allowed[:, column + 1], column + 1, found[:, column + 1])
    return found
