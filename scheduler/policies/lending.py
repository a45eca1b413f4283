"""Turns lenders' decisions into nodes: as many as training can use, and the cheapest to return."""

from collections.abc import Sequence

import numpy as np

from scheduler.policies.draft import Draft
from scheduler.policies.interface import Bools, Kind, Lender, LoanPhase, Phase
from scheduler.policies.loans import Decision, LoanOptions, decide, lends, reclaims
from scheduler.policies.victims import RULES, Tenant, Victims, choose

#: What preempting a job is taken to cost it in waiting for its next start, beside its pause.
REQUEUE_S = 600.0
#: Nodes of a job that may not be touched now are emptied last: it must first come to rest.
_MOVING_COST = 100.0


def lend_and_reclaim(
    draft: Draft, options: LoanOptions, rules: Sequence[str] = RULES, *, edge: bool = True
) -> None:
    """Decide all loans, into `draft.loans`.

    Args:
        draft: The plan being made.
        options: When to lend and when to reclaim.
        rules: How victims of a reclaim are chosen; the cheapest answer of all wins.
        edge: Whether edge nodes are asked for; those that were lent go back in any case.
    """
    snapshot = draft.snapshot
    if not snapshot.lenders:
        return
    decisions = decide(snapshot, lambda lender: _notice_s(draft, lender), options)
    if not any(decision.reclaim or decision.lend for decision in decisions):
        return
    appetite = _Appetite(draft)
    for decision in decisions:
        lender = snapshot.lenders[decision.lender]
        if decision.reclaim:
            _reclaim(draft, lender, decision, rules)
        elif decision.lend and (edge or not _at_edge(draft, lender)):
            wanted = appetite.take(lender, decision.lend)
            draft.loans.lend.extend(wanted)
            draft.loans.reasons.extend(lends(snapshot.nodes.ids[node], decision) for node in wanted)


def _notice_s(draft: Draft, lender: Lender) -> float:
    """Return the longest checkpoint of the jobs on a lender's nodes, in seconds."""
    jobs = draft.snapshot.holdings.job[_on(draft, lender)]
    return float(draft.snapshot.jobs.checkpoint_cost_s[jobs].max()) if len(jobs) else 0.0


def _on(draft: Draft, lender: Lender) -> Bools:
    """(h,) holdings on a lender's nodes."""
    mine = np.zeros(len(draft.snapshot.nodes.ids), dtype=np.bool_)
    mine[lender.nodes] = True
    held: Bools = mine[draft.snapshot.holdings.node]
    return held


class _Appetite:
    """How many more GPUs training could use. Lending more would only cost the owner."""

    def __init__(self, draft: Draft) -> None:
        jobs, curve, self.nodes = draft.snapshot.jobs, draft.curve, draft.snapshot.nodes
        self.pools = draft.snapshot.pools
        self.jobs = jobs
        waits = jobs.phase == Phase.WAITING
        self.able = curve.runnable & (jobs.phase != Phase.MOVING)
        self.more = np.where(self.able, curve.sizes[curve.top] - jobs.size, 0)
        self.base = curve.sizes[curve.base]
        # At an edge node go jobs that wait, or that a deadline may drive there.
        self.edge = self.able & jobs.edge_allowed & (waits | np.isfinite(jobs.deadline_s))
        kind = self.pools.kind[self.nodes.pool]
        idle = np.where(self.nodes.usable, self.nodes.free, 0)
        coming = np.where(self.nodes.loan == LoanPhase.LENDING, self.nodes.gpus, 0)
        self.cloud_free = int((idle + coming)[kind != Kind.EDGE].sum())
        self.edge_free = int(((idle + coming) > 0)[kind == Kind.EDGE].sum())

    def take(self, lender: Lender, offered: Sequence[int]) -> list[int]:
        """Return those of the offered nodes that training could use."""
        pool = int(self.nodes.pool[offered[0]])
        fits = self.jobs.memory_mib <= self.pools.gpu_memory_mib[pool]
        if self.pools.kind[pool] == Kind.EDGE:
            fits &= self.edge & (self.base <= self.nodes.gpus[offered[0]])
            wanted = list(offered[: max(0, int(fits.sum()) - self.edge_free)])
            self.edge_free += len(wanted)
            return wanted
        hunger = int(self.more[fits].sum()) - self.cloud_free
        wanted = []
        for node in offered:
            if hunger <= 0:
                break
            wanted.append(node)
            hunger -= int(self.nodes.gpus[node])
            self.cloud_free += int(self.nodes.gpus[node])
        return wanted


def _at_edge(draft: Draft, lender: Lender) -> bool:
    snapshot = draft.snapshot
    return bool((snapshot.pools.kind[snapshot.nodes.pool[lender.nodes]] == Kind.EDGE).any())


def _reclaim(draft: Draft, lender: Lender, decision: Decision, rules: Sequence[str]) -> None:
    snapshot = draft.snapshot
    tenants, names = _tenants(draft, lender)
    found: Victims = choose(tenants, decision.reclaim_from, decision.reclaim, rules)
    stops = [names[index] for index in found.stopped]
    shrinks = [names[index] for index in found.shrunk]
    # The nodes that are free soonest are given back for the earliest needs.
    load = {node: sum(node in t.held for t in tenants) for node in found.nodes}
    order = sorted(found.nodes, key=lambda node: (load[node], node))
    for node, due_s in zip(order, decision.dues_s, strict=True):
        draft.loans.reclaim[node] = due_s
        on_it = [names[i] for i, tenant in enumerate(tenants) if node in tenant.held]
        losers = [name for name in on_it if name in stops or name in shrinks]
        reason = reclaims(
            lender, snapshot.nodes.ids[node], decision, due_s - snapshot.now_s, found.rule, losers
        )
        draft.loans.reasons.append(reason)


def _tenants(draft: Draft, lender: Lender) -> tuple[list[Tenant], list[str]]:
    """Return the jobs on a lender's nodes, with what preempting each would cost in GPU-seconds."""
    jobs, curve, holdings = draft.snapshot.jobs, draft.curve, draft.snapshot.holdings
    on_lender = holdings.job[_on(draft, lender)]
    tenants, names = [], []
    for job in np.unique(on_lender).tolist():
        mine = holdings.job == job
        held = dict(zip(holdings.node[mine].tolist(), holdings.gpus[mine].tolist(), strict=True))
        size = sum(held.values())
        level = max(int(curve.present[job]), 0)
        rate = max(float(curve.rate[job, level]), 1e-12)
        lost_s = float(jobs.checkpoint_age_steps[job]) / rate
        stop = size * (lost_s + float(curve.change_s[job]) + REQUEUE_S)
        if draft.movable[job]:
            base = int(curve.sizes[curve.base[job]])
            tenants.append(Tenant(base, held, stop, size * float(curve.change_s[job])))
        else:
            tenants.append(Tenant(size, held, stop * _MOVING_COST))
        names.append(jobs.ids[job])
    return tenants, names
