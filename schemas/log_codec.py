"""Bytes to pieces of jobs' logs and back, as `schemas.codec` does it for all else."""

from typing import TypeAlias, cast

from schemas.codec import Envelopes, decode, wrap
from schemas.envelope import Envelope, moment
from schemas.logs import LogChunk
from schemas.parse import Rejected

#: A piece of a job's log, with its envelope.
LogEnvelope: TypeAlias = Envelope[str, LogChunk]
_LOGS = Envelopes(LogChunk)


def decode_log(value: bytes) -> LogEnvelope | Rejected:
    """Read a piece of a job's log; never raises."""
    return cast("LogEnvelope | Rejected", decode(value, _LOGS))


def log_chunk(
    data: LogChunk, *, sequence: int, bootid: int, time_s: float, cell: str = "default"
) -> LogEnvelope:
    """Put a piece of a job's log into its envelope.

    Args:
        data: The piece.
        sequence: Position among the pieces that its agent has sent since it started: they are not
            among its events, of which none may be missing.
        bootid: How often the agent has started.
        time_s: When it was read, in seconds since the Unix epoch.
        cell: The cell that asked for it.

    Raises:
        ValueError: An attribute is out of range.
    """
    attributes = {
        "id": f"{data.agent}-log-{bootid}-{sequence}",
        "source": f"/agents/{data.agent}",
        "time": moment(time_s),
        "subject": data.job,
        "sequence": str(sequence),
        "bootid": bootid,
        "cell": cell,
    }
    return cast("LogEnvelope", wrap(_LOGS, data, attributes))
