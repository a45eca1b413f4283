"""Nodes and their owners as ideal agents have them: births, need, loans and failures.

An owner that is asked for a node stops serving with it at once and has drained it after a while;
one that gets a node back serves with it when it is warm. Owners report what they need once a
minute, as far as a scheduler would take note of it: when it changed, and once in each slot in
which demand is remembered.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import numpy as np

from scheduler.core.state import SLOT_S
from scheduler.core.stimuli import Command
from scheduler.policies.interface import Kind
from schemas.commands import LendNode, ReturnNode
from schemas.events import (
    CommandAcknowledged,
    GangHeld,
    InferenceLoad,
    NodeBorn,
    NodeDied,
)
from simulator.driver import START_S, Say
from simulator.layout import Layout
from simulator.pools import Failure, Load, Owner, SimulatedPool

#: How often an owner reports its need. Divides a slot.
REPORT_S = 60.0
_IDLE = Load(np.zeros(1))


class Fleet:
    """All nodes of a run, and what is about to happen to them."""

    def __init__(
        self,
        layout: Layout,
        failures: tuple[Failure, ...],
        held_on: Callable[[str], list[GangHeld]],
        kill: Callable[[str, float], None],
    ) -> None:
        """Begin: all up, nothing lent.

        Args:
            layout: The nodes.
            failures: When nodes are gone.
            held_on: Lists the gangs on a node.
            kill: Ends all gangs on a node.

        Raises:
            ValueError: A failure is of a node that is not there.
        """
        self._layout, self._held_on, self._kill = layout, held_on, kill
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._pushed = self.failures = 0
        self._down: set[str] = set()
        self._loans: dict[str, str] = {}  # node -> loan that its agent knows of
        self._serves: set[str] = set()
        self.owners: dict[str, Owner] = {}  # by node
        for failure in failures:
            if failure.node not in layout.at:
                raise ValueError(f"failures: there is no node {failure.node}")
            self._then(START_S + failure.at_s, self._failing(failure))
        for owner in owners_of(layout):
            for node in owner.nodes.tolist():
                self.owners[layout.ids[node]] = owner
            self._tell_next(owner, _moments(owner))
        self._say: Say

    # --- time ---------------------------------------------------------------------------------

    def begin(self, say: Say) -> None:
        """Let nodes be born, and owners say what they needed until now."""
        self._say = say
        for node in self._layout.ids:
            self._born(node)
            if (owner := self.owners.get(node)) is not None:
                self._serves.add(node)
                owner.serve(self._pool_of(node).gpus_per_node, 0.0)

    @property
    def next_s(self) -> float:
        """When something happens next; inf if nothing does."""
        return self._heap[0][0] if self._heap else math.inf

    def happen(self, now_s: float) -> None:
        """Let everything happen that is due."""
        while self._heap and self._heap[0][0] <= now_s:
            heapq.heappop(self._heap)[2](now_s)

    def _then(self, at_s: float, act: Callable[[float], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, self._pushed, act))

    # --- what is said -------------------------------------------------------------------------

    def _born(self, node: str) -> None:
        at, layout = self._layout.at[node], self._layout
        born = NodeBorn(
            agent=layout.agent_of(at),
            held=self._held_on(node),
            loan=self._loans.get(node),
            **layout.spec(at),
        )
        self._say(born, self._source(node))

    def say_again(self, agent: str) -> None:
        """Say what an agent's nodes hold, as it does when it is asked."""
        for node, at in self._layout.at.items():
            if self._layout.agent_of(at) == agent and node not in self._down:
                self._born(node)

    def _tell_next(self, owner: Owner, moments: Iterator[float]) -> None:
        def tell(now_s: float) -> None:
            self._tell_need(owner, now_s)
            self._tell_next(owner, moments)

        self._then(next(moments), tell)

    def _tell_need(self, owner: Owner, now_s: float) -> None:
        need = math.ceil(owner.load.at(now_s - START_S))
        whole = owner.kind == Kind.INFERENCE
        first = self._layout.ids[int(owner.nodes[0])]
        self._say(
            InferenceLoad.model_construct(
                pool=self._pool_of(first).id,
                node=None if whole else first,
                requests_running=0,
                requests_waiting=0,
                request_rate_per_s=0.0,
                gpus_needed=need,
                gpus_serving=owner.held,
            ),
            self._source(first),
        )

    def _source(self, node: str) -> str:
        return f"/agents/{self._layout.agent_of(self._layout.at[node])}"

    def _pool_of(self, node: str) -> SimulatedPool:
        return self._layout.node_pool(self._layout.at[node])

    # --- loans --------------------------------------------------------------------------------

    def obey(self, command: Command, now_s: float) -> None:
        """Lend a node when it is drained, or take one back."""
        data = command.data
        if isinstance(data, LendNode):
            if data.node in self._down:
                return
            self._stop_serving(data.node, now_s)
            self._loans[data.node] = data.loan
            drained_s = now_s + self._pool_of(data.node).drain_s
            self._then(drained_s, partial(self._answer, command, data.node))
        elif isinstance(data, ReturnNode):
            if self._loans.get(data.node) == data.loan:
                del self._loans[data.node]
                warm_s = now_s + self._pool_of(data.node).warm_up_s
                self._then(warm_s, partial(self._serve, data.node))
            self._answer(command, data.node, now_s)

    def _answer(self, command: Command, node: str, now_s: float) -> None:
        self._say(
            CommandAcknowledged.model_construct(command=command.id, outcome="done"),
            self._source(node),
        )

    def _serve(self, node: str, now_s: float) -> None:
        if node not in self._serves and node not in self._down and node not in self._loans:
            self._serves.add(node)
            self.owners[node].serve(self._pool_of(node).gpus_per_node, now_s - START_S)

    def _stop_serving(self, node: str, now_s: float) -> None:
        if node in self._serves:
            self._serves.remove(node)
            self.owners[node].serve(-self._pool_of(node).gpus_per_node, now_s - START_S)

    # --- failures -----------------------------------------------------------------------------

    def _failing(self, failure: Failure) -> Callable[[float], None]:
        def fail(now_s: float) -> None:
            node = failure.node
            if node in self._down:
                return
            self._kill(node, now_s)
            self._down.add(node)
            self._loans.pop(node, None)
            self._stop_serving(node, now_s)
            self.failures += 1
            self._say(NodeDied(node=node, reason="failed"), self._source(node))
            self._then(now_s + failure.down_s, rise)

        def rise(now_s: float) -> None:
            self._down.remove(failure.node)
            self._born(failure.node)
            if failure.node in self.owners:
                self._serve(failure.node, now_s)

        return fail


