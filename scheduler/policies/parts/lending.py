"""Turns lenders' decisions into nodes: as many as training can use, and the cheapest to return."""

from collections.abc import Sequence

import numpy as np

from scheduler.policies.interface import Bools, Kind, Lender, LoanPhase, Phase
from scheduler.policies.parts.draft import Draft
from scheduler.policies.parts.loans import Decision, LoanOptions, decide, lends, reclaims
from scheduler.policies.parts.victims import RULES, Tenant, Victims, choose

#: What preempting a job is taken to cost it in waiting for its next start, beside its pause.
REQUEUE_S = 600.0
#: A job that runs elsewhere wants a lent node only if it would run faster there by this factor.
MOVE_GAIN = 1.15
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
    """How many more GPUs training could use. Lending more would only cost the owner.

    A job that runs is of use to a lent node only where it is, or where it would run faster by
    moving: its GPUs are all in one pool.
    """

    def __init__(self, draft: Draft) -> None:
        jobs, curve, self.nodes = draft.snapshot.jobs, draft.curve, draft.snapshot.nodes
        self.pools = draft.snapshot.pools
        self.jobs = jobs
        self.waits = jobs.phase == Phase.WAITING
        self.able = curve.runnable & (jobs.phase != Phase.MOVING)
        self.most = curve.sizes[curve.top]
        self.base = curve.sizes[curve.base]
        rows = np.arange(len(jobs.ids))
        self.most_rate = curve.rate[rows, curve.top]
        speed = np.where(self.waits, 0.0, jobs.affinity[rows, jobs.pool])
        self.rate_now = curve.rate[rows, np.maximum(curve.present, 0)] * speed
        # At an edge node go jobs that wait, or that a deadline may drive there.
        self.edge = self.able & jobs.edge_allowed & (self.waits | np.isfinite(jobs.deadline_s))
        self.kind = self.pools.kind[self.nodes.pool]
        idle = np.where(self.nodes.usable, self.nodes.free, 0)
        coming = np.where(self.nodes.loan == LoanPhase.LENDING, self.nodes.gpus, 0)
        self.spare = idle + coming
        self.asked = 0  # of other lenders, in this plan
        self.edge_free = int((self.spare > 0)[self.kind == Kind.EDGE].sum())

    def take(self, lender: Lender, offered: Sequence[int]) -> list[int]:
        """Return those of the offered nodes that training could use."""
        pool = int(self.nodes.pool[offered[0]])
        speed = self.jobs.affinity[:, pool]
        fits = (speed > 0) & (self.jobs.memory_mib <= self.pools.gpu_memory_mib[pool])
        if self.pools.kind[pool] == Kind.EDGE:
            fits &= self.edge & (self.base <= self.nodes.gpus[offered[0]])
            wanted = list(offered[: max(0, int(fits.sum()) - self.edge_free)])
            self.edge_free += len(wanted)
            return wanted
        gains = self.most_rate * speed > self.rate_now * MOVE_GAIN
        here = self.jobs.pool == pool
        more = np.where(here, self.most - self.jobs.size, np.where(gains, self.most, 0))
        at_hand = (self.nodes.pool == pool) | (self.kind == Kind.TRAINING)
        hunger = int(more[fits & self.able].sum()) - int(self.spare[at_hand].sum()) - self.asked
        wanted = []
        for node in offered:
            if hunger <= 0:
                break
            wanted.append(node)
            hunger -= int(self.nodes.gpus[node])
            self.asked += int(self.nodes.gpus[node])
        return wanted


def _at_edge(draft: Draft, lender: Lender) -> bool:
    snapshot = draft.snapshot
    return bool((snapshot.pools.kind[snapshot.nodes.pool[lender.nodes]] == Kind.EDGE).any())


def _reclaim(draft: Draft, lender: Lender, decision: Decision, rules: Sequence[str]) -> None:
    snapshot = draft.snapshot
    tenants, names = _tenants(draft, lender)
    found: Victims = choose(tenants, decision.reclaim_from, decision.reclaim, rules)
    lose = {*found.stopped, *found.shrunk}  # asked only for membership
    on_node: dict[int, list[int]] = {node: [] for node in found.nodes}
    for index, tenant in enumerate(tenants):
        for node in tenant.held:
            if node in on_node:
                on_node[node].append(index)
    # The nodes that are free soonest are given back for the earliest needs.
    order = sorted(found.nodes, key=lambda node: (len(on_node[node]), node))
    for node, due_s in zip(order, decision.dues_s, strict=True):
        draft.loans.reclaim[node] = due_s
        losers = [names[index] for index in on_node[node] if index in lose]
        reason = reclaims(
            lender, snapshot.nodes.ids[node], decision, due_s - snapshot.now_s, found.rule, losers
        )
        draft.loans.reasons.append(reason)


def _tenants(draft: Draft, lender: Lender) -> tuple[list[Tenant], list[str]]:
    """Return the jobs on a lender's nodes, with what preempting each would cost in GPU-seconds."""
    jobs, curve, holdings = draft.snapshot.jobs, draft.curve, draft.snapshot.holdings
    touched = np.zeros(len(jobs.ids), dtype=np.bool_)
    touched[holdings.job[_on(draft, lender)]] = True
    mine = touched[holdings.job]
    rows = np.flatnonzero(touched)
    level = np.maximum(curve.present[rows], 0)
    rate = np.maximum(curve.rate[rows, level], 1e-12)
    change_s = curve.change_s[rows]
    wasted_s = (jobs.checkpoint_age_steps[rows] / rate + change_s + REQUEUE_S).tolist()
    pause_s: list[float] = change_s.tolist()
    base: list[int] = curve.sizes[curve.base[rows]].tolist()
    held: dict[int, dict[int, int]] = {job: {} for job in rows.tolist()}
    triples = (holdings.job[mine], holdings.node[mine], holdings.gpus[mine])
    for job, node, gpus in zip(*(column.tolist() for column in triples), strict=True):
        held[job][node] = gpus
    tenants = []
    for index, (job, where) in enumerate(held.items()):
        size = sum(where.values())
        stop = size * wasted_s[index]
        if draft.movable[job]:
            tenants.append(Tenant(base[index], where, stop, size * pause_s[index]))
        else:
            tenants.append(Tenant(size, where, stop * _MOVING_COST))
    return tenants, [jobs.ids[job] for job in held]
