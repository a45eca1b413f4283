"""From records to requests: verified, decoded once, and held against cell, key and clock.

What is wrong with one is named, by its field, for its dead letter. Whether the person may do it is
the engine's to say.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

from bus.contract import Record
from bus.signing import ALG, KEY_ID, SIGNATURE
from scheduler.core.requests import repeated, untimely
from scheduler.core.rights import Wrong
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Cause, Requested, Stimulus
from scheduler.gateways import Frame, Gateways
from schemas.codec import RequestEnvelope, decode_request
from schemas.parse import Rejected
from schemas.requests import VERB_NAMES, Request
from schemas.values import MAX_MESSAGE_BYTES

#: What a request that becomes a dead letter is counted as; one that is taken is `done` or
#: `refused`.
Outcome = Literal[
    "unsigned",
    "unknown_key",
    "forged",
    "not_its_verb",
    "other_cell",
    "unreadable",
    "over_rate",
    "replayed",
    "expired",
    "early",
    "failed",
]
#: Verb and outcome of what no trusted gateway may sign. They are shown at 0: that the first one
#: came can only be seen in a figure that was there before.
FORGED = (
    *(("", outcome) for outcome in ("unsigned", "unknown_key", "forged")),
    *((verb, "not_its_verb") for verb in VERB_NAMES),
)
_BY_HEADER: Mapping[str, Outcome] = {KEY_ID: "unknown_key", ALG: "forged", SIGNATURE: "forged"}


class Asked(NamedTuple):
    """A request that may be taken, or what is wrong with one."""

    source: str  #: Whose it is, to be counted for; empty if nobody vouches for that.
    envelope: RequestEnvelope | None
    wrong: Wrong | None
    outcome: Outcome | Literal[""] = ""  #: What it is counted as, if it is wrong.


class RequestIntake:
    """Reads requests for one cell."""

    def __init__(self, cell: str, gateways: Gateways | None) -> None:
        """Take what `gateways` vouch for; None: the log is a file, whoever writes it its owner."""
        self._cell, self._gateways = cell, gateways
        #: By verb and outcome; of one that nobody vouches for the verb is not known.
        self.counts: Counter[tuple[str, str]] = Counter()

    def read(self, record: Record) -> Asked:
        """Read a record, and judge it without the state."""
        value, gateways = record.value or b"", self._gateways
        if len(value) > MAX_MESSAGE_BYTES:
            why = f"is {len(value)} bytes long, the limit is {MAX_MESSAGE_BYTES}"
            return Asked("", None, ("", f"oversized: {why}"), "unreadable")
        if gateways is not None and (wrong := gateways.problem(record)) is not None:
            signed = SIGNATURE in record.headers
            return Asked("", None, wrong, _BY_HEADER[wrong[0]] if signed else "unsigned")
        envelope = decode_request(value)
        if isinstance(envelope, Rejected):
            why = f"{envelope.kind}: {envelope.reason}"
            return Asked("", None, (envelope.field, why), "unreadable")
        source = envelope.source
        if envelope.cell != self._cell:
            wrong = "cell", f"is {envelope.cell}, this is {self._cell}"
            return Asked(source, envelope, wrong, "other_cell")
        if gateways is not None and (wrong := gateways.beyond(record, envelope.data)) is not None:
            return Asked(source, envelope, wrong, "not_its_verb")
        return Asked(source, envelope, None)

    def stimulus(
        self, record: Record, envelope: RequestEnvelope, now_s: float, ahead_s: float
    ) -> Stimulus:
        """Give the stimulus of a request, with the very bytes that it came in."""
        frame = Frame.of(record, signed=self._gateways is not None)
        said = Requested(
            raw=frame.raw,
            kid=frame.kid,
            signature=frame.signature,
            ahead_s=ahead_s,
            request=envelope.data,
        )
        return Stimulus(now_s, said, Cause(envelope.source, said_s=min(envelope.time_s, now_s)))


def unwanted(
    state: ClusterState, request: Request, now_s: float, latest_s: float
) -> tuple[Outcome, Wrong] | None:
    """Find whether a request was taken before, or is too late or too early; it is named within.

    Nothing of such a request is journalled: whoever repeats them could fill the journal.
    """
    outcome: Outcome = "replayed"
    if (wrong := repeated(state, request)) is None:
        outcome = "expired" if request.expires_s <= now_s else "early"
        wrong = untimely(request, now_s, latest_s)
    return None if wrong is None else (outcome, (f"data.{wrong[0]}", wrong[1]))
