"""The state as columns: the snapshot that policies see."""

import numpy as np

from scheduler.core.jobrows import JobRows
from scheduler.core.noderows import Contact, NodeRows
from scheduler.core.state import SLOTS, ClusterState, Lender, slot_s
from scheduler.policies import interface as columns
from scheduler.policies.interface import Floats


class View:
    """Makes snapshots."""

    def snapshot(self, state: ClusterState) -> columns.Snapshot:
        """Give the columns of the state as it is now."""
        nodes = NodeRows(state)
        nodes.write(state.nodes)
        jobs = JobRows(state, nodes.slot_of)
        jobs.write(state.jobs)
        contact, at = nodes.contact(), jobs.slots()
        sites = nodes.sites(at[at >= 0])
        job, slot, gpus = jobs.holdings()
        node = contact.index_of[slot]
        seen = node >= 0
        pool = sites.of_group[contact.group_of[at]]
        return columns.Snapshot(
            now_s=state.now_s,
            jobs=jobs.columns(
                state.now_s, pool, job[~seen], jobs.affinity(sites.pools.speed, sites.pool_of)
            ),
            pools=sites.pools,
            nodes=nodes.columns(sites),
            holdings=columns.Holdings(job[seen], node[seen], gpus[seen]),
            lenders=_lenders(state, contact),
        )


def _lenders(state: ClusterState, contact: Contact) -> tuple[columns.Lender, ...]:
    owners: dict[str, list[int]] = {}
    for index, name in enumerate(contact.ids):
        pool = state.pools[state.nodes[name].pool]
        if pool.kind == "inference":
            owners.setdefault(pool.id, []).append(index)
        elif pool.kind == "edge":
            owners[name] = [index]
    return tuple([_lender(state, name, owners[name]) for name in sorted(owners)])


def _lender(state: ClusterState, name: str, nodes: list[int]) -> columns.Lender:
    lender = state.lenders.get(name) or Lender(name)
    return columns.Lender(
        id=name,
        nodes=np.array(nodes, dtype=np.int64),
        gpus_needed=lender.gpus_needed,
        load_age_s=np.inf if lender.at_s is None else state.now_s - lender.at_s,
        history=_history(lender, int(state.now_s // slot_s(state))),
        slot_s=slot_s(state),
    )


def _history(lender: Lender, now_slot: int) -> Floats:
    """Of slots since its last report nothing is known; now it needs what it said then."""
    found = np.array([np.nan if peak is None else peak for peak in lender.history], dtype=float)
    silent = now_slot - lender.slot
    if lender.slot < 0 or silent <= 0:
        return found
    unknown = np.full(min(silent, SLOTS) - 1, np.nan)
    return np.concatenate((found, unknown, [lender.gpus_needed]))[-SLOTS:]
