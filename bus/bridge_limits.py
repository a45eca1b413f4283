"""What bounds a bridge, all together and for each node; and what it counts."""

import math
from collections import Counter
from dataclasses import dataclass, field

from bus.allowance import Rates
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
    #: A cell that takes nothing for so long keeps the others of a bridge waiting no more: what is
    #: meant for it is let go of, and its agents send it again.
    stuck_s: float = 5.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be positive and finite")
        if self.batch_max >= self.in_flight_max:
            raise ValueError(f"batch_max: must be below in_flight_max, {self.in_flight_max}")
        if self.bytes_burst < MAX_MESSAGE_BYTES:
            raise ValueError(f"bytes_burst: the largest message has {MAX_MESSAGE_BYTES} bytes")

    def rates(self) -> Rates:
        """Give what each node may send."""
        each = self.rate_per_s, self.burst, self.bytes_per_s, self.bytes_burst
        return Rates(*each, self.letters_per_s, self.nodes_max)


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
