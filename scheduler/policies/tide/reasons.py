"""Why a job has what it has, from the figures that decided: its worth, the price, what is kept."""

from collections.abc import Mapping

import numpy as np

from scheduler.policies.interface import (
    WAITING,
    Bools,
    Figure,
    Floats,
    Ints,
    Kind,
    Need,
    Reason,
    Snapshot,
)
from scheduler.policies.parts.allot import Because, closing, no_pool
from scheduler.policies.tide.limits import Limited
from scheduler.policies.tide.market import Market
from scheduler.policies.tide.needs import gpus_more, to_keep, to_stay
from scheduler.policies.tide.prices import Cleared
from scheduler.policies.tide.promises import Promises
from scheduler.policies.tide.quotas import Quotas

#: Names that a reason lists, at most.
NAMES_MOST = 3


def explain(
    seen: Snapshot,
    market: Market,
    value: Floats,
    promises: Promises,
    quotas: Quotas,
    limited: Limited,
) -> tuple[dict[int, Because], dict[int, Reason]]:
    """Say it of all jobs on the market that change or wait: index into `Jobs` -> why.

    Of most that wait the whole reason is given, since they are many.
    """
    found = limited.found
    level, site = found.level, found.site
    told = ((level == 0) | (level != market.present) | (site != market.home)).nonzero()[0]
    why = dict[int, Because]()
    if not len(told):
        return why, {}
    per_gpu = value[site[told], told] / np.maximum(market.sizes, 1)
    at = np.where(level[told] > 0, level[told], 1 + per_gpu[:, 1:].argmax(axis=1))
    worth = np.maximum(per_gpu[np.arange(len(told)), at], 0.0)
    prices = [Figure("price_per_gpu", price) for price in found.price.tolist()]
    rivals = _Rivals(seen, market, found, quotas)
    kept = _kept(market, promises, found, told)
    moves = (level[told] > 0) & (market.home[told] >= 0) & (market.home[told] != site[told])
    stays = to_stay(market, value, found, told[moves])
    able = np.logical_or.reduce(np.logical_or.reduce(market.pays)[told], axis=1)
    bounded = (limited.limit > 0) | limited.refused
    have: list[float] = market.gpus.astype(np.float64).tolist()
    # Most of them wait since others pay more, and nothing else is to be said of them.
    plain = able & (level[told] == 0) & ~(bounded | limited.waits)[told]
    plain &= seen.jobs.phase[market.rows[told]] == WAITING
    plain[told.searchsorted([*kept])] = False
    outbid = _outbid(seen, market, found, rivals, prices, told[plain], worth[plain])
    rest = (~plain).nonzero()[0]
    told, worth, able = told[rest], worth[rest], able[rest]
    columns = (told, market.rows[told], site[told], level[told], found.missing[told], worth)
    for job, row, mine, gets, lacks, worth_per_gpu, able_to, bound in zip(
        *(column.tolist() for column in (*columns, able, bounded[told])), strict=True
    ):
        if limited.waits[job]:
            why[row] = _bound(Because(quotas.rule(job)), quotas, limited, rivals, job)
        elif job in kept:
            why[row] = kept[job]
        elif not able_to:
            why[row] = _nowhere(seen, market, job, row)
        else:
            figures = Figure("worth_per_gpu", worth_per_gpu), prices[mine]
            if gets:
                why[row] = _changed(market, value, quotas, limited, rivals, job, figures, stays)
                continue
            needs = (Need("gpus", have[mine], have[mine] + lacks),) if lacks > 0 else ()
            because = Because("market.outbid", rivals.at(mine), figures, needs)
            why[row] = _bound(because, quotas, limited, rivals, job) if bound else because
    return why, outbid


