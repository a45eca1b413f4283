"""DeepBoot: sizes by a knapsack of speed-ups, on training GPUs and on idle inference GPUs.

The policy is its training side, ATS-T; nodes are lent whole here, so the inference side, which
shares single GPUs between pods and jobs, has no part.
"""

from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import Floats, Ints, Kind, Plan, Snapshot
from scheduler.policies.literature.pollux import largest_yet, speedups, twice
from scheduler.policies.parts.knapsack import exact
from scheduler.policies.parts.lending import lend_and_reclaim
from scheduler.policies.parts.loans import LoanOptions
from scheduler.policies.parts.problem import Problem, problems, write
from scheduler.policies.ranges import Amount


@dataclass(frozen=True, slots=True)
class DeepBoot:
    """Maximises the sum of speed-ups over a fair share, loaned GPUs included.

    A size other than the present one counts max(T - 10 r, 0) / (T + 10) of its speed-up, with T
    the age and r the restarts. No GPUs count 0, so a job that would gain little may be stopped;
    only the fair share in the denominator is fair. Sizes are planned again at most every
    `interval_s`; a node that goes back is given up at once. The small gangs are placed first, each
    in the fullest node that fits.

    Differences: loans are of whole nodes, by `loans`; the published program lends GPU by GPU and
    asks no forecast. A job lives in one pool. A job that
    waits pays no factor, else it could not start at its submission.

    Knows the goodput curve. Cost: O(n k) and a program over what the bound leaves open.
    """

    name: str = "deepboot"
    loans: LoanOptions = field(default_factory=LoanOptions)
    restart_s: Amount = 10.0
    interval_s: Amount = 60.0
    doubling: bool = True  #: at most twice the most GPUs a job ever had.

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide loans and all sizes."""
        if not len(snapshot.jobs.sizes) or not len(snapshot.nodes.ids):
            return Plan()
        loans = lend_and_reclaim(snapshot, self.loans, edge=False)
        node_ids, jobs = snapshot.nodes.ids, snapshot.jobs
        reclaim = {node_ids[node]: due_s for node, due_s in sorted(loans.reclaim.items())}
        decided: list[tuple[Problem, Ints]] = []
        notes: dict[str, tuple[float, ...]] = {}
        size = np.zeros(len(jobs.ids), dtype=np.int64)
        for problem in problems(snapshot, (Kind.TRAINING, Kind.INFERENCE), reclaim):
            most = largest_yet(snapshot, problem)
            level = self._choose(snapshot, problem, most)
            decided.append((problem, level))
            size[problem.rows] = problem.sizes[level]
            if self.doubling:
                for at in np.flatnonzero(problem.sizes[level] > most).tolist():
                    notes[jobs.ids[problem.rows[at]]] = (float(problem.sizes[level[at]]),)
        return write(
            snapshot,
            decided,
            "deepboot.speedup",
            order=np.lexsort((np.arange(len(size)), size)).tolist(),
            notes=notes,
            lend=tuple(node_ids[node] for node in sorted(loans.lend)),
            reclaim=reclaim,
            reasons=tuple(loans.reasons),
        )

    def _choose(self, seen: Snapshot, problem: Problem, most: Ints) -> Ints:
        value = speedups(seen, problem, self.restart_s)
        allowed = twice(problem, most) if self.doubling else problem.allowed
        value = np.where(allowed, value, -np.inf)
        # Who changed a moment ago keeps its level: it is the only one, and where it starts.
        fresh = seen.now_s - seen.jobs.changed_s[problem.rows] < self.interval_s
        kept = np.where(fresh, problem.present, 0)
        value = _only(value, kept)
        left = problem.gpus - int(problem.sizes[kept].sum())
        return exact(problem.sizes, value, kept, left).level


def _only(value: Floats, kept: Ints) -> Floats:
    """(r, k) the worths, of jobs that keep a level those of no other."""
    others = (kept > 0)[:, None] & (np.arange(value.shape[1])[None, :] != kept[:, None])
    found: Floats = np.where(others, -np.inf, value)
    # Its own may lie beyond what doubling allows, if the engine placed it otherwise.
    rows = np.flatnonzero(kept)
    found[rows, kept[rows]] = np.maximum(found[rows, kept[rows]], 0.0)
    return found
