"""The default policy: one market for all GPUs, with promises and rights in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from scheduler.policies.interface import WAITING, Bools, Floats, Ints, Plan, Reason, Snapshot
from scheduler.policies.parts.allot import KEEP, Allotment, allot
from scheduler.policies.parts.lending import lend_and_reclaim
from scheduler.policies.parts.loans import LoanOptions
from scheduler.policies.ranges import Positive
from scheduler.policies.tide.borrowing import (
    as_lent,
    content,
    enough,
    idle,
    taken,
    unused,
    used,
    why_back,
)
from scheduler.policies.tide.limits import clear_within
from scheduler.policies.tide.market import Market, open_market
from scheduler.policies.tide.promises import hold, keep
from scheduler.policies.tide.quotas import quotas_of, read
from scheduler.policies.tide.reasons import explain, unable
from scheduler.policies.tide.repacking import repack_of
from scheduler.policies.tide.servers import without_server
from scheduler.policies.tide.worth import classes, weights, worth

#: So many times prices are found anew for who found no edge server, at most.
_AGAIN = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """What is made of the GPUs that there are; m pools."""

    allotment: Allotment
    price: Floats  #: (m,) what a GPU is worth to whoever got none there.
    left: Ints  #: (m,) GPUs that nobody is given.
    waits: Bools  #: (n,) jobs that got nothing, though their tenant's limit allows it.


@dataclass(frozen=True, slots=True)
class Tide:
    """One market for all GPUs: every job, every site, one price for alike sites; promises.

    1. Owners lend what they will not need for a while, if jobs would go there, had they it now, and
       get it back before they need it, or when nobody wants it.
    2. On GPUs that nobody takes back, jobs that can be in time are promised to be; what a promise
       needs is kept, whatever it is worth.
    3. All else goes where it is worth most: a job's weight (short ones more, those that waited long
       more, those of higher priority more) times how much faster a GPU makes it, less what a change
       loses in pauses. Who has just started is stopped, and who has changed lately moves, only for
       more, the less the longer ago. Sites of one kind that are about equally fast have one price:
       what a GPU there is worth to the first job that gets none. Each job goes where it gains most
       at those prices (if that is as much at several, to GPUs that nobody takes back), and has the
       size whose last GPU is worth the price. Among sites of one price, a job that comes goes where
       most GPUs are left, and one that runs stays where it is, unless another site has GPUs that
       nobody else wants, and it gains enough there, or makes room for one that waits. A large gang
       that waits beside idle GPUs goes before those of its site, if with these it gains more than
       the few lose that have to go. If all that is worth less than what there is, those who run
       keep what they have. A gang that comes and would lie on two nodes has one to itself if
       smaller gangs there, or some of them, lose less by moving to other nodes of the site than it
       would by lying apart.
    4. Who has a higher priority than others has its smallest size before they have anything.
    5. A tenant with a quota, as in `tide:quotas.vision=16..32:quotas.nlp=..8`, is guaranteed the
       first number of GPUs, and holds never more than the second, at all sites together. Jobs
       whose smallest sizes are within the guarantee have those before anybody has anything else:
       others shrink or stop, and are promised nothing on guaranteed GPUs. Guarantees count GPUs,
       not nodes. Where a limit is met, a job waits until another of its tenant that makes room
       for it has saved its work and left; in between others may come, unless it was promised.

    Any job may be scaled, moved or stopped when others make more of its GPUs. Lenders, edge
    servers, deadlines, priorities and quotas change what there is to choose from, never how it is
    chosen.
    """

    name: str = "tide"
    loans: LoanOptions = field(default_factory=LoanOptions)
    #: A change of who runs must pay for its pause within this, or within five times the pause.
    horizon_s: Positive = 600.0
    #: From so long without GPUs on, a job's weight grows with that time. Shorter: a shorter tail,
    #: and a longer mean.
    patience_s: Positive = 6 * 3600.0
    #: A job is promised to be in time once the whole site could finish it within this.
    pledge_s: Positive = 900.0
    #: Tenant -> GPUs guaranteed and at most: `16..32`, `16..` or `..32`. A table in JSON where a
    #: name has a dot or a colon.
    quotas: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tenant, text in self.quotas.items():
            read(tenant, text)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide sites and sizes of all jobs, and which nodes change hands."""
        nodes = snapshot.nodes
        loans = lend_and_reclaim(snapshot, self.loans, wanted=False)
        reclaim = {nodes.ids[node]: due_s for node, due_s in sorted(loans.reclaim.items())}
        market = open_market(snapshot, reclaim)
        shared = self._share(snapshot, market, reclaim)
        if loans.lend:
            wanted = self._borrowed(snapshot, loans.lend, reclaim, shared)
            loans.lend_only(nodes.ids, wanted)
        empty = [] if loans.lend else idle(snapshot, self.loans.loan_min_s)
        if empty:
            back = unused(snapshot, empty, shared.left, shared.price, loans.reclaim)
            due_s = snapshot.now_s + max(self.loans.lead_s, self.loans.warm_up_s)
            reclaim |= {nodes.ids[node]: due_s for node in back}
            loans.reasons.extend(why_back(snapshot, node) for node in back)
        plan = allot(
            snapshot,
            replace(
                shared.allotment,
                lend=tuple(nodes.ids[node] for node in sorted(loans.lend)),
                reclaim=reclaim,
                reasons=tuple(loans.reasons),
            ),
        )
        limits = {
            tenant: read(tenant, text)[1]
            for tenant, text in self.quotas.items()
            if tenant not in snapshot.quotas  # the core holds what an administrator set
        }
        return replace(plan, limits=limits) if limits else plan

    def _borrowed(
        self, seen: Snapshot, offered: Sequence[int], reclaim: Mapping[str, float], now: _Shared
    ) -> set[int]:
        """Find which of the nodes that owners offer jobs would be on, were they here now."""
        if not np.count_nonzero(now.waits) and content(seen, offered, now.allotment):
            return set()
        refused = enough(seen, offered, now.left, now.price, now.waits)
        offered = [node for node in offered if node not in refused]
        # What a tenant with a quota may have of them is known once they are shared out.
        bounded, sure = {*self.quotas, *seen.quotas}, now.waits
        if bounded:
            free = [tenant not in bounded for tenant in seen.jobs.tenants]
            sure = sure & np.array(free, dtype=np.bool_)
        found = taken(seen, offered, sure)
        offered = [node for node in offered if node not in found]
        if not offered:
            return found
        there = as_lent(seen, [*offered, *found])
        shared = self._share(there, open_market(there, reclaim), reclaim)
        targets = allot(there, replace(shared.allotment, reclaim=reclaim)).targets.values()
        on = {node for target in targets if target for node, _ in target.placement}
        return found | used(seen, offered, on)

    def _share(self, seen: Snapshot, market: Market, reclaim: Mapping[str, float]) -> _Shared:
        """Share out the GPUs that there are."""
        jobs = seen.jobs
        gpus = np.where((jobs.phase == WAITING) | market.ousted, 0, KEEP)
        pool = jobs.pool.copy()
        notes: dict[str, tuple[float, ...]] = {}
        why, outbid, repack = unable(seen, market), dict[int, Reason](), None
        price, waits = np.zeros(len(seen.pools.ids)), np.zeros(len(jobs.ids), dtype=np.bool_)
        waits[market.rows] = True
        if len(market.rows) and len(market.sites):
            quotas = quotas_of(seen, market, self.quotas)
            promises = keep(seen, market, self.pledge_s, quotas)
            notes = promises.notes
            weight = weights(seen, market, self.patience_s)
            within = quotas.entitled(seen, market, weight, promises.bound, promises.floor)
            rank = classes(seen, market, within)
            value = worth(market, weight, self.horizon_s, rank, within)
            hold(promises, value)
            limited = clear_within(market, value, promises, quotas, within, rank)
            for _ in range(_AGAIN):
                lost = without_server(seen, market, reclaim, limited.found)
                if not lost:
                    break
                for site, job in lost:
                    value[site, job, 1:] = -np.inf
                limited = clear_within(market, value, promises, quotas, within, rank)
            found = limited.found
            told, outbid = explain(seen, market, value, promises, quotas, limited)
            why = told | why
            # Who waits keeps what it has, where that is what it is to have more of.
            stays = np.where(found.site == market.home, market.sizes[market.present], 0)
            gpus[market.rows] = np.where(limited.waits, stays, market.sizes[found.level])
            on = found.level > 0
            waits[market.rows] = ~on & ~limited.refused
            pool[market.rows[on]] = market.sites[found.site[on]]
            price[market.sites] = found.price
            repack = partial(
                repack_of, market, weight, promises, found, self.horizon_s, len(jobs.ids)
            )
        left, given = np.zeros(len(price), dtype=np.int64), gpus > 0
        left[market.sites] = market.gpus
        np.subtract.at(left, pool[given], gpus[given])
        allotment = Allotment(
            gpus, "market.price", pool=pool, repack=repack, why=why, waits=outbid, notes=notes
        )
        return _Shared(allotment, price, left, waits)
