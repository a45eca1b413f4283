"""Past states that are at hand, within bounds: the one asked for longest ago goes first."""

from collections import OrderedDict
from dataclasses import dataclass

from gateway.index import Place
from scheduler.core.state import ClusterState

#: Which state: the feed's name and generation, and after how many entries.
Key = tuple[str, int, int]
#: The least that a state is taken for, in bytes.
_LEAST_BYTES = 256 * 1024


@dataclass(slots=True)
class Family:
    """States that share what is alike, all of them made from one."""

    bytes: int  #: What that one takes, which is held as long as any of them is.
    members: int = 0


@dataclass(frozen=True, slots=True)
class One:
    """A state that is never changed, and where in the journal it goes on."""

    state: ClusterState
    place: Place
    bytes: int  #: Beside what it shares.
    family: Family


class KeptStates:
    """States by their moments."""

    def __init__(self, most_bytes: int) -> None:
        """Keep what takes so many bytes, about; one state at least."""
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Key, One] = OrderedDict()
        #: What they take, about.
        self.bytes = 0

    def get(self, key: Key) -> ClusterState | None:
        """Give a state that is at hand."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found.state

    def nearest(self, name: str, generation: int, number: int) -> One | None:
        """Give the newest that is not after so many entries of a feed."""
        near = [key for key in self._kept if key[:2] == (name, generation) and key[2] <= number]
        return self._kept[max(near)] if near else None

    def add(self, key: Key, state: ClusterState, place: Place, size: int, family: Family) -> None:
        """Keep one more, and let go of what is too much."""
        if (before := self._kept.pop(key, None)) is not None:
            self._let_go(before)
        one = One(state, place, max(_LEAST_BYTES, size), family)
        self._kept[key] = one
        self.bytes += one.bytes + (0 if family.members else family.bytes)
        family.members += 1
        while self.bytes > self._most_bytes and len(self._kept) > 1:
            self._let_go(self._kept.popitem(last=False)[1])

    def _let_go(self, one: One) -> None:
        one.family.members -= 1
        self.bytes -= one.bytes + (0 if one.family.members else one.family.bytes)
