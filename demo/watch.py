"""What the live view remembers of a run: the last reasons, the tide so far, and the speed."""

from collections import deque
from dataclasses import dataclass

from bus.clock import Clock
from explain.story import Given
from explain.tide import ON_LOAN
from scheduler.core.facts import (
    LenderRenamed,
    LoadObserved,
    LoanGranted,
    LoanLost,
    LoanReturned,
    NodeJoined,
)
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Decision, Stimulus

#: Moments of the run at which the tide is remembered.
SLOTS = 240
DECISIONS_KEPT = 60
#: Verbs worth showing, with their colours: what was done, not what was left as it is.
TONES = {
    "starts": "green",
    "scales_out": "green",
    "scales_in": "yellow",
    "migrates": "cyan",
    "moves": "cyan",
    "preempts": "red",
    "lends": "yellow",
    "reclaims": "magenta",
}


@dataclass(slots=True)
class Slot:
    """What was in one slot of the run: most GPUs that owners needed, and most on loan."""

    needed: float = 0.0
    lent: float = 0.0


class Watch:
    """The memory of one run from `start_s` to `end_s`, in seconds since the Unix epoch."""

    def __init__(self, start_s: float, end_s: float, clock: Clock) -> None:
        """Begin with nothing seen; `clock` is real time."""
        self.start_s, self.end_s = start_s, end_s
        self.decisions = 0
        self._clock = clock
        self._reasons: deque[Given] = deque(maxlen=DECISIONS_KEPT)
        self._needed: dict[str, float] = {}  #: By owner: GPUs.
        self._gpus: dict[str, int] = {}  #: By node.
        self._lent: dict[str, int] = {}  #: By node on loan: its GPUs.
        self._slots: list[Slot | None] = [None] * SLOTS
        self._pace: deque[tuple[float, float]] = deque(maxlen=24)  #: (real, simulated) moments.

    @property
    def needed(self) -> float:
        """GPUs that owners need now."""
        return sum(self._needed.values())

    def share(self, at_s: float) -> float:
        """Say how much of the run is over."""
        return (at_s - self.start_s) / max(self.end_s - self.start_s, 1e-9)

    def note(self, stimulus: Stimulus, decision: Decision) -> None:
        """Remember a decision."""
        self.decisions += 1
        for fact in decision.facts:
            if isinstance(fact, NodeJoined):
                self._gpus[fact.node] = fact.gpu_count
            elif isinstance(fact, LenderRenamed):
                self._needed.pop(fact.lender, None)
            elif isinstance(fact, LoadObserved):
                self._needed[fact.lender] = fact.gpus_needed
            elif isinstance(fact, LoanGranted):
                self._lent[fact.node] = self._gpus.get(fact.node, 0)
            elif isinstance(fact, LoanReturned | LoanLost):
                self._lent.pop(fact.node, None)
        self._keep(stimulus.at_s)
        for reason in decision.reasons:
            if reason.verb in TONES:
                self._reasons.append(Given(stimulus.at_s, reason))

    def see(self, state: ClusterState) -> None:
        """Learn what the state says, also of what was before this watch began."""
        self._needed = {name: lender.gpus_needed for name, lender in state.lenders.items()}
        self._gpus = {node.id: node.gpu_count for node in state.nodes.values()}
        lent = (node for node in state.nodes.values() if node.loan_state in ON_LOAN)
        self._lent = {node.id: node.gpu_count for node in lent}
        self._keep(state.now_s)
        self._pace.append((self._clock.now_s(), state.now_s))

    def _keep(self, at_s: float) -> None:
        index = min(SLOTS - 1, max(0, int(self.share(at_s) * SLOTS)))
        slot = self._slots[index]
        if slot is None:
            slot = self._slots[index] = Slot()
        slot.needed = max(slot.needed, self.needed)
        slot.lent = max(slot.lent, float(sum(self._lent.values())))

    def speed(self) -> float | None:
        """Say how many simulated seconds pass in a real one; None while that is not known."""
        if len(self._pace) < 2:
            return None
        (real_s, now_s), (real_end_s, end_s) = self._pace[0], self._pace[-1]
        return None if real_end_s - real_s < 0.2 else (end_s - now_s) / (real_end_s - real_s)

    def last(self, most: int) -> list[tuple[Given, int]]:
        """Give the newest reasons, oldest first, with how many were alike at that moment."""
        found: dict[tuple[float, str, str], tuple[Given, int]] = {}
        for one in reversed(self._reasons):
            key = (one.at_s, one.reason.verb, one.reason.rule)
            if key in found:
                found[key] = (found[key][0], found[key][1] + 1)
            elif len(found) < most:
                found[key] = (one, 1)
            else:
                break
        return list(reversed(found.values()))

    def tide(self, width: int) -> list[Slot | None]:
        """Give the slots at a width; what nobody saw between two moments is the earlier one's."""
        slots = self._slots
        newest = max((index for index, slot in enumerate(slots) if slot is not None), default=-1)
        merged: list[Slot | None] = []
        for column in range(width):
            start, end = column * SLOTS // width, (column + 1) * SLOTS // width
            part = [slot for slot in slots[start : max(end, start + 1)] if slot is not None]
            if part:
                merged.append(Slot(max(s.needed for s in part), max(s.lent for s in part)))
            elif start <= newest and merged:
                merged.append(merged[-1])
            else:
                merged.append(None)
        return merged
