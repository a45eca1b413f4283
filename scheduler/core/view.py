"""The state as columns: the snapshot that policies see."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from scheduler.core import facts
from scheduler.core.jobrows import JobRows
from scheduler.core.noderows import Contact, NodeRows
from scheduler.core.registry import NAMES
from scheduler.core.state import SLOTS, ClusterState, Lender, slot_s
from scheduler.policies import interface as columns
from scheduler.policies.interface import SIZES_MOST, Figure, Floats, Ints, Reason

#: These leave a job the GPUs that it has and claims.
_IN_PLACE = (
    facts.JobAdvanced,
    facts.GangRunning,
    facts.CheckpointSaved,
    facts.CheckpointMissed,
    facts.CancelRequested,
    facts.WorkerReady,
)
_Part = TypeVar("_Part", columns.Jobs, columns.Pools, columns.Nodes, columns.Holdings)


class View:
    """Makes snapshots. Between two of them only what facts were about is read again.

    What it remembers follows from the state alone: one that begins anew shows the same.
    """

    def __init__(self) -> None:
        """Begin with nothing remembered."""
        self._rows: tuple[NodeRows, JobRows] | None = None
        self._owners: tuple[Contact, list[tuple[str, Ints]]] | None = None
        self._forget()

    def _forget(self) -> None:
        self._rows = None
        # Named by facts since the last snapshot; of jobs, whether their GPUs may be others.
        self._jobs: dict[str, bool] = {}
        self._nodes: dict[str, None] = {}
        #: By lender: the slot in which this was its history, and that.
        self._history: dict[str, tuple[int, Floats]] = {}

    def saw(self, fact: Any) -> None:
        """Take note of a fact that was folded into the state."""
        kind = type(fact)
        for name in NAMES[kind]:
            if name == "node":
                self._nodes[fact.node] = None
            elif name == "job":
                self._jobs[fact.job] = kind not in _IN_PLACE or self._jobs.get(fact.job, False)
        if NAMES[kind]:
            return
        match fact:
            case facts.JobsNoted():
                self._touch(fact.notes)
            case facts.CurvesReplaced():
                self._touch(fact.curves)
            case facts.RefusalsNoted():
                self._touch(fact.jobs)
            case facts.LoadObserved():
                self._history.pop(fact.lender, None)
            case facts.LeaderChanged():
                self._forget()  # slots may have another length, and notes another reader
            case _:
                pass

    def _touch(self, names: Iterable[str]) -> None:
        for name in names:
            self._jobs.setdefault(name, False)

    def snapshot(self, state: ClusterState) -> columns.Snapshot:
        """Give the columns of the state as it is now."""
        nodes, jobs = self._read(state)
        contact, at = nodes.contact(), jobs.slots()
        sites = nodes.sites(at[at >= 0])
        job, slot, gpus = jobs.holdings()
        node = contact.index_of[slot]
        seen = node >= 0
        pool = sites.of_group[contact.group_of[at]]
        affinity = jobs.affinity(sites.pools.speed, sites.pool_of)
        return columns.Snapshot(
            now_s=state.now_s,
            jobs=_read_only(jobs.columns(state.now_s, pool, job[~seen], affinity)),
            pools=_read_only(sites.pools),
            nodes=_read_only(nodes.columns(sites)),
            holdings=_read_only(columns.Holdings(job[seen], node[seen], gpus[seen])),
            lenders=self._lenders(state, contact),
        )

    def explained(self, plan: columns.Plan) -> columns.Plan:
        """Say of jobs whose sizes the last snapshot had no room for that this is why they wait."""
        left_out = self._rows[1].left_out if self._rows is not None else ()
        if not left_out:
            return plan
        most = Figure("sizes_most", SIZES_MOST)
        reasons = {name: Reason(name, "waits", "sizes.too_many", (most,)) for name in left_out}
        kept = [reason for reason in plan.reasons if reason.subject not in reasons]
        return replace(plan, reasons=(*kept, *reasons.values()))

    def _read(self, state: ClusterState) -> tuple[NodeRows, JobRows]:
        """Write the rows of what changed; of everything, where nothing is remembered."""
        if self._rows is None:
            nodes = NodeRows(state)
            jobs = JobRows(state, nodes.slot_of)
            self._rows = nodes, jobs
            jobs.write(dict.fromkeys(state.jobs, True))
            nodes.write(state.nodes)
        else:
            nodes, jobs = self._rows
            self._nodes.update(dict.fromkeys(jobs.write(self._jobs)))
            nodes.write(self._nodes)
        self._jobs, self._nodes = {}, {}
        return nodes, jobs

    def _lenders(self, state: ClusterState, contact: Contact) -> tuple[columns.Lender, ...]:
        if self._owners is None or self._owners[0] is not contact:
            self._owners = contact, _owners(state, contact)
        now_slot, length_s = int(state.now_s // slot_s(state)), slot_s(state)
        found = []
        for name, nodes in self._owners[1]:
            lender = state.lenders.get(name) or Lender(name)
            known = self._history.get(name)
            if known is None or known[0] != now_slot:
                known = self._history[name] = now_slot, _history(lender, now_slot)
            age_s = np.inf if lender.at_s is None else state.now_s - lender.at_s
            found.append(columns.Lender(name, nodes, lender.gpus_needed, age_s, known[1], length_s))
        return tuple(found)


def _read_only(part: _Part) -> _Part:
    """Keep a policy from writing what its plan is checked by, or the next snapshot made of."""
    for name in part.__slots__:
        value = getattr(part, name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return part


def _owners(state: ClusterState, contact: Contact) -> list[tuple[str, Ints]]:
    """List who lends, each with the indices of its nodes."""
    owners: dict[str, list[int]] = {}
    for index, name in enumerate(contact.ids):
        pool = state.pools[state.nodes[name].pool]
        if pool.kind == "inference":
            owners.setdefault(pool.id, []).append(index)
        elif pool.kind == "edge":
            owners[name] = [index]
    found = [(name, np.array(owners[name], dtype=np.int64)) for name in sorted(owners)]
    for _, nodes in found:
        nodes.flags.writeable = False
    return found


def _history(lender: Lender, now_slot: int) -> Floats:
    """Of slots since its last report nothing is known; now it needs what it said then."""
    found = np.array([np.nan if peak is None else peak for peak in lender.history], dtype=float)
    silent = now_slot - lender.slot
    if lender.slot >= 0 and silent > 0:
        unknown = np.full(min(silent, SLOTS) - 1, np.nan)
        found = np.concatenate((found, unknown, [lender.gpus_needed]))[-SLOTS:]
    found.flags.writeable = False
    return found
