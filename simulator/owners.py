"""Those whom lent nodes belong to: what they serve with, what they miss, what they report."""

from dataclasses import dataclass, field

import numpy as np

from scheduler.core.state import SLOT_S
from scheduler.policies.interface import Floats, Ints, Kind, Lender
from simulator.room import Load

#: How often an owner reports its need. Divides a slot.
REPORT_S = 60.0


class Reports:
    """What an owner has reported until any moment: its need, by the minute.

    The history is made as the live scheduler makes it, the most of each slot, without gaps.
    """

    def __init__(self, load: Load, slots: int) -> None:
        self._load, self._slots = load, slots
        self._first = int(load.from_s // SLOT_S)  # number of the first slot
        self._per_slot = round(SLOT_S / REPORT_S)
        self._peak: Floats = np.zeros((0, self._per_slot))  # highest in the slot so far
        self._extend(self._first + int(len(load.gpus) * load.slot_s // SLOT_S) + 1)

    def _extend(self, last: int) -> None:
        """Know all slots up to number `last`."""
        begin = self._first + len(self._peak)
        at_s = begin * SLOT_S + REPORT_S * np.arange((last + 1 - begin) * self._per_slot)
        load = self._load
        slot = np.clip((at_s - load.from_s) // load.slot_s, 0, len(load.gpus) - 1)
        need = load.gpus[slot.astype(np.int64)].reshape(-1, self._per_slot)
        self._peak = np.concatenate((self._peak, np.maximum.accumulate(need, axis=1)))

    def seen(self, now_s: float) -> tuple[float, float, Floats]:
        """Return the last report, its age, and the history that ends with the present slot."""
        report_s = now_s // REPORT_S * REPORT_S
        number = int(now_s // SLOT_S)
        at = number - self._first
        if at >= len(self._peak):
            self._extend(number + len(self._peak))
        history = self._peak[max(0, at + 1 - self._slots) : at + 1, -1].copy()
        history[-1] = self._peak[at, int((report_s - number * SLOT_S) // REPORT_S)]
        return self._load.at(report_s), now_s - report_s, history


@dataclass(slots=True)
class Owner:
    """One lender: an inference pool, or one edge server."""

    id: str
    kind: Kind
    nodes: Ints  #: By id.
    load: Load
    asks: bool  #: Whether policies decide about its loans.
    gpus: int  #: It owns.
    slots: int  #: Of history that policies see, at most.
    held: int = 0  #: GPUs that it serves with.
    needed_gpu_s: float = 0.0
    short_gpu_s: float = 0.0
    _since_s: float = 0.0
    _reports: Reports | None = field(default=None, init=False)

    def book(self, now_s: float) -> None:
        """Count what it needed and missed until now."""
        if now_s > self._since_s:
            have, most = float(self.held), float(self.gpus)
            needed, short = self.load.integrals(self._since_s, now_s, have, most)
            self.needed_gpu_s += needed
            self.short_gpu_s += short
            self._since_s = now_s

    def serve(self, gpus: int, now_s: float) -> None:
        """Let it serve with so many GPUs more, or less."""
        self.book(now_s)
        self.held += gpus

    def lender(self, now_s: float, up: Ints) -> Lender:
        """Show it to a policy; only its nodes that are `up`."""
        if not self.asks:  # what is never reported is never lent, nor asked back
            return Lender(self.id, up, 0.0, float("inf"), np.zeros(0), SLOT_S)
        if self._reports is None:
            self._reports = Reports(self.load, self.slots)
        need, age_s, history = self._reports.seen(now_s)
        return Lender(self.id, up, need, age_s, history, SLOT_S)
