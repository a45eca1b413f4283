"""ElasticFlow: admit what can be in time, give each job the least it needs, then the rest."""

import math
from dataclasses import dataclass, replace

import numpy as np

from scheduler.policies.interface import Figure, Ints, Need, Phase, Plan, Snapshot
from scheduler.policies.parts.allot import Because
from scheduler.policies.parts.minimum import Least, Ledger, plan_least
from scheduler.policies.parts.problem import Problem, problems, write
from scheduler.policies.parts.share import Demand, Profile, curve, fill
from scheduler.policies.parts.surplus import best_effort_price, share_out
from scheduler.policies.ranges import Amount

#: The note on a job that takes part.
ADMITTED = (1.0,)


@dataclass(frozen=True, slots=True)
class ElasticFlow:
    """Admit a job only if all that were admitted, and it, are seen to meet their deadlines.

    Rule (Gu et al., ASPLOS '23, as recalled, and as read in the released code):

    1. A new job is admitted if progressive filling, by deadline, in the work that is left now,
       finds a plan in which every admitted job is in time. Otherwise it is declined for good. All
       that arrived since the last plan stand or fall together, as in the released code.
       Jobs without a deadline are always admitted, as best effort.
    2. Each job gets its minimum satisfactory share: the least GPU-time that keeps its deadline,
       filled backwards from the deadline, so it may be nothing for now (`minimum.least`).
    3. What is left goes to jobs without a GPU, then by marginal return (`surplus`).

    Knows deadlines, lengths and speeds at all sizes. Optimises the number of deadlines met. The
    test shows a plan, so it is sufficient, not necessary.

    Differences: time is continuous and nothing is rounded but the moment of growth; an admitted
    job whose deadline was lost all the same (a pause, a wrong estimate) goes on as best effort, and
    no longer takes part in the admission of others; jobs compete in one pool each, the one with the
    most GPUs per job; a surplus is valued by its price (`surplus`), not by planning anew. Costs
    O(n k S) for n jobs, k sizes and S ~ 2 n steps of the free profile, twice when a job arrives.

    Attributes:
        slot_s: Grid of the moments at which jobs are planned to grow. The paper simulates 60 s.
    """

    name: str = "elasticflow"
    slot_s: Amount = 60.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """Admit, then decide all sizes."""
        jobs = snapshot.jobs
        decided: list[tuple[Problem, Ints]] = []
        why: dict[int, Because] = {}
        notes: dict[str, tuple[float, ...]] = {}
        decline: list[str] = []
        for problem in problems(snapshot):
            demands = demands_of(snapshot, problem)
            verdict, order, ledger = self._admit(snapshot, problem, demands)
            for index, ok in verdict.items():
                name = jobs.ids[problem.rows[index]]
                if ok:
                    notes[name] = ADMITTED
                else:
                    decline.append(name)
            mine = [demands[index] for index in order]
            price = [
                best_effort_price(demand) if own is None else own.price
                for demand, own in zip(mine, ledger.least, strict=True)
            ]
            gpus = np.zeros(len(demands), dtype=np.int64)
            free = int(ledger.profile.free[0])
            gpus[order] = share_out(ledger.gpus_now, free, mine, price)
            decided.append((problem, problem.sizes.searchsorted(gpus)))
            for index in sorted(set(range(len(demands))) - set(order)):
                why[int(problem.rows[index])] = _declined(snapshot, problem, demands[index])
            for index, own in zip(order, ledger.least, strict=True):
                why[int(problem.rows[index])] = _cause(demands[index], own, int(gpus[index]))
        plan = write(snapshot, decided, "elasticflow.share", why=why, notes=notes)
        return replace(plan, decline=tuple(decline))

    def _admit(
        self, seen: Snapshot, problem: Problem, demands: list[Demand]
    ) -> tuple[dict[int, bool], list[int], Ledger]:
        """Decide about those not decided about yet.

        Returns:
            Index in the problem -> whether it is admitted, of those; all that are admitted, by
            deadline; their plan.
        """
        jobs, rows = seen.jobs, problem.rows
        fresh = np.isnan(jobs.notes[rows, 0])
        # What runs already does so under another policy until now: nothing was asked of this one.
        passes = (jobs.size[rows] > 0) | np.isinf(jobs.deadline_s[rows])
        verdict = dict.fromkeys(np.flatnonzero(fresh & passes).tolist(), True)
        new = [index for index in by_deadline(demands) if fresh[index] and not passes[index]]
        may = (jobs.notes[rows, 0] == ADMITTED[0]) | (fresh & passes)
        order = [index for index in by_deadline(demands) if may[index]]

        def plan(order: list[int]) -> Ledger:
            mine = [demands[index] for index in order]
            return plan_least(profile_of(seen, problem), mine, self.slot_s)

        ledger = plan(order)
        if new:
            tried = sorted([*order, *new], key=lambda i: (demands[i].deadline_s, i))
            found = plan(tried)
            safe = {i for i, own in zip(order, ledger.least, strict=True) if own is not None}
            met = {i for i, own in zip(tried, found.least, strict=True) if own is not None}
            ok = met >= safe.union(new)
            verdict.update(dict.fromkeys(new, ok))
            if ok:
                order, ledger = tried, found
        return verdict, order, ledger


