"""The state as columns: the snapshot that policies see."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from scheduler.core import facts, quotas
from scheduler.core.claims import still_there
from scheduler.core.jobrows import JobRows
from scheduler.core.lenders import known_as, lender_id
from scheduler.core.noderows import Contact, NodeRows, Sites
from scheduler.core.registry import NAMES
from scheduler.core.startable import could_start
from scheduler.core.state import SLOTS, ClusterState, Lender, policy_name, slot_s
from scheduler.policies import interface as columns
from scheduler.policies.interface import SIZES_MOST, Figure, Floats, Ints, Reason
from scheduler.policies.registry import KEEP_QUOTAS

#: These leave a job the GPUs that it has and claims.
_IN_PLACE = (
    facts.JobAdvanced,
    facts.JobMeasured,
    facts.GangRunning,
    facts.CheckpointSaved,
    facts.CheckpointMissed,
    facts.CancelRequested,
    facts.WorkerReady,
)
#: These are about several jobs, which stay where they are; with the field that names them.
_OF_JOBS = {
    facts.JobsNoted: "notes",
    facts.CurvesReplaced: "curves",
    facts.LengthsReplaced: "lengths",
    facts.RefusalsNoted: "jobs",
}
#: After these all may be shown otherwise: slots may have another length, notes another reader, and
#: nodes that are frozen are shown as such.
_OF_ALL = (
    facts.LeaderChanged,
    facts.PolicyChanged,
    facts.PolicyCleared,
    facts.LoansFrozen,
    facts.LoansUnfrozen,
)
_Part = TypeVar("_Part", columns.Pools, columns.Nodes, columns.Holdings)
_NOTHING: tuple[int, Floats] = -1, np.zeros(0)


class _Owner(NamedTuple):
    """Who lends."""

    name: str
    pool: str
    agent: str  #: Empty: of an edge server it does not matter.
    nodes: Ints  #: Indices among those in contact.


class _Load(NamedTuple):
    """What is shown of what a lender said, as long as it says nothing else and the slot is this."""

    slot: int
    gpus_needed: float
    at_s: float  #: When it was said; -inf if never.
    peaks: Floats


class _Where(NamedTuple):
    """What a snapshot shows as long as nothing moves."""

    sites: Sites
    nodes: columns.Nodes
    holdings: columns.Holdings
    pool: Ints  #: (n,) where each job is, or is going to; -1: nowhere.
    away: Ints  #: Indices of jobs that hold GPUs where nothing may be changed now.
    #: Of gangs on closed nodes alone, not to be changed while jobs wait that could start.
    closed: Ints


class View:
    """Makes snapshots. Between two of them only what facts were about is read again.

    What it remembers follows from the state alone: one that begins anew shows the same.
    """

    def __init__(self) -> None:
        """Begin with nothing remembered."""
        self._rows: tuple[NodeRows, JobRows] | None = None
        self._where: _Where | None = None
        self._owners: tuple[Contact, list[_Owner]] | None = None
        self._waits: dict[str, Reason] = {}  #: Jobs of which no size was shown, and why.
        self._forget()

    def _forget(self) -> None:
        self._rows = None
        # Named by facts since the last snapshot; of jobs, whether their GPUs may be others.
        self._jobs: dict[str, bool] = {}
        self._nodes: dict[str, None] = {}
        #: By lender and who speaks for it: the slot in which this was its history, and that.
        self._history: dict[tuple[str, str], tuple[int, Floats]] = {}
        self._loads: dict[str, _Load] = {}  #: Of edge servers.

    def saw(self, folded: Iterable[Any]) -> None:
        """Take note of facts that were folded into the state."""
        for fact in folded:
            kind = type(fact)
            if kind is facts.JobExplained:  # most are that, and no column shows it
                continue
            for name in NAMES[kind]:
                if name == "node":
                    self._nodes[fact.node] = None
                elif name == "job":
                    self._jobs[fact.job] = kind not in _IN_PLACE or self._jobs.get(fact.job, False)
            if kind in _OF_JOBS:
                for name in getattr(fact, _OF_JOBS[kind]):
                    self._jobs.setdefault(name, False)
            elif kind is facts.LoadObserved:
                self._loads.pop(fact.lender, None)
            elif kind is facts.LenderRenamed:
                self._loads = {}
            elif kind in _OF_ALL:
                self._forget()

    def catch_up(self, state: ClusterState) -> None:
        """Write the rows that the next snapshot would have to write first."""
        _, jobs = self._read(state)
        jobs.catch_up()

    def snapshot(self, state: ClusterState) -> columns.Snapshot:
        """Give the columns of the state as it is now."""
        nodes, jobs = self._read(state)
        where = self._where = self._where or _look(nodes, jobs)
        affinity = jobs.affinity(where.sites)
        shown = jobs.columns(state.now_s, where.pool, where.away, affinity)
        if (
            len(where.closed)
            and could_start(shown, where.sites.pools, where.nodes, state.standing.quotas).any()
        ):
            shown = _left_alone(shown, where.closed)
        most = (Figure("sizes_most", SIZES_MOST),)
        self._waits = {n: Reason(n, "waits", "sizes.too_many", most) for n in jobs.left_out}
        given: dict[str, tuple[int, int]] = {}
        if state.standing.quotas:
            keeps = policy_name(state) in KEEP_QUOTAS
            shown, waits = quotas.shown(state, shown, keeps_quotas=keeps)
            self._waits.update(waits)
            given = {
                name: (quota.guaranteed, quota.gpus)
                for name, quota in sorted(state.standing.quotas.items())
            }
        return columns.Snapshot(
            now_s=state.now_s,
            jobs=shown,
            pools=where.sites.pools,
            nodes=where.nodes,
            holdings=where.holdings,
            lenders=self._lenders(state, nodes.contact()),
            quotas=given,
        )

    def named(self) -> Collection[str] | None:
        """Give the jobs of the last snapshot until the next, if they are ready to be looked up."""
        return None if self._rows is None else self._rows[1].named()

    def explained(self, plan: columns.Plan) -> columns.Plan:
        """Say why jobs wait that the last snapshot did not show, or showed no size of."""
        hidden = {} if self._rows is None else self._rows[1].hidden()
        if not hidden and not self._waits:
            return plan
        reasons = self._waits | {name: Reason(name, "waits", rule) for name, rule in hidden.items()}
        kept = [
            reason
            for reason in plan.reasons
            if reason.subject not in reasons or reason.verb in columns.OF_NODES
        ]
        return replace(plan, reasons=(*kept, *reasons.values()))

    def _read(self, state: ClusterState) -> tuple[NodeRows, JobRows]:
        """Write the rows of what changed; of everything, where nothing is remembered."""
        if self._rows is None:
            nodes = NodeRows(state)
            self._rows = nodes, JobRows(state, nodes.slot_of)
            self._jobs, self._nodes = dict.fromkeys(state.jobs, True), dict.fromkeys(state.nodes)
            self._where = None
        nodes, jobs = self._rows
        paused, left_behind = "starts" in state.standing.pauses, still_there(state)
        if jobs.keep_out(paused=paused, left_behind=left_behind):
            self._where = None
        if self._nodes or any(self._jobs.values()):
            self._where = None
        for name in jobs.unsure:
            self._jobs.setdefault(name, False)
        self._nodes.update(dict.fromkeys(jobs.write(self._jobs)))
        nodes.write(self._nodes)
        self._jobs, self._nodes = {}, {}
        return nodes, jobs

    def _lenders(self, state: ClusterState, contact: Contact) -> tuple[columns.Lender, ...]:
        if self._owners is None or self._owners[0] is not contact:
            self._owners = contact, _owners(state, contact)
        length_s, now_s, found = slot_s(state), state.now_s, []
        now_slot = int(now_s // length_s)
        for name, pool, agent, nodes in self._owners[1]:
            load = None if agent else self._loads.get(name)
            if load is None or load.slot != now_slot:
                known = known_as(state, name, pool, agent) if agent else state.lenders.get(name)
                load = self._load(known or Lender(name), now_slot)
                if not agent:
                    self._loads[name] = load
            _, needed, at_s, peaks = load
            found.append(columns.Lender(name, nodes, needed, now_s - at_s, peaks, length_s))
        return tuple(found)

    def _load(self, lender: Lender, now_slot: int) -> _Load:
        at_s = -np.inf if lender.at_s is None else lender.at_s
        return _Load(now_slot, lender.gpus_needed, at_s, self._peaks(lender, now_slot))

    def _peaks(self, lender: Lender, now_slot: int) -> Floats:
        """Of slots since its last report nothing is known; now it needs what it said then."""
        silent = now_slot - lender.slot if lender.slot >= 0 else 0
        now = lender.gpus_needed if silent or not lender.history else lender.history[-1]
        key = lender.id, lender.source
        slot, found = self._history.get(key, _NOTHING)
        if slot == now_slot and len(found):  # only the last one can have changed
            if found[-1] == now:
                return found
            found = found.copy()
            found[-1] = now
        else:
            since = np.full(min(silent, SLOTS), np.nan)
            since[-1:] = now
            peaks = np.array(lender.history, dtype=np.float64)
            found = np.concatenate((peaks, since))[-SLOTS:]
        found.flags.writeable = False
        self._history[key] = now_slot, found
        return found


def _look(nodes: NodeRows, jobs: JobRows) -> _Where:
    contact, at = nodes.contact(), jobs.slots()
    sites = nodes.sites(at[at >= 0])
    job, slot, gpus = jobs.holdings()
    node = contact.index_of[slot]
    seen = node >= 0
    pool = sites.of_group[contact.group_of[at]]
    pool.flags.writeable = False
    _read_only(sites.pools)
    holdings = _read_only(columns.Holdings(job[seen], node[seen], gpus[seen]))
    away, closed = nodes.kept(job, slot)
    return _Where(sites, _read_only(nodes.columns(sites)), holdings, pool, away, closed)


def _left_alone(jobs: columns.Jobs, rows: Ints) -> columns.Jobs:
    """Show these as gangs that are not to be changed.

    `JobRows.columns` does so for `away`. For `closed` it cannot: `could_start` needs its columns
    first.
    """
    phase = jobs.phase.copy()
    phase[rows] = columns.MOVING
    phase.flags.writeable = False
    return replace(jobs, phase=phase)


def _read_only(part: _Part) -> _Part:
    """Keep a policy from writing what its plan is checked by, or the next snapshot made of."""
    for name in part.__slots__:
        value = getattr(part, name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return part


def _owners(state: ClusterState, contact: Contact) -> list[_Owner]:
    """List who lends, each with the indices of its nodes."""
    owners: dict[tuple[str, str, str], list[int]] = {}
    names: dict[tuple[str, str], str] = {}
    for index, name in enumerate(contact.ids):
        node = state.nodes[name]
        pool, agent = state.pools[node.pool], node.agent
        if pool.kind == "inference":
            if (pool.id, agent) not in names:
                names[pool.id, agent] = lender_id(state, pool.id, agent)
            owners.setdefault((names[pool.id, agent], pool.id, agent), []).append(index)
        elif pool.kind == "edge":
            owners[name, pool.id, ""] = [index]
    found = [_Owner(*who, np.array(owners[who], dtype=np.int64)) for who in sorted(owners)]
    for owner in found:
        owner.nodes.flags.writeable = False
    return found