def _outbid(
    seen: Snapshot,
    market: Market,
    found: Cleared,
    rivals: "_Rivals",
    prices: list[Figure],
    jobs: Ints,
    worth: Floats,
) -> dict[int, Reason]:
    """Say of some jobs that wait and got nothing why that is so: index into `Jobs` -> reason.

    Args:
        seen: What is known.
        market: Who competed.
        found: Who got what.
        rivals: Who has most.
        prices: Of each site.
        jobs: (m,) their rows.
        worth: (m,) of a GPU to each.
    """
    outbid, ids = dict[int, Reason](), seen.jobs.ids
    for mine in range(len(market.sites)) if len(jobs) else ():
        here = (found.site[jobs] == mine).nonzero()[0]
        if not len(here):
            continue
        lost_to, price, have = rivals.at(mine), prices[mine], float(market.gpus[mine])
        want = have + found.missing[jobs[here]]
        columns = market.rows[jobs[here]], worth[here], want
        for row, own, needs in zip(*(column.tolist() for column in columns), strict=True):
            outbid[row] = Reason(
                ids[row],
                "waits",
                "market.outbid",
                (Figure("worth_per_gpu", own), price),
                lost_to,
                (Need("gpus", have, needs),) if needs > have else (),
            )
    return outbid


def _changed(
    market: Market,
    value: Floats,
    quotas: Quotas,
    limited: Limited,
    rivals: "_Rivals",
    job: int,
    figures: tuple[Figure, ...],
    stays: Mapping[int, tuple[float, int]],
) -> Because:
    """Say what a job with GPUs has others for, or no more: the price; and what would have to be.

    Args:
        market: Who competed.
        value: (S, r, k) of `worth`.
        quotas: What tenants may have.
        limited: Who got what.
        rivals: Who has most.
        job: Its row.
        figures: Its worth, and the price, where it is.
        stays: What `to_stay` says of those that move.
    """
    found, home, had = limited.found, int(market.home[job]), int(market.present[job])
    site, gets, rule = int(found.site[job]), int(found.level[job]), "market.price"
    if found.first[job]:
        rule = "market.gang"
    if 0 <= home != site:
        best, lacks = stays[job]
        price = Figure("home_price_per_gpu", float(found.price[home]))
        figures += (Figure("home_worth_per_gpu", best), price)
        needs = gpus_more(market, home, lacks)
        # Under a limit its tenant's other jobs decide as well which site is best for it.
        if not needs or limited.limit[job]:
            return Because(rule, (), figures)
        because = Because(rule, rivals.at(home), figures, needs)
    elif gets < had:
        per_gpu = float(value[site, job, had] - value[site, job, gets])
        per_gpu /= float(market.sizes[had] - market.sizes[gets])
        figures += (Figure("lost_per_gpu", max(per_gpu, 0.0)),)
        because = Because(rule, rivals.at(site), figures, to_keep(market, found, job))
    else:
        return Because(rule, (), figures)
    return _bound(because, quotas, limited, rivals, job)


def _bound(
    because: Because, quotas: Quotas, limited: Limited, rivals: "_Rivals", job: int
) -> Because:
    """Say it also of a tenant's limit, if that kept a job from more."""
    if limited.limit[job]:
        limit = float(quotas.most[quotas.of[job]] + quotas.apart[quotas.of[job]])
        need = Need("quota_gpus", limit, float(limited.limit[job]))
        because.needs = (need, *because.needs)
    if limited.refused[job]:
        because.rule, because.lost_to = quotas.rule(job), rivals.of(int(quotas.of[job]))
    return because


def unable(seen: Snapshot, market: Market) -> dict[int, Because]:
    """Say it of jobs that wait and are not on the market, and of those whose nodes go back."""
    jobs = seen.jobs
    out = (jobs.phase == WAITING) & (jobs.size == 0)
    out[market.rows] = False
    nowhere = [] if len(market.sites) else market.rows.tolist()
    why = dict.fromkeys(nowhere, Because("gang.no_pool")) | _ousted(seen, market)
    for row in out.nonzero()[0].tolist():
        rest_s = float(jobs.backoff_until_s[row]) - seen.now_s
        if rest_s > 0 and (jobs.rate[row] > 0).any():
            why[row] = Because("gang.backoff", needs=(Need("backoff_s", rest_s, 0.0),))
        else:
            why[row] = Because("gang.size", needs=(Need("allowed_sizes", 0, 1),))
    return why


