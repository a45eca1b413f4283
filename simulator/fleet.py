"""All nodes of a run: whose they are, what is free, and how loans and failures go.

A loan: OWNED, asked for; LENDING while its owner drains it; LENT; RECLAIMING from when it is asked
back until the last job has left and its checkpoint is written; OWNED, and serving again once it is
warm. Who is still there when the grace is over is killed.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from scheduler.policies.interface import Bools, Ints, Kind, Lender, LoanPhase, Nodes
from simulator.layout import Layout
from simulator.options import Options
from simulator.owners import Owner
from simulator.room import PoolRoom
from simulator.usage import Usage


class What(IntEnum):
    """What may happen to a node by itself."""

    LENT = 0
    BACK = 1
    OVER = 2  #: The grace.
    WARM = 3
    FAILS = 4
    UP = 5
    TURNS = 6  #: The owner's need begins or ends.


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that came about: whether a policy should hear of it, and where jobs are killed."""

    news: bool = True
    kills_on: int = -1
    late: bool = False  #: They are killed because a grace is over.


class Fleet:
    """The nodes as columns, by name, and what is about to happen to them."""

    def __init__(self, layout: Layout, options: Options) -> None:
        """Begin: all up, nothing lent but what nobody else wants."""
        self.layout = layout
        rooms = layout.rooms
        #: Whether there is the training pool alone, and nothing ever happens to it.
        self.plain = len(rooms) == 1 and not options.failures
        self.gpus, many = layout.gpus, len(layout.ids)
        #: GPUs that no job holds, whoever may use them.
        self.free = self.gpus.copy()
        self.usable: Bools = np.ones(many, dtype=np.bool_)
        self.loan: Ints = np.full(many, int(LoanPhase.OWNED))
        self._lent_since_s = np.full(many, -math.inf)
        self._returned_s = np.full(many, -math.inf)
        self._down: Bools = np.zeros(many, dtype=np.bool_)
        self._serves: Bools = np.zeros(many, dtype=np.bool_)
        self._busy_until_s = [0.0] * many  # checkpoints are written there until then
        self._owner: list[Owner | None] = [None] * many
        #: (moment, number, what, node, the node's age or how long it is down).
        self._heap: list[tuple[float, int, What, int, float]] = []
        self._pushed = 0
        self._age = [0] * many  # grows with every change of a node: older events are void
        self._leaving: list[int] = []  # RECLAIMING nodes that jobs or checkpoints still hold
        self.on_loan = 0  #: Nodes that policies have to think of until they are back.
        self._batch = -1
        self._asked_back: dict[int, int] = {}  # node -> its row in the record of reclaims
        self.usage = Usage(self.gpus, layout.pools.kind[layout.pool])
        #: By id.
        self.owners = sorted(self._owners(options), key=lambda owner: owner.id)
        for failure in options.failures:
            if failure.node not in layout.at:
                raise ValueError(f"failures: there is no node {failure.node}")
            self._push(failure.at_s, What.FAILS, layout.at[failure.node], failure.down_s)
        self._recount(0.0)

    def _owners(self, options: Options) -> list[Owner]:
        found = []
        for m, room in enumerate(self.layout.rooms):
            mine = np.flatnonzero(self.layout.pool == m)
            if room.kind == Kind.TRAINING:
                continue
            if not room.loads:
                self._open(mine, 0.0)
                continue
            whole = room.kind == Kind.INFERENCE
            shares = [mine] if whole else [mine[[i]] for i in range(len(mine))]
            for nodes, load in zip(shares, room.loads, strict=True):
                name = room.id if whole else self.layout.ids[int(nodes[0])]
                gpus = room.gpus_per_node * len(nodes)
                owner = Owner(
                    name, room.kind, nodes, load, room.asks, gpus, options.history_slots, gpus
                )
                found.append(owner)
                self._serves[nodes] = True
                self.usable[nodes] = False
                for node in nodes.tolist():
                    self._owner[node] = owner
                    if not room.asks:
                        self._turns(node, 0.0)
        return found

    # --- what is there ------------------------------------------------------------------------

    @property
    def next_s(self) -> float:
        """When something happens next; inf if nothing ever does."""
        return self._heap[0][0] if self._heap else math.inf

    def nodes(self) -> Nodes:
        """Show the nodes to a policy."""
        if self.plain:
            free, usable, loan = self.free.copy(), self.usable, self.loan
            lent_since_s, returned_s = self._lent_since_s, self._returned_s
        else:
            free, usable, loan = self.open_free(), self.usable.copy(), self.loan.copy()
            lent_since_s, returned_s = self._lent_since_s.copy(), self._returned_s.copy()
        layout = self.layout
        return Nodes(
            layout.ids, layout.pool, self.gpus, free, usable, loan, lent_since_s, returned_s
        )

    def lenders(self, now_s: float) -> tuple[Lender, ...]:
        """Show the owners to a policy, by id."""
        down = bool(self._down.any())
        found = [
            owner.lender(now_s, owner.nodes[~self._down[owner.nodes]] if down else owner.nodes)
            for owner in self.owners
        ]
        return tuple(found)

    def open_free(self) -> Ints:
        """Return the GPUs that jobs may be given."""
        found: Ints = np.where(self.usable, self.free, 0) if not self.plain else self.free
        return found

    # --- loans --------------------------------------------------------------------------------

    def lend(self, names: Sequence[str], now_s: float) -> None:
        """Ask owners for nodes.

        Raises:
            RuntimeError: One is not its owner's.
        """
        for name in names:
            node = self.layout.at[name]
            owner = self._owner[node]
            if owner is None or self.loan[node] != LoanPhase.OWNED or self._down[node]:
                raise RuntimeError(f"{name} was asked for, and is not its owner's to lend")
            self._stop_serving(node, now_s)
            self._enter(node, LoanPhase.LENDING)
            room = self._room(node)
            self._push(now_s + room.drain_s, What.LENT, node, self._age[node])
            self.on_loan += 1

    def reclaim(self, due_s: Mapping[str, float], now_s: float) -> None:
        """Ask for nodes back; `settle` follows when jobs were moved off them.

        Raises:
            RuntimeError: One is not lent.
        """
        batches: dict[str, int] = {}
        for name in sorted(due_s):
            node = self.layout.at[name]
            owner = self._owner[node]
            if owner is None or self.loan[node] != LoanPhase.LENT:
                raise RuntimeError(f"{name} was asked back, and is not lent")
            if owner.id not in batches:
                self._batch += 1
                batches[owner.id] = self._batch
            self._reclaim(node, batches[owner.id], due_s[name], now_s)

    def _reclaim(self, node: int, batch: int, due_s: float, now_s: float) -> None:
        self._enter(node, LoanPhase.RECLAIMING)
        self.usable[node] = False
        self._leaving.append(node)
        self._asked_back[node] = self.usage.ask_back(batch, now_s, due_s)
        over_s = max(due_s, now_s + self._room(node).grace_s)
        self._push(over_s, What.OVER, node, self._age[node])

    def writes(self, node: int, until_s: float) -> None:
        """Keep a node, if it is on loan, until a job that left has written its checkpoint."""
        if self._owner[node] is not None:
            self._busy_until_s[node] = max(self._busy_until_s[node], until_s)

    def settle(self, now_s: float) -> None:
        """Let nodes go back that jobs have left."""
        if not self._leaving:
            return
        left = [node for node in self._leaving if self.free[node] == self.gpus[node]]
        for node in left:
            self._leaving.remove(node)
            back_s = max(now_s, self._busy_until_s[node])
            self._push(back_s, What.BACK, node, self._age[node])

    # --- what happens -------------------------------------------------------------------------

    def turn(self, now_s: float) -> Happening | None:
        """Let the next thing happen that is due; None if none is."""
        if self.next_s > now_s:
            return None
        at_s, _, what, node, extra = heapq.heappop(self._heap)
        if what is What.FAILS:
            return self._fail(node, extra, at_s)
        if what is What.TURNS:
            return self._turns(node, at_s)
        if extra != self._age[node]:
            return Happening(news=False)
        if what is What.OVER:
            # Whoever has left is writing its checkpoint; that is late, but is let be.
            holds = self.free[node] < self.gpus[node]
            return Happening(news=holds, kills_on=node if holds else -1, late=holds)
        if what is What.LENT:
            self._open(np.array([node]), at_s)
            self.usage.loans += 1
        elif what is What.BACK:
            return Happening(news=self._give_back(node, at_s))
        elif what is What.WARM:
            self._serve(node, at_s)
            return Happening(news=False)
        elif what is What.UP:
            self._rise(node, at_s)
        self._recount(at_s)
        return Happening()

    def changed(self, now_s: float) -> None:
        """Note that jobs came or went."""
        if not self.plain:
            self.usage.book(now_s)
            self.usage.look(self.free)

    def close(self, now_s: float) -> None:
        """End all accounts."""
        self.usage.book(now_s)
        for owner in self.owners:
            owner.book(now_s)

    def _recount(self, now_s: float) -> None:
        self.usage.book(now_s)
        lent = (self.loan == LoanPhase.LENT) | (self.loan == LoanPhase.RECLAIMING)
        self.usage.open(self.usable | lent & ~self._down)
        self.usage.look(self.free)

    def _room(self, node: int) -> PoolRoom:
        return self.layout.rooms[int(self.layout.pool[node])]

    def _push(self, at_s: float, what: What, node: int, extra: float) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, self._pushed, what, node, extra))

    def _enter(self, node: int, phase: LoanPhase) -> None:
        self.loan[node] = int(phase)
        self._age[node] += 1

    def _open(self, nodes: Ints, now_s: float) -> None:
        self.loan[nodes] = int(LoanPhase.LENT)
        self.usable[nodes] = True
        self._lent_since_s[nodes] = now_s

    def _stop_serving(self, node: int, now_s: float) -> None:
        owner = self._owner[node]
        if owner is not None and self._serves[node]:
            self._serves[node] = False
            owner.serve(-int(self.gpus[node]), now_s)

    def _serve(self, node: int, now_s: float) -> None:
        owner = self._owner[node]
        if owner is not None and not self._serves[node]:
            self._serves[node] = True
            owner.serve(int(self.gpus[node]), now_s)

    def _give_back(self, node: int, now_s: float) -> bool:
        """Let the owner have a node again; say whether it lends it at once."""
        self._enter(node, LoanPhase.OWNED)
        self._returned_s[node] = now_s
        self._lent_since_s[node] = -math.inf
        owner = self._owner[node]
        self.on_loan -= owner is not None and owner.asks
        if (row := self._asked_back.pop(node, None)) is not None:
            self.usage.back(row, now_s)
        room = self._room(node)
        self._push(now_s + room.warm_up_s, What.WARM, node, self._age[node])
        self._recount(now_s)
        return self._offer(node, now_s)

    def _offer(self, node: int, now_s: float) -> bool:
        """Lend a node whose owner does so by itself, if it may; say whether it was."""
        owner = self._owner[node]
        if owner is None or owner.asks or owner.load.at(now_s) > 0.0 or self._down[node]:
            return False
        if self.loan[node] != LoanPhase.OWNED:
            return False
        self._stop_serving(node, now_s)
        self._enter(node, LoanPhase.LENT)
        self._open(np.array([node]), now_s)
        self.usage.loans += 1
        self._recount(now_s)
        return True

    def _turns(self, node: int, now_s: float) -> Happening:
        """Follow the need of an owner that lends by itself."""
        owner = self._owner[node]
        if owner is None:
            return Happening(news=False)
        next_s = owner.load.turns_after(now_s)
        if next_s < math.inf:
            self._push(next_s, What.TURNS, node, 0.0)
        if owner.load.at(now_s) <= 0.0:
            return Happening(news=self._offer(node, now_s))
        if self.loan[node] != LoanPhase.LENT:
            return Happening(news=False)
        self._batch += 1
        self._reclaim(node, self._batch, now_s + self._room(node).grace_s, now_s)
        self.settle(now_s)
        return Happening()

    def _fail(self, node: int, down_s: float, now_s: float) -> Happening:
        if self._down[node]:
            return Happening(news=False)
        self._down[node] = True
        self._stop_serving(node, now_s)
        if self._owner[node] is not None and self.loan[node] != LoanPhase.OWNED:
            self._give_back(node, now_s)
            if node in self._leaving:
                self._leaving.remove(node)
        self._age[node] += 1
        self.usable[node] = False
        self.usage.failures += 1
        self._push(now_s + down_s, What.UP, node, self._age[node])
        self._recount(now_s)
        return Happening(kills_on=node)

    def _rise(self, node: int, now_s: float) -> None:
        self._down[node] = False
        if self._owner[node] is None:
            self.usable[node] = True
        elif not self._offer(node, now_s):
            self._serve(node, now_s)
