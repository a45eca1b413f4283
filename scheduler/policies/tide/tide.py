"""The default policy: one market for all GPUs, with promises and rights in it."""

from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import WAITING, Plan, Snapshot
from scheduler.policies.parts.allot import KEEP, Allotment, allot, capacity
from scheduler.policies.parts.lending import lend_and_reclaim
from scheduler.policies.parts.loans import LoanOptions
from scheduler.policies.ranges import Positive
from scheduler.policies.tide.market import open_market
from scheduler.policies.tide.prices import clear
from scheduler.policies.tide.promises import hold, keep
from scheduler.policies.tide.reasons import explain, unable
from scheduler.policies.tide.servers import without_server
from scheduler.policies.tide.unused import unused, why_back
from scheduler.policies.tide.worth import weights, worth

#: So many times prices are found anew for who found no edge server, at most.
_AGAIN = 4


@dataclass(frozen=True, slots=True)
class Tide:
    """One market for all GPUs: every job, every site, one price a site; promises in it.

    1. Owners lend what they will not need for a while, and get it back before they do, or when
       nobody wants it.
    2. On GPUs that nobody takes back, jobs that can be in time are promised to be; what a promise
       needs is kept, whatever it is worth.
    3. All else goes where it is worth most: a job's weight (short ones more, those that waited
       long more, those of higher priority more) times how much faster a GPU makes it, less what a
       change loses in pauses. Each site has a price: what its GPUs are worth to the first job that
       gets none there. Each job goes where it gains most at those prices, and has the size whose
       last GPU is worth the price.
    4. Who has a higher priority than others has its smallest size before they have anything.

    Any job may be scaled, moved or stopped when others make more of its GPUs. Lenders, edge
    servers, deadlines and priorities change what there is to choose from, never how it is chosen.
    """

    name: str = "tide"
    loans: LoanOptions = field(default_factory=LoanOptions)
    horizon_s: Positive = 600.0  #: a change of who runs must pay for its pause within this.
    #: From so long without GPUs on, a job's weight grows with that time. Shorter: a shorter tail,
    #: and a longer mean.
    patience_s: Positive = 6 * 3600.0
    #: A job is promised to be in time once the whole site could finish it within this.
    pledge_s: Positive = 900.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide sites and sizes of all jobs, and which nodes change hands."""
        jobs, nodes = snapshot.jobs, snapshot.nodes
        loans = lend_and_reclaim(snapshot, self.loans)
        reclaim = {nodes.ids[node]: due_s for node, due_s in sorted(loans.reclaim.items())}
        market = open_market(snapshot, reclaim)
        gpus = np.where((jobs.phase == WAITING) | market.ousted, 0, KEEP)
        pool = jobs.pool.copy()
        notes: dict[str, tuple[float, ...]] = {}
        why = unable(snapshot, market)
        left, price = capacity(snapshot, reclaim), np.zeros(len(snapshot.pools.ids))
        if len(market.rows) and len(market.sites):
            value = worth(
                snapshot, market, weights(snapshot, market, self.patience_s), self.horizon_s
            )
            promises = keep(snapshot, market, self.pledge_s)
            notes = promises.notes
            hold(promises, value)
            found = clear(market, value, promises)
            for _ in range(_AGAIN):
                lost = without_server(snapshot, market, reclaim, found)
                if not lost:
                    break
                for site, job in lost:
                    value[site, job, 1:] = -np.inf
                found = clear(market, value, promises)
            why = explain(snapshot, market, value, promises, found) | why
            gpus[market.rows] = market.sizes[found.level]
            on = found.level > 0
            pool[market.rows[on]] = market.sites[found.site[on]]
            np.subtract.at(left, market.sites[found.site], market.sizes[found.level])
            price[market.sites] = found.price
        if not loans.lend:
            back = unused(snapshot, left, price, loans.reclaim, self.loans.loan_min_s)
            due_s = snapshot.now_s + max(self.loans.lead_s, self.loans.drain_s)
            reclaim |= {nodes.ids[node]: due_s for node in back}
            loans.reasons.extend(why_back(snapshot, node) for node in back)
        return allot(
            snapshot,
            Allotment(
                gpus,
                "market.price",
                pool=pool,
                why=why,
                notes=notes,
                lend=tuple(nodes.ids[node] for node in sorted(loans.lend)),
                reclaim=reclaim,
                reasons=tuple(loans.reasons),
            ),
        )
