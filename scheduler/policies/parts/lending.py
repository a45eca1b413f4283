"""Turns lenders' decisions into nodes: as many as training can use, and the cheapest to return."""

from collections.abc import Mapping, Sequence
from functools import cache, partial

import numpy as np

from scheduler.policies.interface import (
    MOVING,
    RUNNING,
    WAITING,
    Bools,
    Floats,
    Ints,
    Kind,
    LoanPhase,
    Snapshot,
)
from scheduler.policies.parts.curves import Curves, curves
from scheduler.policies.parts.loans import LoanOptions, Loans, Offer, Outlook, reclaims
from scheduler.policies.parts.victims import RULES, Occupant, Victims, choose

_TRAINING, _EDGE = int(Kind.TRAINING), int(Kind.EDGE)
_OWNED, _LENDING, _LENT = map(int, (LoanPhase.OWNED, LoanPhase.LENDING, LoanPhase.LENT))
#: What preempting a job is taken to cost it in waiting for its next start, beside its pause.
REQUEUE_S = 600.0
#: A job that runs elsewhere wants a lent node only if it would run faster there by this factor.
MOVE_GAIN = 1.15
#: Nodes of a job that may not be touched now are emptied last: it must first come to rest.
_MOVING_COST = 100.0


def lend_and_reclaim(
    seen: Snapshot,
    options: LoanOptions,
    rules: Sequence[str] = RULES,
    *,
    edge: bool = True,
    wanted: bool = True,
) -> Loans:
    """Decide all loans.

    Args:
        seen: What is known.
        options: When to lend and when to reclaim.
        rules: How victims of a reclaim are chosen; the cheapest answer of all wins.
        edge: Whether edge nodes are asked for; those that were lent go back in any case.
        wanted: Whether only as many nodes are lent as jobs could use GPUs, wherever these are; else
            all that owners can spare: `Loans.lend_only` chooses of them, and says why.
    """
    loans = Loans()
    if not seen.lenders:
        return loans
    outlook = Outlook(seen, options, _notices_s(seen, options))
    offers = outlook.offers()
    acting: list[int] = outlook.takes.nonzero()[0].tolist()
    if not offers and not acting:
        return loans
    curve = cache(partial(curves, seen.jobs))  # few plans need it
    if wanted and offers:
        offers = _wanted(seen, curve(), offers, edge)
    for index in sorted([*acting, *offers]):
        if index not in offers:
            _reclaim(seen, curve(), outlook, index, rules, loans)
        elif nodes := offers[index]:
            loans.lend += nodes
            why = partial(outlook.lends, index, nodes)
            loans.offers.append(Offer(nodes, why, len(loans.reasons)))
    if wanted:
        loans.lend_only(seen.nodes.ids, frozenset(loans.lend))
    return loans


def reclaim_only(seen: Snapshot) -> Loans:
    """Decide which loans end, and make none: for policies that do not lend.

    A cell's policy may be changed, or another stand in for it, while nodes are on loan.
    """
    loan = seen.nodes.loan
    if not np.count_nonzero((loan == _LENT) | (loan == _LENDING)):
        return Loans()
    loans = lend_and_reclaim(seen, LoanOptions())
    back = [reason for reason in loans.reasons if reason.verb == "reclaims"]
    return Loans(reclaim=loans.reclaim, reasons=back)


def foreseen(
    seen: Snapshot, options: LoanOptions
) -> list[tuple[str, list[tuple[float, float, float]]]]:
    """Give by lender what it is forecast to need, as loans are decided on.

    Each row: seconds from now at which a slot begins, the GPUs needed in it, and these with what is
    kept beside the forecast. One whose report is too old is left out.
    """
    if not seen.lenders:
        return []
    outlook = Outlook(seen, options, _notices_s(seen, options))
    demand, starts_s = outlook.forecast.demand_gpus, outlook.forecast.starts_s()
    beside = np.maximum(outlook.headroom, 0.0)  # of the present slot nothing is unknown
    high = np.concatenate((demand[:, :1], demand[:, 1:] + beside[:, None]), axis=1)
    told = np.isfinite(demand)
    return [
        (
            lender.id,
            [
                (float(starts_s[index, slot]), float(demand[index, slot]), float(high[index, slot]))
                for slot in told[index].nonzero()[0]
            ],
        )
        for index, lender in enumerate(seen.lenders)
        if outlook.fresh[index]
    ]


def _notices_s(seen: Snapshot, options: LoanOptions) -> Floats:
    """(l,) longest checkpoint of the jobs on each lender's nodes; 0 if the lead is enough for all.

    In seconds.
    """
    found = np.zeros(len(seen.lenders))
    cost_s, held = seen.jobs.checkpoint_cost_s, seen.holdings
    slow = cost_s + options.warm_up_s > options.lead_s
    if np.count_nonzero(slow):
        owner = np.full(len(seen.nodes.ids), -1)
        for index, lender in enumerate(seen.lenders):
            owner[lender.nodes] = index
        some = slow[held.job] & (owner[held.node] >= 0)
        np.maximum.at(found, owner[held.node[some]], cost_s[held.job[some]])
    return found


