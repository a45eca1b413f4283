"""The topic of each of an agent's events, and when it may be dropped from a full spool."""

from runtime.spool import DropPriority
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

#: Of these the scheduler needs only the newest of each job or node.
_SUPERSEDED: dict[type[EventData], DropPriority] = {
    JobProgressed: DropPriority.PROGRESS,
    CheckpointCommitted: DropPriority.STANDING,
    CheckpointFailed: DropPriority.STANDING,
    NodeBorn: DropPriority.STANDING,
}


def addressed(data: EventData, cell: str) -> tuple[str, str, DropPriority]:
    """Give the topic of an event, its key, and when it may be dropped."""
    if isinstance(data, NodeMeasured):
        return TELEMETRY.name, data.node, DropPriority.TELEMETRY
    if isinstance(data, InferenceLoad):
        return TELEMETRY.name, data.node or data.pool, DropPriority.TELEMETRY
    return EVENTS.name, cell, _SUPERSEDED.get(type(data), DropPriority.NEVER)
