"""Where each of an agent's events goes, and how dear it is when the spool is full."""

from runtime.spool import Loss
from schemas.events import (
    CheckpointCommitted,
    CheckpointFailed,
    EventData,
    InferenceLoad,
    JobProgressed,
    NodeBorn,
    NodeMeasured,
)
from schemas.topics import EVENTS, TELEMETRY

#: A newer one of the same job, or node, says all that the scheduler needs of these.
_SUPERSEDED: dict[type[EventData], Loss] = {
    JobProgressed: Loss.PROGRESS,
    CheckpointCommitted: Loss.STANDING,
    CheckpointFailed: Loss.STANDING,
    NodeBorn: Loss.STANDING,
}


def addressed(data: EventData, cell: str) -> tuple[str, str, Loss]:
    """Give the topic of an event, its key there, and how dear it is."""
    if isinstance(data, NodeMeasured):
        return TELEMETRY.name, data.node, Loss.TELEMETRY
    if isinstance(data, InferenceLoad):
        return TELEMETRY.name, data.node or data.pool, Loss.TELEMETRY
    return EVENTS.name, cell, _SUPERSEDED.get(type(data), Loss.NEVER)
