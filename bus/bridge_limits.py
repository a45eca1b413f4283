"""What bounds a bridge, all together and for each node; and what it counts."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, model_validator

from bus.allowance import Rates
from schemas.options import Count, Rate, Seconds, Section
from schemas.values import MAX_MESSAGE_BYTES


class BridgeLimits(Section):
    """What bounds a bridge; a value out of range raises and names the field."""

    #: The most messages that wait for Kafka; more than the MQTT broker's `max_inflight_messages`.
    in_flight_max: Count = 1000
    #: The most messages in one batch to Kafka, or from it. Less than `in_flight_max`.
    batch_max: Count = 500
    #: The rate limit of each node, in messages per second.
    rate_per_s: Rate = 200.0
    #: The burst of each node, in messages.
    burst: Rate = 2000.0
    #: The rate limit of each node, in bytes per second.
    bytes_per_s: Rate = 4.0 * 2**20
    #: The burst of each node, in bytes; at least the largest message.
    bytes_burst: Annotated[float, Field(ge=MAX_MESSAGE_BYTES)] = 16.0 * 2**20
    #: The most dead letters of each node per second; further ones are only counted.
    letters_per_s: Rate = 10.0
    #: For how many nodes rate limits are remembered; beyond, the longest silent are forgotten.
    nodes_max: Count = 20_000
    #: How long to wait after a failure of Kafka or of the connection.
    retry_s: Seconds = 1.0
    #: After this long without progress, a cell no longer delays the others of the bridge: what is
    #: meant for it is let go of, and its agents send it again.
    stuck_s: Seconds = 5.0

    @model_validator(mode="after")
    def _a_batch_fits(self) -> "BridgeLimits":
        if self.batch_max >= self.in_flight_max:
            raise ValueError(f"batch_max: must be below in_flight_max, {self.in_flight_max}")
        return self

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
    #: Messages let go of unanswered, because too many were held; the broker has them still.
    overflowed: int = 0
    #: By reason, what was not forwarded; of few words, whatever is sent. `expired`: commands that
    #: were too late to be sent.
    refused: Counter[str] = field(default_factory=Counter)
