"""DeepBoot's PROTECT state: a GPU that has just served stays its owner's for a while.

A GPU is FREE (idle, it may be lent), RUN (the owner needs it) or PROTECT (idle, but kept warm, for
the owner may need it again at once). It is protected for `min(base + bonus * hits, most) *
multiplier` seconds, where `hits` counts how often in a row it was needed again while protected. The
rule and its figures are those of DeepBoot's published scheduler.

    state    needed           idle               returned            left   time
    FREE     RUN, hits = 0    -                  PROTECT, hits = 0   -      -
    RUN      -                PROTECT            -                   FREE   -
    PROTECT  RUN, hits + 1    -                  -                   FREE   FREE at its end

Pure: every moment is passed in. Loads are counted, not placed, so which GPU is needed is chosen
here: first those in RUN, then the kept ones with the most hits, then free ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic.dataclasses import dataclass as checked

from schemas.options import CHECKED, Delay

Happening = Literal["needed", "idle", "returned", "left", "time"]


@checked(frozen=True, slots=True, config=CHECKED)
class ProtectTimes:
    """How long a GPU is kept, in seconds. A multiplier of 0 switches protection off."""

    base_s: Delay = 30.0  #: Protection of a GPU without hits.
    #: Added for each hit in a row.
    bonus_s: Delay = 15.0
    max_s: Delay = 120.0  #: The longest protection, however many hits there were.
    multiplier: Delay = 1.0  #: Multiplies the result; 0: no GPU is protected.

    def kept_s(self, hits: int) -> float:
        """Give how long a GPU with so many hits is kept."""
        return min(self.base_s + self.bonus_s * hits, self.max_s) * self.multiplier


@dataclass(frozen=True, slots=True)
class Gpu:
    """The state of one GPU; `until_s` counts in PROTECT only."""

    state: Literal["free", "run", "protect"] = "free"
    hits: int = 0
    until_s: float = 0.0

    def after(self, what: Happening, now_s: float, times: ProtectTimes) -> "Gpu":
        """Give the state that follows; see the table of this module."""
        if self.state == "protect" and now_s >= self.until_s:
            return FREE.after(what, now_s, times)
        match self.state, what:
            case _, "left":
                return FREE
            case "free", "needed":
                return RUN
            case ("free", "returned") | ("run", "idle"):
                kept_s = times.kept_s(self.hits)
                return Gpu("protect", self.hits, now_s + kept_s) if kept_s > 0 else FREE
            case "protect", "needed":
                return Gpu("run", self.hits + 1)
            case _:
                return self

    def to_row(self) -> list[Any]:
        """Give it as JSON has it."""
        return [self.state, self.hits, self.until_s]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> "Gpu":
        """Read what `to_row` gave.

        Raises:
            ValueError: it is something else.
        """
        match row:
            case ["free" | "run" | "protect" as state, int(hits), int() | float() as until_s]:
                return cls(state, hits, float(until_s))
            case _:
                raise ValueError(f"not the state of a GPU: {row!r}")


FREE = Gpu()
RUN = Gpu("run")


class Protection:
    """The states of all GPUs of an owner, by node."""

    def __init__(self, gpus: Mapping[str, int], times: ProtectTimes) -> None:
        self._times = times
        self._gpus = {node: [FREE] * count for node, count in sorted(gpus.items())}
        self._away: set[str] = set()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of all GPUs, by name."""
        return tuple(self._gpus)

    def gpus(self, node: str) -> tuple[Gpu, ...]:
        """Give the states of a node's GPUs, by index."""
        return tuple(self._gpus[node])

    def count(self, state: str) -> int:
        """Give how many GPUs are in a state, as of the last call that passed a moment."""
        return sum(gpu.state == state for gpus in self._gpus.values() for gpu in gpus)

    def need(self, count: int, nodes: Sequence[str], now_s: float) -> int:
        """Note that this many GPUs of these nodes are needed; give how many count with protection.

        Args:
            count: GPUs that the load takes; may be more than there are.
            nodes: Those whose load it is.
            now_s: The moment.

        Returns:
            `count`, or the GPUs in RUN or PROTECT if those are more.
        """
        self.pass_time(now_s)
        here = self._here(nodes)
        for place, (node, index) in enumerate(sorted(here, key=self._rank)):
            self._turn(node, index, "needed" if place < count else "idle", now_s)
        kept = sum(self._gpus[node][index].state != "free" for node, index in here)
        return max(count, kept)

    def leave(self, node: str, nodes: Sequence[str], now_s: float) -> bool:
        """Let the owner leave a node, if nothing of what it needs or keeps has to be there.

        What is in RUN or PROTECT there moves to free GPUs of the other `nodes`, as the owner's
        load does. If those are too few, nothing changes.

        Returns:
            Whether the owner may leave.
        """
        self.pass_time(now_s)
        taken = [gpu for gpu in self._gpus[node] if gpu.state != "free"]
        others = self._here([name for name in nodes if name != node])
        room = [(name, i) for name, i in others if self._gpus[name][i].state == "free"]
        if len(room) < len(taken):
            return False
        for (name, index), gpu in zip(room, taken, strict=False):
            self._gpus[name][index] = gpu
        self.left(node)
        return True

    def left(self, node: str) -> None:
        """The owner is not on the node, whatever was there."""
        self._gpus[node] = [FREE] * len(self._gpus[node])
        self._away.add(node)

    def returned(self, node: str, now_s: float, *, kept: bool) -> None:
        """The owner is on the node again; if `kept`, its GPUs are protected."""
        self._away.discard(node)
        for index in range(len(self._gpus[node]) if kept else 0):
            self._turn(node, index, "returned", now_s)

    def pass_time(self, now_s: float) -> None:
        """End protections whose time is over."""
        latest_s = now_s + self._times.max_s * self._times.multiplier
        for node, gpus in self._gpus.items():
            for index, gpu in enumerate(gpus):
                if gpu.until_s > latest_s:  # a clock was set back, or the times were shortened
                    gpus[index] = replace(gpu, until_s=latest_s)
                self._turn(node, index, "time", now_s)

    def next_end_s(self) -> float | None:
        """When the next protection ends; None if nothing is protected."""
        return min(
            (g.until_s for gpus in self._gpus.values() for g in gpus if g.state == "protect"),
            default=None,
        )

    def to_row(self, node: str) -> list[list[Any]]:
        """Give the states of a node's GPUs as JSON has them."""
        return [gpu.to_row() for gpu in self._gpus[node]]

    def from_row(self, node: str, rows: Sequence[Sequence[Any]]) -> None:
        """Take over what `to_row` gave; GPUs that are new since then are free.

        Raises:
            ValueError: it is something else.
        """
        read = [Gpu.from_row(row) for row in rows]
        count = len(self._gpus[node])
        self._gpus[node] = [*read, *[FREE] * count][:count]

    def _here(self, nodes: Sequence[str]) -> list[tuple[str, int]]:
        present = [node for node in nodes if node not in self._away and node in self._gpus]
        return [(node, index) for node in present for index in range(len(self._gpus[node]))]

    def _rank(self, at: tuple[str, int]) -> tuple[int, int]:
        gpu = self._gpus[at[0]][at[1]]
        return ("run", "protect", "free").index(gpu.state), -gpu.hits

    def _turn(self, node: str, index: int, what: Happening, now_s: float) -> None:
        self._gpus[node][index] = self._gpus[node][index].after(what, now_s, self._times)
