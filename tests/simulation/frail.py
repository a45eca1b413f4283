"""Agents that may end and begin again, on links that may be cut."""

import math
from collections.abc import Sequence
from typing import Any

from runtime.core import AgentCore, Limits, NodeSpec
from runtime.simulated_owner import SimulatedOwner
from simulator.cores import Agent, Lane, Wire


class Link(Lane[Any]):
    """A lane that may be cut: what is on its way waits until it is whole again."""

    whole = True

    @property
    def due_s(self) -> float:
        return super().due_s if self.whole else math.inf


class FrailAgent(Agent):
    """An agent whose process may end and begin again, and whose link may be cut."""

    up = True

    def __init__(
        self,
        name: str,
        specs: Sequence[NodeSpec],
        owner: SimulatedOwner | None,
        limits: Limits | None,
    ) -> None:
        super().__init__(name, specs, owner)
        self._limits = limits
        self.core = AgentCore(name, specs, limits)

    def connect(self, wire: Wire) -> None:
        self.inbox, self.outbox = self._links = Link(wire.orders), Link(wire.events)

    @property
    def linked(self) -> bool:
        return self._links[0].whole

    @linked.setter
    def linked(self, whole: bool) -> None:
        for link in self._links:
            link.whole = whole

    def restart(self, now_s: float) -> None:
        """Lose all workers, and come back with what was written down."""
        self.core = AgentCore.from_dict(self.name, self._specs, self.core.to_dict(), self._limits)
        self._bootid, self._sequence, self.up = self._bootid + 1, 0, True
        self.begin(now_s)

    def die(self, now_s: float, *, farewell: bool) -> None:
        """End, with all workers; with a word, or without."""
        if farewell:
            self._turns.farewell("shut down", now_s)
        self.up = False

    @property
    def due_s(self) -> float:
        return super().due_s if self.up else self.outbox.due_s

    def turn(self, now_s: float) -> None:
        if self.up:
            super().turn(now_s)
