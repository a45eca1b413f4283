"""Why a job has what it has, from the figures that decided: its worth, the price, what is kept."""

import numpy as np

from scheduler.policies.interface import WAITING, Figure, Floats, Ints, Need, Snapshot
from scheduler.policies.parts.allot import Because, no_pool
from scheduler.policies.tide.market import Market
from scheduler.policies.tide.prices import Cleared
from scheduler.policies.tide.promises import Promises

#: Names that a reason lists, at most.
NAMES_MOST = 3


def explain(
    seen: Snapshot, market: Market, value: Floats, promises: Promises, found: Cleared
) -> dict[int, Because]:
    """Say it of all jobs on the market that change or wait: index into `Jobs` -> why."""
    level, site, each = found.level, found.site, np.arange(len(found.level))
    told = ((level == 0) | (level != market.present) | (site != market.home)).nonzero()[0]
    per_gpu = value[site[told], told] / np.maximum(market.sizes, 1)
    at = np.where(level[told] > 0, level[told], 1 + per_gpu[:, 1:].argmax(axis=1))
    worth = np.maximum(per_gpu[each[: len(told)], at], 0.0).tolist()
    price: list[float] = found.price.tolist()
    gpus: list[int] = market.gpus.tolist()
    largest: dict[int, tuple[str, ...]] = {}
    kept = _kept(market, promises, found, told)
    able: list[bool] = np.any(market.pays, axis=(0, 2)).tolist()
    why: dict[int, Because] = {}
    for job, row, mine, gets, worth_per_gpu, missing in zip(
        told.tolist(),
        market.rows[told].tolist(),
        site[told].tolist(),
        level[told].tolist(),
        worth,
        found.missing[told].tolist(),
        strict=True,
    ):
        if job in kept:
            why[row] = kept[job]
        elif not able[job]:
            why[row] = _nowhere(seen, market, job, row)
        else:
            figures = Figure("worth_per_gpu", worth_per_gpu), Figure("price_per_gpu", price[mine])
            if gets:
                why[row] = Because("market.price", (), figures)
            else:
                need = Need("gpus", gpus[mine], gpus[mine] + missing)
                if mine not in largest:
                    largest[mine] = _largest(seen, market, found, mine)
                why[row] = Because("market.outbid", largest[mine], figures, (need,))
    return why


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
    want = float(market.sizes[market.base[job]])
    return Because("market.too_large", needs=(Need("gpus", float(market.gpus.max()), want),))


def _largest(seen: Snapshot, market: Market, found: Cleared, at: int) -> tuple[str, ...]:
    """Return who has most at a site; that changes more slowly than who is outbid by whom."""
    mine = ((found.site == at) & (found.level > 0)).nonzero()[0]
    order = np.lexsort((mine, -found.level[mine]))[:NAMES_MOST]
    return tuple(seen.jobs.ids[row] for row in market.rows[mine[order]].tolist())


def _kept(market: Market, promises: Promises, found: Cleared, told: Ints) -> dict[int, Because]:
    """Say it of those of some jobs for which room is kept: job -> why."""
    why: dict[int, Because] = {}
    for kept in promises.kept:
        runs = (found.level[told] > 0) | np.isfinite(kept.courses.until_s[told])
        for job in told[(promises.bound[told] == kept.site) & runs].tolist():
            level, courses = int(found.level[job]), kept.courses
            due = Figure("deadline_s", float(kept.lax.due_s[job]))
            if np.isfinite(courses.until_s[job]):
                back = Figure("back_s", float(courses.until_s[job]))
                why[job] = Because("market.lends", (), (due, back))
                continue
            end_s = market.now_s + float(kept.lax.takes_s[job, level])
            rule = "market.promised" if promises.promised[job] else "market.in_time"
            why[job] = Because(rule, (), (due, Figure("planned_end_s", end_s)))
    return why


def _ousted(seen: Snapshot, market: Market) -> dict[int, Because]:
    """Say it of jobs whose nodes go back: index into `Jobs` -> why."""
    if not market.ousted.any():
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