def _wanted(
    seen: Snapshot, curve: Curves, offers: Mapping[int, list[int]], edge: bool
) -> dict[int, list[int]]:
    """Return those of o lenders' nodes that training could use. More would only cost the owner.

    A job that runs is of use to a lent node only where it is, or where it would run faster by
    moving: its GPUs are all in one pool.
    """
    jobs, nodes, pools = seen.jobs, seen.nodes, seen.pools
    first = np.array([offered[0] for offered in offers.values()])
    kind, pool = pools.kind[nodes.pool], nodes.pool[first]
    at_edge = kind[first] == _EDGE
    waits = jobs.phase == WAITING
    able = curve.runnable & (jobs.phase != MOVING)
    spare = nodes.free + nodes.gpus * (nodes.loan == _LENDING)
    # Edge nodes, also of this plan, that jobs go to first.
    free = int(np.count_nonzero((spare > 0) & (kind == _EDGE)))
    # (o,) jobs that could go to an edge node, or GPUs more that jobs could use in another pool.
    hunger = np.zeros(len(first), dtype=np.int64)
    # At an edge node go jobs that wait, or that a deadline may drive there.
    guests = able & jobs.edge_allowed & (waits | np.isfinite(jobs.deadline_s))
    if edge and np.count_nonzero(guests) > free:
        rows = guests.nonzero()[0]
        fits = jobs.affinity[rows].take(pool, axis=1) > 0
        fits &= jobs.memory_mib[rows, None] <= pools.gpu_memory_mib[pool]
        fits &= curve.sizes[curve.base[rows]][:, None] <= nodes.gpus[first]
        hunger = fits.sum(axis=0)
    if np.count_nonzero(at_edge) < len(first):
        there = pool[~at_edge]
        pace = jobs.affinity.take(there, axis=1)
        rows, most = np.arange(len(jobs.ids)), curve.sizes[curve.top]
        now = np.where(waits, 0.0, jobs.affinity[rows, jobs.pool])
        now = curve.rate[rows, np.maximum(curve.present, 0)] * now * MOVE_GAIN
        more = most[:, None] * (curve.rate[rows, curve.top, None] * pace > now[:, None])
        more = np.where(jobs.pool[:, None] == there, (most - jobs.size)[:, None], more)
        more *= (
            able[:, None] & (pace > 0) & (jobs.memory_mib[:, None] <= pools.gpu_memory_mib[there])
        )
        at_hand = np.bincount(nodes.pool, spare, len(pools.ids))
        at_hand = at_hand[there] + at_hand[pools.kind == _TRAINING].sum()
        hunger[~at_edge] = more.sum(axis=0) - at_hand
    asked = 0  # GPUs, of other lenders in this plan
    found: dict[int, list[int]] = {}
    for (lender, offered), is_edge, want in zip(
        offers.items(), at_edge.tolist(), hunger.tolist(), strict=True
    ):
        if is_edge:
            found[lender] = offered[: max(0, want - free)]
            free += len(found[lender])
            continue
        found[lender] = []
        for node in offered:
            if want <= asked:
                break
            found[lender].append(node)
            asked += int(nodes.gpus[node])
    return found


def _reclaim(
    seen: Snapshot, curve: Curves, outlook: Outlook, index: int, rules: Sequence[str], loans: Loans
) -> None:
    lender, decision = seen.lenders[index], outlook.reclaims(index)
    if not decision.reclaim:
        return
    occupants, names = _occupants(seen, curve, lender.nodes)
    found: Victims = choose(occupants, decision.reclaim_from, decision.reclaim, rules)
    lose = {*found.stopped, *found.shrunk}  # asked only for membership
    on_node: dict[int, list[int]] = {node: [] for node in found.nodes}
    for index, occupant in enumerate(occupants):
        for node in occupant.held:
            if node in on_node:
                on_node[node].append(index)
    # The nodes that are free soonest are given back for the earliest needs.
    order = sorted(found.nodes, key=lambda node: (len(on_node[node]), node))
    for node, due_s in zip(order, decision.dues_s, strict=True):
        loans.reclaim[node] = due_s
        losers = [names[index] for index in on_node[node] if index in lose]
        reason = reclaims(
            lender, seen.nodes.ids[node], decision, due_s - seen.now_s, found.rule, losers
        )
        loans.reasons.append(reason)


def _occupants(seen: Snapshot, curve: Curves, nodes: Ints) -> tuple[list[Occupant], list[str]]:
    """Return the jobs on a lender's nodes, with what preempting each would cost in GPU-seconds."""
    jobs, holdings = seen.jobs, seen.holdings
    theirs = np.zeros(len(seen.nodes.ids), dtype=np.bool_)
    theirs[nodes] = True
    touched = np.zeros(len(jobs.ids), dtype=np.bool_)
    touched[holdings.job[theirs[holdings.node]]] = True
    mine = touched[holdings.job]
    rows = np.flatnonzero(touched)
    movable = _movable(seen, curve)
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
    occupants = []
    for index, (job, where) in enumerate(held.items()):
        size = sum(where.values())
        stop = size * wasted_s[index]
        if movable[job]:
            occupants.append(Occupant(base[index], where, stop, size * pause_s[index]))
        else:
            occupants.append(Occupant(size, where, stop * _MOVING_COST))
    return occupants, [jobs.ids[job] for job in held]


def _movable(seen: Snapshot, curve: Curves) -> Bools:
    """(n,) jobs that may be touched: they run, all is shown, and they may be as they are."""
    jobs, holdings = seen.jobs, seen.holdings
    shown = np.bincount(holdings.job, holdings.gpus, len(jobs.ids))
    found: Bools = (jobs.phase == RUNNING) & (shown == jobs.size) & (shown > 0)
    found &= curve.present >= 0
    found &= jobs.affinity[np.arange(len(jobs.ids)), jobs.pool] > 0
    return found
