"""Meters: where telemetry and the owner's load come from."""

from collections.abc import Sequence
from typing import Protocol

from runtime.core import NodeDrained, NodeHandedBack
from schemas.events import InferenceLoad, NodeMeasured


class GpuMeter(Protocol):
    """Measures the GPUs of the agent's nodes."""

    def measure(self, now_s: float, window_s: float) -> Sequence[NodeMeasured]:
        """Give one reading per node, means over the last `window_s` seconds."""
        ...


class LoadMeter(Protocol):
    """Measures what the owner of the nodes serves."""

    def loads(self, now_s: float) -> Sequence[InferenceLoad]:
        """Give the load now: one for the pool, or one per node."""
        ...


class Owner(LoadMeter, Protocol):
    """The owner of lendable nodes: leaves them and takes them back when asked."""

    def drain(self, node: str, now_s: float) -> None:
        """Leave the node; report `NodeDrained` when nothing is served there. May be repeated."""
        ...

    def hand_back(self, node: str, now_s: float) -> None:
        """Take the node back; report `NodeHandedBack` when that is done. May be repeated."""
        ...

    def advance(self, now_s: float) -> Sequence[NodeDrained | NodeHandedBack]:
        """Give what has happened since the last call, in order."""
        ...

    def next_due_s(self) -> float | None:
        """When to call `advance` next; None if nothing is under way."""
        ...