def demands_of(seen: Snapshot, problem: Problem) -> list[Demand]:
    """Return what each job of a problem has left to do."""
    rate = np.where(problem.allowed[:, 1:], problem.rate[:, 1:], 0.0)
    due_s = seen.jobs.deadline_s[problem.rows]
    return [
        Demand(work, deadline_s, curve(problem.sizes[1:], row))
        for work, deadline_s, row in zip(problem.work.tolist(), due_s.tolist(), rate, strict=True)
    ]


def by_deadline(demands: list[Demand]) -> list[int]:
    """Return indices by deadline, then by index."""
    return sorted(range(len(demands)), key=lambda i: (demands[i].deadline_s, i))


def profile_of(seen: Snapshot, problem: Problem) -> Profile:
    """Return what the jobs of a problem may plan with: the pool, less those between allocations.

    What a MOVING job is going to hold comes free when it ends there.
    """
    jobs = seen.jobs
    rows = np.flatnonzero((jobs.phase == Phase.MOVING) & (jobs.pool == problem.pool))
    level = np.minimum(np.searchsorted(jobs.sizes, jobs.size[rows]), len(jobs.sizes) - 1)
    rate = jobs.rate[rows, level] * jobs.affinity[rows, problem.pool]
    ends = (jobs.size[rows] > 0) & (rate > 0.0)
    rows, rate = rows[ends], rate[ends]
    end_s = seen.now_s + np.maximum(jobs.remaining_steps[rows] / rate, 1.0)
    order = np.argsort(end_s, kind="stable")
    starts_s = np.concatenate(([seen.now_s], end_s[order]))
    free = np.cumsum(np.concatenate(([problem.gpus], jobs.size[rows][order])))
    last = np.append(starts_s[1:] > starts_s[:-1], True)
    return Profile(starts_s[last], free[last].astype(np.int64))


def _cause(demand: Demand, own: Least | None, gpus: int) -> Because:
    if math.isinf(demand.deadline_s):
        return Because("elasticflow.best_effort")
    due = Figure("deadline_s", demand.deadline_s)
    if own is None:
        return Because("elasticflow.late", (), (due,))
    figures = (
        Figure("least_gpus", own.filling.now),
        Figure("planned_end_s", own.filling.end_s),
        due,
    )
    rule = "elasticflow.share" if gpus <= own.filling.now else "elasticflow.surplus"
    return Because(rule, (), figures)


def _declined(seen: Snapshot, problem: Problem, demand: Demand) -> Because:
    alone = Profile(np.array([seen.now_s]), np.array([problem.gpus], dtype=np.int64))
    own = fill(alone, replace(demand, deadline_s=math.inf))
    need = Need("deadline_s", demand.deadline_s, max(own.end_s, demand.deadline_s))
    return Because("elasticflow.declined", (), (Figure("alone_end_s", own.end_s),), (need,))
