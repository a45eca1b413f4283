"""What tests of the default policy look at: its parts one after the other, and what it answers."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scheduler.policies.interface import Bools, Floats, Plan, Policy, Reason, Snapshot
from scheduler.policies.tide.limits import clear_within
from scheduler.policies.tide.market import Market, open_market
from scheduler.policies.tide.prices import Cleared
from scheduler.policies.tide.promises import Promises, hold, keep
from scheduler.policies.tide.quotas import quotas_of
from scheduler.policies.tide.tide import Tide
from scheduler.policies.tide.worth import classes, weights, worth
from tests.snapshots import faults


@dataclass(frozen=True)
class Opened:
    """A market, and what came of it."""

    seen: Snapshot
    market: Market
    weight: Floats
    value: Floats
    promises: Promises
    found: Cleared
    within: Bools  #: (r,) jobs within guarantees.

    def row(self, job: str) -> int:
        """Return a job's row in the market."""
        return int(self.market.rows.searchsorted(self.seen.jobs.ids.index(job)))

    def sites(self) -> list[str]:
        """Return the names of the sites."""
        return [self.seen.pools.ids[at] for at in self.market.sites.tolist()]

    def got(self) -> dict[str, tuple[str, int]]:
        """Return site and GPUs of everybody who got any."""
        names, gpus = self.sites(), self.market.sizes[self.found.level].tolist()
        return {
            self.seen.jobs.ids[row]: (names[at], size)
            for row, at, size in zip(
                self.market.rows.tolist(), self.found.site.tolist(), gpus, strict=True
            )
            if size
        }


def opened(seen: Snapshot, policy: Tide | None = None) -> Opened:
    """Do what the policy does, without loans, and show its parts."""
    policy = policy or Tide()
    market = open_market(seen, {})
    quotas = quotas_of(seen, market, policy.quotas)
    weight = weights(seen, market, policy.patience_s)
    promises = keep(seen, market, policy.pledge_s, quotas)
    within = quotas.entitled(seen, market, weight, promises.bound, promises.floor)
    rank = classes(seen, market, within)
    value = worth(market, weight, policy.horizon_s, rank, within)
    held = value.copy()
    hold(promises, held)
    limited = clear_within(market, held, promises, quotas, within, rank)
    return Opened(seen, market, weight, value, promises, limited.found, within)


def noted(seen: Snapshot, **notes: tuple[float, ...]) -> Snapshot:
    """Return the snapshot with what was written on jobs."""
    table = seen.jobs.notes.copy()
    for name, note in notes.items():
        table[seen.jobs.ids.index(name), : len(note)] = note
    return replace(seen, jobs=replace(seen.jobs, notes=table))


def columns(seen: Snapshot, **columns: Any) -> Snapshot:
    """Return the snapshot with some columns of its jobs changed."""
    new: dict[str, Any] = {name: np.array(value) for name, value in columns.items()}
    return replace(seen, jobs=replace(seen.jobs, **new))


def plan(seen: Snapshot, policy: Policy | None = None) -> Plan:
    """Return what a policy wants, the default one if none is named; it keeps what a plan must."""
    found = (policy or Tide()).plan(seen)
    assert faults(seen, found) == []
    return found


def reason(found: Plan, subject: str) -> Reason:
    """Return what is said of a job or a node."""
    return next(item for item in found.reasons if item.subject == subject)


def sizes(found: Plan) -> dict[str, int]:
    """Return what jobs that are named shall have."""
    return {job: target.size if target else 0 for job, target in found.targets.items()}


def pools(found: Plan) -> dict[str, str | None]:
    """Return where jobs that are named shall be."""
    return {job: target.pool if target else None for job, target in found.targets.items()}