def owners_of(layout: Layout) -> list[Owner]:
    """Make the owners of all pools that lend, by id."""
    found = []
    for m, pool in enumerate(layout.all_pools):
        mine = np.flatnonzero(layout.pool == m)
        if pool.kind == Kind.INFERENCE:
            found.append(Owner(pool.id, pool.kind, mine, pool.loads[0], pool.gpus))
        elif pool.kind == Kind.EDGE:
            loads = pool.loads or (_IDLE,) * pool.nodes
            found += [
                Owner(layout.ids[node], pool.kind, mine[[i]], load, pool.gpus_per_node)
                for i, (node, load) in enumerate(zip(mine.tolist(), loads, strict=True))
            ]
    return sorted(found, key=lambda owner: owner.id)


def _moments(owner: Owner) -> Iterator[float]:
    """Give when an owner's report says something: a change of its need, or in a new slot."""
    load = owner.load
    end_s = load.from_s + len(load.gpus) * load.slot_s
    at_s = START_S + np.arange(load.from_s // REPORT_S * REPORT_S, end_s + REPORT_S, REPORT_S)
    at_s = at_s[at_s >= 0.0]
    slot = np.clip((at_s - START_S - load.from_s) // load.slot_s, 0, len(load.gpus) - 1)
    need = load.gpus[slot.astype(np.int64)]
    fresh = np.ones(len(at_s), dtype=np.bool_)
    fresh[1:] = (np.diff(need) != 0.0) | (np.diff(at_s // SLOT_S) > 0)
    yield from at_s[fresh].tolist()
    last = int(at_s[-1] // SLOT_S)
    yield from (slot * SLOT_S for slot in count(last + 1))
