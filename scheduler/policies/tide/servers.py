"""Edge servers have room each for itself: together they may have more than any of them."""

from collections.abc import Mapping

import numpy as np

from scheduler.policies.interface import Kind, Snapshot
from scheduler.policies.parts.allot import closing
from scheduler.policies.parts.free_gpus import FreeGpus
from scheduler.policies.tide.market import Market
from scheduler.policies.tide.prices import Cleared

_EDGE = int(Kind.EDGE)


def without_server(
    seen: Snapshot, market: Market, reclaim: Mapping[str, float], found: Cleared
) -> list[tuple[int, int]]:
    """Return (site, job) of those that shall come to an edge site and find no server there.

    They are placed as `allot` will place them: large ones first, each where it leaves least.
    """
    lost: list[tuple[int, int]] = []
    changed = (found.site != market.home) | (found.level != market.present)
    for site in (seen.pools.kind[market.sites] == _EDGE).nonzero()[0].tolist():
        comes = ((found.site == site) & (found.level > 0) & changed).nonzero()[0]
        if not len(comes):
            continue
        free = np.where(closing(seen, reclaim), 0, seen.nodes.free)
        leaves = np.zeros(len(seen.jobs.ids), dtype=np.bool_)
        leaves[market.rows[(market.home == site) & changed]] = True
        gives = leaves[seen.holdings.job]
        np.add.at(free, seen.holdings.node[gives], seen.holdings.gpus[gives])
        room = FreeGpus(free, (seen.nodes.pool == market.sites[site]).nonzero()[0])
        gpus = market.sizes[found.level]
        for job in comes[np.lexsort((comes, -gpus[comes]))].tolist():
            size = int(gpus[job])
            if room.fits(size):
                room.take(size, {}, "pack")
            else:
                lost.append((site, job))
    return lost
