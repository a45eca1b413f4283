"""The nodes as columns, and the sites that they make: where a gang may live whole."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from scheduler.core.claims import stays
from scheduler.core.freezes import freeze_of
from scheduler.core.state import ClusterState, Node, site_id
from scheduler.core.transitions import LoanState, NodeState
from scheduler.policies.interface import Bools, Floats, Ints, Kind, LoanPhase, Nodes, Pools

_KIND = {"training": Kind.TRAINING, "inference": Kind.INFERENCE, "edge": Kind.EDGE}
_LOAN = {
    None: LoanPhase.OWNED,
    LoanState.LENDING: LoanPhase.LENDING,
    LoanState.LENT: LoanPhase.LENT,
    LoanState.RECLAIMING: LoanPhase.RECLAIMING,
    LoanState.RETURNING: LoanPhase.RECLAIMING,
}
_STATE = {NodeState.DEAD: 0, NodeState.UNKNOWN: 1, NodeState.ALIVE: 2}
_UNKNOWN = 1
_ALIVE = 2
#: Rows of the table: those from here on say which nodes and sites there are.
_SHAPE, _ROWS = 6, 12
#: Of those, the last: whether gangs there are not to be changed, and why.
_KEPT, _SILENT, _CLOSED = 11, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Contact:
    """The nodes in contact, and the groups of nodes that may be sites. s slots, p nodes, g groups.

    A group is the nodes that one agent has in a pool; in an edge pool, all of the pool.
    """

    slots: Ints  #: (p,) of the nodes in contact, by id.
    ids: tuple[str, ...]  #: (p,)
    index_of: Ints  #: (s,) index among these, -1 for nodes out of contact.
    group_of: Ints  #: (s + 1,) and -1, that of no slot.
    heard: Bools  #: (g,) has a node in contact.
    figures: Floats  #: (3, g) least speed, memory and transfer of its nodes (those in contact).


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """What the snapshot shows as pools. m sites, g groups."""

    pools: Pools
    pool_of: tuple[str, ...]  #: (m,) the pool of each.
    of_group: Ints  #: (g + 1,) index of a group's site, -1 if it is not shown; the last is -1.


class NodeRows:
    """A slot for each node that ever was, in the order in which they were first written."""

    def __init__(self, state: ClusterState) -> None:
        """Begin without a slot."""
        self._state = state
        self._slot: dict[str, int] = {}
        self._order: Ints | None = None  #: Slots by node's id; None when a node has come.
        self._groups: dict[tuple[str, str], int] = {}
        #: (rows, slots) gpus, free, usable, loan, lent since, returned; state, group, speed,
        #: memory, transfer, kept.
        self._table: Floats = np.zeros((_ROWS, 64))
        self._contact: Contact | None = None
        self._sites: tuple[bytes, Sites] | None = None

    def slot_of(self, name: str) -> int:
        """Give a node's slot."""
        slot = self._slot.get(name)
        if slot is None:
            slot = self._slot[name] = len(self._slot)
            self._order = None
            if slot == self._table.shape[1]:
                self._table = np.hstack((self._table, np.zeros_like(self._table)))
        return slot

    def write(self, names: Iterable[str]) -> None:
        """Write the columns of these nodes."""
        nodes = [node for name in names if (node := self._state.nodes.get(name)) is not None]
        if not nodes:
            return
        slots = [self.slot_of(node.id) for node in nodes]
        values = np.array([self._values(node) for node in nodes]).T
        if (values[_SHAPE:] != self._table[_SHAPE:, slots]).any():
            self._contact = None
        self._table[:, slots] = values

    def _values(self, node: Node) -> tuple[float, ...]:
        kind = self._state.pools[node.pool].kind
        lent = node.loan_state is LoanState.LENT
        kept = self._kept_gpus(node)
        open_ = (lent or kind == "training") and node.id not in self._state.standing.cordons
        free = [*zip(node.holder, node.claim, strict=True)].count((None, None)) if open_ else 0
        group = (node.pool, "" if kind == "edge" else node.agent)
        return (
            (kept if node.loan is None else 0) or node.gpu_count,
            free,
            open_ or kept > 0,
            self._loan_of(node),
            node.loan_since_s if lent else float("-inf"),
            float("-inf") if node.returned_s is None else node.returned_s,
            self._shown_as(node),
            self._groups.setdefault(group, len(self._groups)),
            node.speed_factor,
            node.gpu_memory_mib,
            node.transfer_mib_per_s,
            _SILENT
            if node.state is not NodeState.ALIVE
            else _CLOSED * (kept > 0 and node.loan is None),
        )

    def _loan_of(self, node: Node) -> LoanPhase:
        """Give where a node is between owner and training; one that may not be lent goes back."""
        if node.loan_state is None and freeze_of(self._state, node) is not None:
            return LoanPhase.RECLAIMING
        return _LOAN[node.loan_state]

    def _shown_as(self, node: Node) -> int:
        """Give the state of a node as policies are to see it.

        A cordoned node is left out as if it were not in contact: it is neither counted for growth
        nor lent. Shown is one that policies move gangs off, or give back: one that is being
        drained, or on loan. One whose gangs stay is shown as if it had their GPUs alone, so that
        a gang that has others, too, may go on there, grow elsewhere, and leave.
        """
        state, standing = _STATE[node.state], self._state.standing
        if state != _ALIVE or node.id not in standing.cordons:
            return state
        shown = node.id in standing.drains or node.loan is not None or self._kept_gpus(node) > 0
        return _ALIVE if shown else _UNKNOWN

    def _kept_gpus(self, node: Node) -> int:
        """Count the GPUs that gangs have on a closed node, where they stay; 0 on any other."""
        if not stays(self._state, node):
            return 0
        jobs = self._state.jobs
        gangs = [jobs[name] for name in dict.fromkeys(node.holder) if name in jobs]
        return sum(len(gang.allocation.get(node.id, ())) for gang in gangs)

    def kept(self, job: Ints, slots: Ints) -> tuple[Ints, Ints]:
        """Give the gangs that must not be changed: at all, and while jobs wait that could start.

        The first have a part on a node out of contact. The others are on closed nodes alone: nobody
        else may have their GPUs, so who is planned for them waits in vain. Not those on lent ones:
        who is there has to move when the owner comes back.

        Args:
            job: (h,) whose part of a gang each is.
            slots: (h,) of its node.
        """
        why = self._table[_KEPT, slots]
        silent, on_closed = job[why == _SILENT], why == _CLOSED
        if not on_closed.any():
            return silent, job[:0]
        alone = np.bincount(job) == np.bincount(job, on_closed)
        return silent, job[on_closed & alone[job]]

    def contact(self) -> Contact:
        """Give what there is to see, the same object while that does not change."""
        if self._contact is None or self._order is None:
            self._contact, self._sites = self._look(), None
        return self._contact

    def _look(self) -> Contact:
        names, count = list(self._slot), len(self._slot)
        if self._order is None:
            by_id = sorted(range(count), key=names.__getitem__)
            self._order = np.array(by_id, dtype=np.int64)
        state, group = self._table[_SHAPE : _SHAPE + 2, :count].astype(np.int64)
        alive = state == _ALIVE
        slots = self._order[alive[self._order]]
        index_of = np.full(count, -1)
        index_of[slots] = np.arange(len(slots))
        heard = np.zeros(len(self._groups), dtype=np.bool_)
        heard[group[slots]] = True
        counted = alive | ((state > 0) & ~heard[group])
        figures = np.full((3, len(heard)), np.inf)
        for least, column in zip(figures, self._table[_SHAPE + 2 : _KEPT, :count], strict=True):
            np.minimum.at(least, group[counted], column[counted])
        ids = tuple([names[slot] for slot in slots.tolist()])
        return Contact(slots, ids, index_of, np.append(group, -1), heard, figures)

    def sites(self, occupied: Ints) -> Sites:
        """Give the sites: groups with a node in contact, and those where jobs are.

        Args:
            occupied: Slots of nodes that jobs are on, or going to.
        """
        contact = self.contact()
        shown = contact.heard.copy()
        shown[contact.group_of[occupied]] = True
        key = shown.tobytes()
        if self._sites is None or self._sites[0] != key:
            self._sites = key, self._make_sites(shown.tolist())
        return self._sites[1]

    def _make_sites(self, shown: list[bool]) -> Sites:
        there = sorted(group for group, number in self._groups.items() if shown[number])
        parts = Counter(pool for pool, _ in there)
        numbers = [self._groups[group] for group in there]
        of_group = np.full(len(shown) + 1, -1)
        of_group[numbers] = np.arange(len(there))
        kinds = [_KIND[self._state.pools[pool].kind] for pool, _ in there]
        speed, memory, transfer = self.contact().figures[:, numbers]
        pools = Pools(
            ids=tuple([p if parts[p] == 1 else site_id(p, agent) for p, agent in there]),
            kind=np.array(kinds, dtype=np.int64),
            speed=speed,
            gpu_memory_mib=memory,
            transfer_mib_per_s=transfer,
        )
        return Sites(pools, tuple([pool for pool, _ in there]), of_group)

    def columns(self, sites: Sites) -> Nodes:
        """Make the columns of the nodes in contact."""
        contact = self.contact()
        found = self._table[:_SHAPE].take(contact.slots, axis=1)
        gpus, free, usable, loan = found[:4].astype(np.int64)
        return Nodes(
            ids=contact.ids,
            pool=sites.of_group[contact.group_of[contact.slots]],
            gpus=gpus,
            free=free,
            usable=usable.astype(np.bool_),
            loan=loan,
            lent_since_s=found[4],
            returned_s=found[5],
        )
