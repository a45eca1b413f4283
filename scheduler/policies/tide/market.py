"""Who competes for which GPUs, what each could do with them, and what a change would cost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler.policies.interface import RUNNING, WAITING, Bools, Floats, Ints, Kind, Snapshot
from scheduler.policies.parts.allot import closing
from scheduler.policies.tide.alike import STAY as STAY, alike_sites, lots_at

#: What each doubling of a gang adds to the pause of its start, where a start takes time at all.
DOUBLING_S = 2.0
#: Who is about to end is taken to need this much longer, so that nobody is ever for free.
SHORTEST_S = 1.0
#: To another lot by more, if it changed lately: by so many times the share that such a pause has
#: of the time since then. Prices swing, and it would go to and fro with them; but nothing keeps it
#: from faster GPUs for long. Where speeds are 0.5 to 2 this saves one restart in six; 6 would save
#: one in five, but where lent GPUs are a third as fast, jobs then stay on them for too long.
LATELY = 2.0
#: More jobs than this are long for an axis.
_MANY = 256
#: So many numbers are worked on at once; and so few that it takes no time to choose.
_AT_ONCE, _FEW = 2**16, 2**12
_TRAINING, _EDGE = int(Kind.TRAINING), int(Kind.EDGE)


@dataclass(slots=True, eq=False)
class Market:
    """r jobs, S sites, k levels. Level 0 is no GPU; a job is at one site at most.

    What a job could do at a site is the same at sites that are alike, unless it runs there. Columns
    of that have p parts: one for each group of such sites, and where a group has several, a last
    one for those who run there. `part_of` says which it is.
    """

    now_s: float
    rows: Ints  #: (r,) indices into `Jobs`, ascending.
    sizes: Ints  #: (k,) GPUs of each level, ascending.
    sites: Ints  #: (S,) indices into `Pools`.
    firm: Bools  #: (S,) training's own: nobody takes them back.
    lots: tuple[Ints, ...]  #: Sites that have one price, together (`lots_at`).
    lot: Ints  #: (S + 1,) of each site, as an index into `lots`; the last is -1, for none.
    gpus: Ints  #: (S,) for all of the jobs together.
    alike: Ints  #: (S,) the part of each site.
    own: Ints  #: (r,) the part of each job where it runs.
    home: Ints  #: (r,) site where it runs, -1: it waits, or must leave where it is.
    present: Ints  #: (r,) level held there.
    base: Ints  #: (r,) smallest level.
    work: Floats  #: (r,) left, in the unit of `rate`.
    work_s: Floats  #: (r,) time it takes on one GPU at the base size's speed.
    rate: Floats  #: (p, r, k) work per second; never falls with size; 0 where it may not run.
    #: (p, r, k) levels that are faster than all smaller ones, and the present one; not level 0.
    pays: Bools
    start_s: Floats  #: (r, k) pause of a start at each level.
    pause_s: Floats  #: (p, r, k) pause from now on: 0, or its rest, at the present level.
    takes_s: Floats  #: (p, r, k) time to the end from now on; inf where it cannot be.
    #: (S, k) how long a gang may wait for GPUs that others still hold: their longest checkpoint.
    leave_s: Floats
    stay: Floats  #: (r,) what a running job must gain in another lot, of its worth at home.
    ousted: Bools  #: (n,) of all jobs: runs where it may not stay.
    since_s: Floats  #: (h,) how long those that run have had what they have.
    here: tuple[Ints, Ints, Ints]  #: where the h jobs that run are, as indices into (S, r, k).

    def part_of(self, site: Ints | int, jobs: Ints) -> Ints:
        """Say which part of the columns is of some jobs at a site, or each at its own."""
        found: Ints = np.where(self.home[jobs] == site, self.own[jobs], self.alike[site])
        return found


def open_market(seen: Snapshot, reclaim: Mapping[str, float]) -> Market:
    """Find who may be given what.

    Args:
        seen: What is known.
        reclaim: Nodes that this plan gives back.
    """
    jobs, nodes, held = seen.jobs, seen.nodes, seen.holdings
    n, m = len(jobs.ids), len(seen.pools.ids)
    closed = closing(seen, reclaim) > 0
    level = np.minimum(jobs.sizes.searchsorted(jobs.size), len(jobs.sizes) - 1)
    every = np.arange(n)
    known = (jobs.sizes[level] == jobs.size) & (jobs.rate[every, level] > 0)
    known &= jobs.affinity[every, jobs.pool] > 0
    known &= jobs.memory_mib <= seen.pools.gpu_memory_mib[jobs.pool]
    whole = (jobs.phase == RUNNING) & (np.bincount(held.job, held.gpus, n) == jobs.size)
    shut = closed[held.node]
    ousted = np.zeros(n, dtype=np.bool_)
    ousted[held.job[shut]] = True
    ousted &= whole
    stays = whole & ~ousted & known
    touched = ousted | stays
    waits = (jobs.phase == WAITING) & (jobs.backoff_until_s <= seen.now_s)
    rows = ((waits | touched) & (np.maximum.reduce(jobs.rate, axis=1) > 0)).nonzero()[0]
    given = touched[held.job] & ~shut
    on_node = np.where(closed, 0, nodes.free)
    idle = np.bincount(nodes.pool, on_node, m)
    np.add.at(on_node, held.node[given], held.gpus[given])
    room = np.bincount(nodes.pool, on_node, m)
    sites = (room > 0).nonzero()[0]
    kind = seen.pools.kind[sites]
    site_of = np.full(m + 1, -1)  # the last is for who is in no pool
    site_of[sites] = np.arange(len(sites))
    home = np.where(stays, site_of[jobs.pool], -1)[rows]
    at = (home >= 0).nonzero()[0]
    present = np.zeros(len(rows), dtype=np.int64)
    present[at] = level[rows[at]] + 1
    here = home[at], at, present[at]

    sizes = np.concatenate(([0], jobs.sizes))
    # In memory the longer axis comes last, here and in all that follows: numpy is fast along it.
    order: Literal["C", "F"] = "F" if len(rows) > _MANY else "C"
    faster = np.zeros((len(rows), len(sizes)), order=order)
    np.maximum(jobs.rate[rows], 0.0, out=faster[:, 1:])
    most = np.maximum.accumulate(faster, axis=1)
    pays = np.zeros(faster.shape, dtype=np.bool_, order=order)
    np.greater(faster[:, 1:], most[:, :-1], out=pays[:, 1:])
    faster = np.where(faster > 0, most, 0.0)
    base = pays.argmax(axis=1)
    unit = faster[np.arange(len(rows)), base] / sizes[base]
    work = np.maximum(jobs.remaining_steps[rows], unit * sizes[base] * SHORTEST_S)
    gpus = room[sites].astype(np.int64)
    alike, first, own = np.arange(len(sites)), np.arange(len(sites)), home
    there = sites[:, None]
    if len(sites) * faster.size > _AT_ONCE:  # else to look takes longer than it saves
        alike, first = alike_sites(seen, sites, gpus)
        if len(first) < len(sites):
            own = np.where((np.bincount(alike) > 1)[alike[home]], len(first), alike[home])
            there = sites[np.concatenate((first[:, None].repeat(len(rows), axis=1), home[None]))]
    fits = jobs.memory_mib[rows] <= seen.pools.gpu_memory_mib[there]
    rate = np.where(fits, jobs.affinity.T[there, rows], 0.0)[:, :, None] * faster
    may = pays & (rate > 0)
    edge = (kind[first] == _EDGE).nonzero()[0]
    if len(edge):
        most_free = np.zeros(m)  # on one node
        np.maximum.at(most_free, nodes.pool, on_node)
        server = sizes <= most_free[sites[first[edge]], None]
        may[edge] = _largest(may[edge] & server[:, None] & jobs.edge_allowed[rows][:, None])
    now = own[at], at, present[at]
    may[now] = True
    if len(edge):
        rate[edge] = np.where(may[edge] | ~pays, rate[edge], 0.0)
    may[: len(first)] &= (sizes <= gpus[first, None])[:, None, :]
    if len(may) > len(first):
        may[-1] &= sizes <= gpus[home, None]
    may[now] = True

    start_s = np.asarray(_start_s(seen, rows, sizes), order=order)
    pause_s = _transfer_s(seen, rows, sites, first, home, own)[:, :, None] + start_s
    pause_s[:, :, 0] = 0.0
    since_s = seen.now_s - jobs.changed_s[rows[at]]
    pause_s[now] = np.maximum(start_s[here[1:]] - since_s, 0.0)
    lots = lots_at(kind, seen.pools.speed[sites], alike, rate)
    lot = np.full(len(sites) + 1, -1)
    for one, together in enumerate(lots):
        lot[together] = one
    return Market(
        now_s=seen.now_s,
        rows=rows,
        sizes=sizes,
        sites=sites,
        firm=kind == _TRAINING,
        lots=lots,
        lot=lot,
        gpus=gpus,
        alike=alike,
        own=own,
        home=home,
        present=present,
        base=base,
        work=work,
        work_s=np.maximum(work / unit, SHORTEST_S),
        rate=rate,
        pays=may,
        start_s=start_s,
        pause_s=pause_s,
        takes_s=_takes_s(work, rate, may, pause_s),
        leave_s=_leave_s(seen, rows, sizes, sites, home, idle[sites]),
        stay=_stay(seen, rows, start_s[np.arange(len(rows)), present]),
        ousted=ousted,
        since_s=since_s,
        here=here,
    )


def _stay(seen: Snapshot, rows: Ints, pause_s: Floats) -> Floats:
    """(r,) share of its worth that each must gain in another lot, by the pause of a change."""
    since_s = np.maximum(seen.now_s - seen.jobs.changed_s[rows], SHORTEST_S)
    found: Floats = 1.0 - STAY + LATELY * pause_s / since_s
    return found


def by_part(columns: Floats) -> list[tuple[slice, slice]]:
    """List parts of (S, r, k) in which to work on it: sites and jobs, all if they are few.

    Results in between then stay in the processor's cache, and their memory is used again.
    """
    count, r, k = columns.shape
    if columns.size <= _AT_ONCE:
        return [(slice(None), slice(None))]
    many = max(_AT_ONCE // k, 1)
    starts = range(0, r, many)
    return [(slice(s, s + 1), slice(at, at + many)) for s in range(count) for at in starts]


def barred(may: Bools) -> Floats:
    """Return 0 where something may be, -inf where not.

    Where choices are many and differ, arithmetic is several times as fast as to choose.
    """
    if may.size <= _FEW:
        return np.where(may, 0.0, -np.inf)
    with np.errstate(divide="ignore"):
        found: Floats = 1.0 - 1.0 / may
    return found


def _largest(may: Bools) -> Bools:
    """(E, r, k) the largest size alone of those that a job may have: a server runs one gang."""
    last = may.shape[2] - 1 - may[:, :, ::-1].argmax(axis=2)
    found: Bools = may & (np.arange(may.shape[2]) == last[:, :, None])
    return found


def _takes_s(work: Floats, rate: Floats, may: Bools, pause_s: Floats) -> Floats:
    """(p, r, k) time to the end from now on, pauses included; inf where it may not be."""
    if rate.size <= _FEW:
        found_s = np.full(rate.shape, math.inf)
        np.divide(work[:, None], rate, out=found_s, where=may)
        found_s += pause_s
        return found_s
    found_s = np.empty_like(rate)
    for part in by_part(rate):
        own_s = found_s[part]
        with np.errstate(divide="ignore"):
            np.divide(work[part[1], None], rate[part], out=own_s)
        own_s -= barred(may[part])
        own_s += pause_s[part]
    return found_s


def _start_s(seen: Snapshot, rows: Ints, sizes: Ints) -> Floats:
    """(r, k) how long a start at each size takes, checkpoint and gang included."""
    once_s = (seen.jobs.start_cost_s + seen.jobs.checkpoint_cost_s)[rows][:, None]
    start_s = np.where(once_s > 0.0, once_s + DOUBLING_S * _doublings(sizes), 0.0)
    start_s[:, 0] = 0.0
    return start_s


def _doublings(sizes: Ints) -> Floats:
    """(k,) the binary logarithm of each size, as C's `log2` has it, on every processor."""
    return np.array([math.log2(max(size, 1)) for size in sizes.tolist()])


def _transfer_s(
    seen: Snapshot, rows: Ints, sites: Ints, first: Ints, home: Ints, own: Ints
) -> Floats:
    """(p, r) how long the checkpoint of a job that runs elsewhere travels."""
    found = np.zeros((len(first) + (len(first) < len(sites)), len(rows)))
    away = ((home >= 0) & (seen.jobs.attained_gpu_s[rows] > 0)).nonzero()[0]
    if len(sites) > 1 and len(away):
        speed = seen.pools.transfer_mib_per_s[sites]
        path = np.maximum(np.minimum(speed[home[away]], speed[first, None]), 1e-9)
        found[: len(first), away] = seen.jobs.checkpoint_mib[rows[away]] / path
        found[own[away], away] = 0.0
    return found


def _leave_s(
    seen: Snapshot, rows: Ints, sizes: Ints, sites: Ints, home: Ints, idle: Ints
) -> Floats:
    longest_s = np.zeros(len(sites))
    at = (home >= 0).nonzero()[0]
    np.maximum.at(longest_s, home[at], seen.jobs.checkpoint_cost_s[rows[at]])
    found: Floats = np.where(sizes > idle[:, None], longest_s[:, None], 0.0)
    return found
