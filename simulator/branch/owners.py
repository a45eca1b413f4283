"""Owners of a recorded cell: what they need is as recorded, what they have is what is not lent.

After the end of the log they need what they needed a day before, by the peaks that the state
remembers of each slot.
"""

from collections.abc import Mapping

from scheduler.core.state import SLOTS, ClusterState

#: Slots of a day; two are remembered.
_DAY = SLOTS // 2


class Shortfall:
    """GPU seconds that owners needed and did not have, by what is said of them."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._known: dict[str, tuple[float, float, float]] = {}  # needs, has, since
        self._sum = 0.0

    def begin(self, state: ClusterState) -> None:
        """Count from a state on."""
        self._sum = 0.0
        now_s = state.now_s
        self._known = {name: (need, has, now_s) for name, (need, has, _) in self._known.items()}

    def needs(self, lender: str, need: float, has: float, now_s: float) -> None:
        """Note that a lender needs and has so many GPUs from now on."""
        self._book(lender, now_s)
        self._known[lender] = need, has, now_s

    def has(self, lender: str, has: float, now_s: float) -> None:
        """Note that it has so many."""
        need, _, _ = self._known.get(lender, (0.0, 0.0, now_s))
        self.needs(lender, need, has, now_s)

    def renamed(self, lender: str, to: str, now_s: float) -> None:
        """Note that a lender has another name: what it needs is not to be counted under both."""
        self._book(lender, now_s)
        if (known := self._known.pop(lender, None)) is not None:
            self._known.setdefault(to, known)

    def until(self, now_s: float) -> float:
        """Give the sum until a moment, which no earlier one may follow."""
        for lender in self._known:
            self._book(lender, now_s)
        return self._sum

    def _book(self, lender: str, now_s: float) -> None:
        need, has, since_s = self._known.get(lender, (0.0, 0.0, now_s))
        self._sum += max(need - has, 0.0) * max(now_s - since_s, 0.0)
        if lender in self._known:
            self._known[lender] = need, has, max(now_s, since_s)


def yesterday(
    needs: Mapping[str, tuple[int, list[float | None]]], lender: str, slot: int, now: float
) -> float:
    """Say what a lender needs in a slot after the end of the log, by the day before.

    Args:
        needs: By lender, its newest slot and the peaks until then, oldest first.
        lender: Whose need it is.
        slot: Number of the slot since the Unix epoch.
        now: What it needs if nothing is known of the day before.
    """
    newest, history = needs.get(lender, (-1, []))
    back = slot
    while back > newest:  # a branch that is longer than a day repeats the last one
        back -= _DAY
    place = len(history) - 1 - (newest - back)
    peak = history[place] if 0 <= place < len(history) else None
    return now if peak is None else peak
