"""How much a bridge takes: from all together, and from each node; and what it counts."""

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from schemas.values import MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class BridgeLimits:
    """What bounds a bridge; a value out of range raises and names the field."""

    #: Messages held until Kafka has them. Above what the broker sends without being answered
    #: (`max_inflight_messages`), so that only what is left of a lost connection is let go of.
    in_flight_max: int = 1000
    #: Messages stored together, up; records taken together, down.
    batch_max: int = 500
    #: What each node may send, in the long run and at once.
    rate_per_s: float = 200.0
    burst: float = 2000.0
    bytes_per_s: float = 4.0 * 2**20
    bytes_burst: float = 16.0 * 2**20
    #: Dead letters kept of each node; the rest are only counted.
    letters_per_s: float = 10.0
    #: Nodes whose use is remembered. Of more, those silent longest are forgotten.
    nodes_max: int = 20_000
    #: After a failure of Kafka or of the connection, try again this much later.
    retry_s: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be positive and finite")
        if self.batch_max >= self.in_flight_max:
            raise ValueError(f"batch_max: must be below in_flight_max, {self.in_flight_max}")
        if self.bytes_burst < MAX_MESSAGE_BYTES:
            raise ValueError(f"bytes_burst: the largest message has {MAX_MESSAGE_BYTES} bytes")


@dataclass(slots=True)
class BridgeCounters:
    """What a bridge has done since it began."""

    forwarded_up: int = 0
    forwarded_down: int = 0
    dead_letters: int = 0
    horizons: int = 0
    #: Times that Kafka or the connection failed and the same was tried again.
    retries: int = 0
    #: Commands that were too late to be sent.
    expired: int = 0
    #: Messages let go of unanswered, because too many were held; the broker has them still.
    overflowed: int = 0
    #: By reason, what was not forwarded; of few words, whatever is sent.
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Left:
    """What a node may still send now."""

    messages: float
    size: float
    letters: float
    at_s: float
    shut: bool = False


class Allowance:
    """Says of each node whether it may send more now."""

    def __init__(self, limits: BridgeLimits) -> None:
        self._limits = limits
        self._nodes: OrderedDict[str, _Left] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def take(self, node: str, size: int, now_s: float) -> bool:
        """Take a message of `size` bytes off what the node may send; False if that is too much.

        A node that sent too much is heard again only when it has a second's worth: what it loses
        is one stretch, where a message now and then would riddle it with gaps.
        """
        limits, left = self._limits, self._left(node, now_s)
        if left.shut:
            left.shut = left.messages < min(limits.rate_per_s, limits.burst) or left.size < min(
                limits.bytes_per_s, limits.bytes_burst
            )
        if left.shut or left.messages < 1.0 or left.size < size:
            left.shut = True
            return False
        left.messages -= 1.0
        left.size -= size
        return True

    def take_letter(self, node: str, now_s: float) -> bool:
        """Take a dead letter off what is kept of the node; False if it has had enough."""
        left = self._left(node, now_s)
        if left.letters < 1.0:
            return False
        left.letters -= 1.0
        return True

    def _left(self, node: str, now_s: float) -> _Left:
        limits, left = self._limits, self._nodes.get(node)
        letters_burst = max(1.0, limits.letters_per_s)
        if left is None:
            left = _Left(limits.burst, limits.bytes_burst, letters_burst, now_s)
            self._nodes[node] = left
            if len(self._nodes) > limits.nodes_max:
                self._nodes.popitem(last=False)
            return left
        self._nodes.move_to_end(node)
        passed_s, left.at_s = max(0.0, now_s - left.at_s), now_s
        left.messages = min(limits.burst, left.messages + passed_s * limits.rate_per_s)
        left.size = min(limits.bytes_burst, left.size + passed_s * limits.bytes_per_s)
        left.letters = min(letters_burst, left.letters + passed_s * limits.letters_per_s)
        return left
