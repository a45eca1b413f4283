"""How much each source may send: token buckets, for a bounded number of sources."""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """What each source may send in the long run, each second, and at once."""

    rate_per_s: float
    burst: float
    bytes_per_s: float
    bytes_burst: float
    #: Dead letters kept of each; the rest are only counted.
    letters_per_s: float
    #: Sources whose use is remembered. Of more, those silent longest are forgotten.
    sources_max: int


@dataclass(slots=True)
class _Left:
    """What a source may still send now."""

    messages: float
    size: float
    letters: float
    at_s: float
    shut: bool = False


class Allowance:
    """Says of each source whether it may send more now."""

    def __init__(self, rates: Rates, behind_s: float = 0.0) -> None:
        """Begin; what sources have said for `behind_s` comes at once now, and is no flood."""
        self._rates, self._behind_s = rates, behind_s
        self._began_s: float | None = None
        self._sources: OrderedDict[str, _Left] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sources)

    def take(self, source: str, size: int, now_s: float) -> bool:
        """Take a message of `size` bytes off what the source may send; False if that is too much.

        A source that sent too much is heard again only when it has a second's worth: what it loses
        is one stretch, where a message now and then would riddle it with gaps.
        """
        rates, left = self._rates, self._left(source, now_s)
        if left.shut:
            left.shut = left.messages < min(rates.rate_per_s, rates.burst) or left.size < min(
                rates.bytes_per_s, rates.bytes_burst
            )
        if left.shut or left.messages < 1.0 or left.size < size:
            left.shut = True
            return False
        left.messages -= 1.0
        left.size -= size
        return True

    def take_letter(self, source: str, now_s: float) -> bool:
        """Take a dead letter off what is kept of the source; False if it has had enough."""
        left = self._left(source, now_s)
        if left.letters < 1.0:
            return False
        left.letters -= 1.0
        return True

    def _left(self, source: str, now_s: float) -> _Left:
        rates, left = self._rates, self._sources.get(source)
        letters_burst = max(1.0, rates.letters_per_s)
        if left is None:
            self._began_s = now_s if self._began_s is None else self._began_s
            behind_s = max(0.0, self._behind_s - (now_s - self._began_s))
            left = _Left(
                rates.burst + behind_s * rates.rate_per_s,
                rates.bytes_burst + behind_s * rates.bytes_per_s,
                letters_burst,
                now_s,
            )
            self._sources[source] = left
            if len(self._sources) > rates.sources_max:
                self._sources.popitem(last=False)
            return left
        self._sources.move_to_end(source)
        passed_s, left.at_s = max(0.0, now_s - left.at_s), now_s
        messages = min(rates.burst, left.messages + passed_s * rates.rate_per_s)
        size = min(rates.bytes_burst, left.size + passed_s * rates.bytes_per_s)
        # More than a burst may be left of what it said before.
        left.messages, left.size = max(left.messages, messages), max(left.size, size)
        left.letters = min(letters_burst, left.letters + passed_s * rates.letters_per_s)
        return left