def _nowhere(seen: Snapshot, market: Market, job: int, row: int) -> Because:
    """Say why no site can run a job."""
    if not (market.rate[:, job] > 0).any():
        need = no_pool(seen, row)
        return Because("gang.no_pool", needs=(need,) if need.have < need.want else ())
    want, largest = float(market.sizes[market.base[job]]), _largest_site(seen, row)
    if want <= largest:  # it is in use by gangs that are left alone now
        need = Need("free_gpus", float(market.gpus.max()), want)
        return Because("gang.capacity", needs=(need,) if need.have < need.want else ())
    return Because("market.too_large", needs=(Need("gpus", largest, want),))


def _largest_site(seen: Snapshot, row: int) -> float:
    """Give the GPUs of the largest site that may run a job, whoever is on them."""
    pools, nodes, jobs = seen.pools, seen.nodes, seen.jobs
    may = (jobs.affinity[row] > 0) & (jobs.memory_mib[row] <= pools.gpu_memory_mib)
    edge = pools.kind == Kind.EDGE
    may &= ~edge | jobs.edge_allowed[row]
    gpus = np.where(closing(seen) > 0, 0, nodes.gpus)
    size = np.bincount(nodes.pool, gpus, len(pools.ids))
    on_node = np.zeros(len(size))
    np.maximum.at(on_node, nodes.pool, gpus)
    return float(np.where(edge, on_node, size)[may].max(initial=0.0))


class _Rivals:
    """Who has most of what others want; that changes more slowly than who is outbid by whom."""

    def __init__(self, seen: Snapshot, market: Market, found: Cleared, quotas: Quotas) -> None:
        self._ids, self._market, self._found, self._of = seen.jobs.ids, market, found, quotas.of
        self._at: dict[int, tuple[str, ...]] = {}
        self._by: dict[int, tuple[str, ...]] = {}

    def at(self, site: int) -> tuple[str, ...]:
        """Name those who have most at a site and those like it, of which a job may have any."""
        lot = int(self._market.lot[site])
        if lot not in self._at:
            self._at[lot] = self._largest(self._market.lot[self._found.site] == lot)
        return self._at[lot]

    def of(self, tenant: int) -> tuple[str, ...]:
        """Name those who have most of a tenant's limit."""
        if tenant not in self._by:
            self._by[tenant] = self._largest(self._of == tenant)
        return self._by[tenant]

    def _largest(self, which: Bools) -> tuple[str, ...]:
        level = self._found.level
        mine = (which & (level > 0)).nonzero()[0]
        order = (-level[mine]).argsort(kind="stable")[:NAMES_MOST]  # of equal ones the oldest
        return tuple([self._ids[row] for row in self._market.rows[mine[order]].tolist()])


def _kept(market: Market, promises: Promises, found: Cleared, told: Ints) -> dict[int, Because]:
    """Say it of those of some jobs for which room is kept: job -> why."""
    why: dict[int, Because] = {}
    for kept in promises.kept:
        mine = told[promises.bound[told] == kept.site]
        which, schedule = kept.find(mine), kept.schedule
        runs = (found.level[mine] > 0) | np.isfinite(schedule.until_s[which])
        for job, at in zip(mine[runs].tolist(), which[runs].tolist(), strict=True):
            level = int(found.level[job])
            due = Figure("deadline_s", float(kept.slack.due_s[at]))
            if np.isfinite(schedule.until_s[at]):
                back = Figure("back_s", float(schedule.until_s[at]))
                why[job] = Because("market.lends", (), (due, back))
                continue
            end_s = market.now_s + float(kept.slack.takes_s[at, level])
            rule = "market.promised" if promises.promised[job] else "market.in_time"
            why[job] = Because(rule, (), (due, Figure("planned_end_s", end_s)))
    return why


def _ousted(seen: Snapshot, market: Market) -> dict[int, Because]:
    """Say it of jobs whose nodes go back: index into `Jobs` -> why."""
    if not np.count_nonzero(market.ousted):
        return {}
    owner = {node: one.id for one in seen.lenders for node in one.nodes.tolist()}
    held = seen.holdings
    owners: dict[int, set[str]] = {}
    mine = market.ousted[held.job]
    for job, node in zip(held.job[mine].tolist(), held.node[mine].tolist(), strict=True):
        if node in owner:
            owners.setdefault(job, set()).add(owner[node])
    return {
        job: Because("loans.reclaim", tuple(sorted(names)[:NAMES_MOST]))
        for job, names in owners.items()
    }
