"""The owner of an agent's lendable nodes: it measures by a LoadMeter and acts by a Lender.

The phases of a node:

    served     the owner has it               a drain waits here for PROTECT to end
    draining   the owner is leaving           then: left; if it failed or was cancelled: returning
    left       the owner has left             the only phase that is reported as drained
    returning  the owner is brought back      repeated until confirmed, however often it fails

So a drain that fails is rolled back before it is tried again, a few times, and is never reported:
the scheduler gives up a loan that is not confirmed, and orders the node back. That a node is left
is stored before it is reported: a drain that is repeated after a restart, perhaps with training on
the node, is confirmed again but not rolled back.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass as checked

from runtime.core import NodeDrained, NodeHandedBack
from runtime.meters import LoadMeter
from runtime.owners.lender import Lender, Outcome
from runtime.owners.protect import Protection, ProtectTimes
from runtime.owners.state import OwnerFile, SavedPhase
from schemas.events import InferenceLoad
from schemas.options import CHECKED, Count, Seconds

#: Gives the nodes that an owner serves with now.
Serving = Callable[[], tuple[str, ...]]


@checked(frozen=True, slots=True, config=CHECKED)
class Retry:
    """How failures are repeated: first after `first_s`, then doubling up to `max_s`."""

    first_s: Seconds = 5.0  #: After the first failure; it doubles with each, ...
    max_s: Seconds = 300.0  #: ...up to this.
    #: How often a drain is tried under one order: each try stops the owner's replicas.
    drains: Count = 3

    def __post_init__(self) -> None:
        if self.first_s > self.max_s:
            raise ValueError("first_s: must be at most max_s")

    def pause_s(self, failures: int) -> float:
        """Give the pause after so many failures in a row."""
        return float(min(self.first_s * 2.0 ** min(failures - 1, 60), self.max_s))


@dataclass(slots=True)
class Counters:
    """What the owner has done since the agent began."""

    drains: int = 0
    drain_failures: int = 0
    rollbacks: int = 0
    drains_given_up: int = 0
    hand_backs: int = 0
    hand_back_failures: int = 0


@dataclass(slots=True)
class _Node:
    phase: Literal["served", "draining", "left", "returning"] = "served"
    #: Whether the phase was confirmed, since the start or by the file.
    is_sure: bool = False
    #: Whether it was left before, so that training may be on it.
    may_be_lent: bool = False
    wants_drained: bool = False
    owes_return: bool = False
    drains: int = 0  # tries under this order
    failures: int = 0  # of bringing it back, in a row
    #: When the next try is due.
    due_s: float = math.inf
    drain_error: str = ""
    return_error: str = ""
    report: NodeDrained | NodeHandedBack | None = None

    @property
    def saved_phase(self) -> SavedPhase:
        """The phase as the file has it, for a restart."""
        if self.may_be_lent:
            return "left"
        return "served" if self.phase == "served" else "away"


class ServedOwner:
    """An Owner by a LoadMeter and a Lender."""

    def __init__(
        self,
        make_meter: Callable[[Serving], LoadMeter],
        lender: Lender,
        gpus: Mapping[str, int],
        file: Path,
        now_s: float,
        *,
        protect: ProtectTimes | None = None,
        retry: Retry | None = None,
    ) -> None:
        """Go on where the file ends.

        Args:
            make_meter: Makes the meter of the load; given a function that gives the nodes on which
                the owner serves now, so that the meter asks no server that has left.
            lender: Frees nodes and gives them back.
            gpus: GPUs by lendable node.
            file: Keeps which nodes are left, and the protection of each GPU.
            now_s: The moment.
            protect: For how long GPUs are kept from lending after they were in use.
            retry: How failures are repeated.
        """
        self.counters = Counters()
        self._lender = lender
        self._gpus = dict(gpus)
        self._retry = retry or Retry()
        self._nodes = {node: _Node() for node in sorted(gpus)}
        #: The nodes that share their load with a node, as the loads say.
        self._scope = {node: [node] for node in self._nodes}
        self._protection = Protection(gpus, protect or ProtectTimes())
        self._file = OwnerFile(file)
        self._now_s, self._ahead_s = now_s, 0.0
        #: Until the first `advance`: lent nodes are drained before it.
        self._is_new = True
        for name, kept in self._file.load(self._protection).items():
            held = self._nodes[name]
            held.is_sure, held.may_be_lent = kept == "served", kept == "left"
            if kept != "served":
                self._protection.left(name)
                held.phase = "returning"
        self._meter = make_meter(self.serving)

    def serving(self) -> tuple[str, ...]:
        """Give the nodes that the owner serves with now; not those it leaves or returns to."""
        return tuple(name for name, held in self._nodes.items() if held.saved_phase == "served")

    @property
    def protected(self) -> int:
        """How many GPUs are kept from lending because they served a moment ago."""
        return self._protection.count("protect")

    def drain(self, node: str, now_s: float) -> None:
        held = self._nodes[node]
        self._set_time(now_s)
        if self._is_new and held.phase == "returning":
            held.phase = "served"  # as far as we know: it is drained again
        if not held.wants_drained:
            held.wants_drained, held.report = True, None
            held.drains, held.due_s = 0, self._now_s
        elif held.phase == "left":
            held.report = NodeDrained(node)

    def hand_back(self, node: str, now_s: float) -> None:
        held = self._nodes[node]
        self._set_time(now_s)
        held.wants_drained, held.report, held.drain_error = False, None, ""
        held.owes_return = True
        if held.phase == "served" and held.is_sure:
            self._returned(node, held)
        elif held.phase != "returning":
            held.failures = 0
            self._bring_back(node, held)

    def advance(self, now_s: float) -> list[NodeDrained | NodeHandedBack]:
        self._set_time(now_s)
        if self._is_new:
            # A node that is `away` in the file, and is not drained or handed back now, is served.
            self._is_new = False
            for name, held in self._nodes.items():
                if held.phase == "returning":
                    self._bring_back(name, held)
        # Before the poll, in which lenders act: a lender that supervises its nodes must know of the
        # first drains before it begins, and the file must have each drain.
        for name, held in self._nodes.items():
            if self._now_s >= held.due_s:
                self._try_again(name, held)
        self._save()
        for outcome in self._lender.poll(self._now_s):
            self._learn(outcome, self._nodes[outcome.node])
        is_kept, reports = self._save(), list[NodeDrained | NodeHandedBack]()
        for held in self._nodes.values():
            # A drain that a crash could undo must not be reported; a hand-back would be repeated.
            if held.report is not None and (is_kept or isinstance(held.report, NodeHandedBack)):
                reports.append(held.report)
                held.report = None
        return reports

    def next_due_s(self) -> float | None:
        if self._is_new:
            return self._now_s - self._ahead_s
        due_s = min((held.due_s for held in self._nodes.values()), default=math.inf)
        if (lender_s := self._lender.next_due_s()) is not None:
            due_s = min(due_s, lender_s)
        if any(held.report is not None for held in self._nodes.values()):
            due_s = min(due_s, self._now_s + (1.0 if self._file.error else 0.0))
        return None if due_s == math.inf else due_s - self._ahead_s

    def loads(self, now_s: float) -> list[InferenceLoad]:
        """Give the meter's loads: protected GPUs count as needed, left ones not as serving."""
        self._set_time(now_s)
        loads = [self._raised(load) for load in self._meter.loads(self._now_s)]
        self._save()
        return loads

    def problems(self) -> list[str]:
        """Give problems for an operator; empty if there are none."""
        found = [
            f"node {name}: {error}"
            for name, held in self._nodes.items()
            for error in (held.return_error, held.drain_error)
            if error
        ]
        found += self._lender.problems()
        is_sure = all(held.is_sure for held in self._nodes.values())
        of_file = (self._file.error, "" if is_sure else self._file.read_error)
        return found + [error for error in of_file if error]

    def _set_time(self, now_s: float) -> None:
        """Go by the clock, but never back with it: what is due would wait for as long as that."""
        self._ahead_s = max(self._ahead_s, self._now_s - now_s)
        self._now_s = now_s + self._ahead_s

    # --- the phases of a node ---

    def _learn(self, outcome: Outcome, held: _Node) -> None:
        if outcome.operation == "drain" and held.phase == "draining":
            if outcome.error:
                self._drain_failed(outcome, held)
            else:
                self._left(outcome.node, held)
        elif outcome.operation == "hand_back" and held.phase == "returning":
            if outcome.error:
                self.counters.hand_back_failures += 1
                held.failures += 1
                held.return_error = f"its owner cannot be brought back: {outcome.error}"
                held.due_s = self._now_s + self._retry.pause_s(held.failures)
            else:
                self._back(outcome.node, held)

    def _left(self, node: str, held: _Node) -> None:
        self.counters.drains += 1
        held.phase, held.is_sure, held.may_be_lent = "left", True, True
        held.drain_error, held.report = "", NodeDrained(node)

    def _drain_failed(self, outcome: Outcome, held: _Node) -> None:
        self.counters.drain_failures += 1
        held.drain_error = f"its owner does not leave (try {held.drains}): {outcome.error}"
        if held.may_be_lent:
            # Training may run there: only an order brings the owner back.
            held.phase = "served"
            held.due_s = self._now_s + self._retry.pause_s(held.drains)
        else:
            self.counters.rollbacks += 1
            held.failures = 0
            self._bring_back(outcome.node, held)

    def _bring_back(self, node: str, held: _Node) -> None:
        held.phase, held.is_sure, held.due_s = "returning", False, math.inf
        self._lender.begin(node, "hand_back", self._now_s)

    def _back(self, node: str, held: _Node) -> None:
        held.phase, held.is_sure, held.may_be_lent = "served", True, False
        held.return_error, held.due_s = "", math.inf
        was_rolled_back = held.wants_drained and not held.owes_return
        self._protection.returned(node, self._now_s, kept=not was_rolled_back)
        if held.owes_return:
            self.counters.hand_backs += 1
            self._returned(node, held)
        if not held.wants_drained:
            return
        if held.drains == 0:
            held.due_s = self._now_s
        elif held.drains < self._retry.drains:
            held.due_s = self._now_s + self._retry.pause_s(held.drains)
        else:
            self.counters.drains_given_up += 1
            held.drain_error += "; given up until the next order"

    def _returned(self, node: str, held: _Node) -> None:
        held.owes_return, held.due_s = False, math.inf
        held.report = NodeHandedBack(node)

    def _try_again(self, node: str, held: _Node) -> None:
        if held.phase == "returning":
            self._bring_back(node, held)
        elif held.phase == "served" and held.wants_drained:
            if held.may_be_lent:
                self._protection.left(node)
            elif not self._protection.leave(node, self._scope[node], self._now_s):
                end_s = self._protection.next_end_s()
                # A GPU in RUN has no known end: try again when the loads have changed.
                held.due_s = min(self._now_s + 5.0, math.inf if end_s is None else end_s)
                return
            held.phase, held.is_sure, held.due_s = "draining", False, math.inf
            held.drains += 1
            self._lender.begin(node, "drain", self._now_s)

    # --- protection, and the file ---

    def _raised(self, load: InferenceLoad) -> InferenceLoad:
        nodes = list(self._nodes) if load.node is None else [load.node]
        nodes = [node for node in nodes if node in self._nodes]
        for node in nodes:
            self._scope[node] = nodes
        kept = self._protection.need(load.gpus_needed, nodes, self._now_s)
        there = sum(self._gpus[node] for node in self.serving() if node in nodes)
        serving = min(load.gpus_serving, there)
        if (kept, serving) == (load.gpus_needed, load.gpus_serving):
            return load
        return load.model_copy(update={"gpus_needed": kept, "gpus_serving": serving})

    def _save(self) -> bool:
        kept = {name: held.saved_phase for name, held in self._nodes.items()}
        return self._file.save(self._protection, kept)
