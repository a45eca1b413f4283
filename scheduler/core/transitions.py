"""The life cycles of job, node, loan and command, as tables; diagrams and tests come from them.

Everything that moves a life cycle is here. A key is (state, fact); the value is the next state.
A pair that is missing is illegal: `step` raises and nothing changes.
Source: the life cycles L1 (loaned server) and L3 (training job) of the design, after Aryl and
ElasticFlow; UNKNOWN and the command table are ours.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


class JobState(StrEnum):
    """What a job is doing."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SCALING = "scaling"
    CHECKPOINTING = "checkpointing"  #: On its way off its GPUs, checkpoint being written.
    STOPPING = "stopping"  #: On its way off its GPUs, nothing more to save.
    MIGRATING = "migrating"  #: Off its old GPUs; those in the other pool are held for it.
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: States in which a job may hold GPUs.
HOLDING = (
    JobState.STARTING,
    JobState.RUNNING,
    JobState.SCALING,
    JobState.CHECKPOINTING,
    JobState.STOPPING,
)
#: States of these in which it is on its way off them.
LEAVING = (JobState.CHECKPOINTING, JobState.STOPPING)
#: States that nothing leaves.
TERMINAL = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


class NodeState(StrEnum):
    """Whether a node's agent is in contact."""

    ALIVE = "alive"
    UNKNOWN = "unknown"  #: Silent; its workers are presumed to run until their lease ends.
    DEAD = "dead"


class LoanState(StrEnum):
    """Where a loan is. A node without a loan is its owner's."""

    LENDING = "lending"  #: The owner is draining the node.
    LENT = "lent"
    RECLAIMING = "reclaiming"  #: Takes no new work; its gangs are leaving.
    RETURNING = "returning"  #: Empty; the owner is told.
    RETURNED = "returned"
    REFUSED = "refused"
    LOST = "lost"  #: The node died on loan.


class CommandState(StrEnum):
    """What became of a command."""

    ISSUED = "issued"
    DONE = "done"
    REFUSED = "refused"
    EXPIRED = "expired"


State = TypeVar("State", bound=StrEnum)
Table = Mapping[tuple[State, str], State]

_J = JobState
JOB: Table[JobState] = {
    (_J.QUEUED, "GangStarting"): _J.STARTING,
    (_J.QUEUED, "JobCancelled"): _J.CANCELLED,
    (_J.QUEUED, "JobFailed"): _J.FAILED,
    (_J.QUEUED, "JobDeclined"): _J.FAILED,
    (_J.STARTING, "GangRunning"): _J.RUNNING,
    (_J.STARTING, "GangStopping"): _J.STOPPING,
    (_J.RUNNING, "GangScaling"): _J.SCALING,
    (_J.RUNNING, "GangCheckpointing"): _J.CHECKPOINTING,
    (_J.RUNNING, "GangStopping"): _J.STOPPING,
    (_J.SCALING, "GangRunning"): _J.RUNNING,
    (_J.SCALING, "GangCheckpointing"): _J.CHECKPOINTING,
    (_J.SCALING, "GangStopping"): _J.STOPPING,
    (_J.CHECKPOINTING, "CheckpointSaved"): _J.STOPPING,
    (_J.CHECKPOINTING, "CheckpointMissed"): _J.STOPPING,
    (_J.CHECKPOINTING, "GangStopping"): _J.STOPPING,
    (_J.CHECKPOINTING, "JobQueued"): _J.QUEUED,
    (_J.CHECKPOINTING, "JobMigrating"): _J.MIGRATING,
    (_J.CHECKPOINTING, "JobCompleted"): _J.COMPLETED,
    (_J.CHECKPOINTING, "JobCancelled"): _J.CANCELLED,
    (_J.CHECKPOINTING, "JobFailed"): _J.FAILED,
    (_J.STOPPING, "GangStopping"): _J.STOPPING,
    (_J.STOPPING, "JobQueued"): _J.QUEUED,
    (_J.STOPPING, "JobMigrating"): _J.MIGRATING,
    (_J.STOPPING, "JobCompleted"): _J.COMPLETED,
    (_J.STOPPING, "JobCancelled"): _J.CANCELLED,
    (_J.STOPPING, "JobFailed"): _J.FAILED,
    (_J.MIGRATING, "GangStarting"): _J.STARTING,
    (_J.MIGRATING, "JobQueued"): _J.QUEUED,
    (_J.MIGRATING, "JobCancelled"): _J.CANCELLED,
    # Saved or missed checkpoints of jobs that stay where they are change no state, nor do those
    # that are heard of only when the job waits again.
    (_J.QUEUED, "CheckpointSaved"): _J.QUEUED,
    (_J.STARTING, "CheckpointSaved"): _J.STARTING,
    (_J.STARTING, "CheckpointMissed"): _J.STARTING,
    (_J.RUNNING, "CheckpointSaved"): _J.RUNNING,
    (_J.RUNNING, "CheckpointMissed"): _J.RUNNING,
    (_J.SCALING, "CheckpointSaved"): _J.SCALING,
    (_J.SCALING, "CheckpointMissed"): _J.SCALING,
    (_J.STOPPING, "CheckpointSaved"): _J.STOPPING,
    (_J.STOPPING, "CheckpointMissed"): _J.STOPPING,
}

_N = NodeState
NODE: Table[NodeState] = {
    (_N.ALIVE, "NodeJoined"): _N.ALIVE,
    (_N.UNKNOWN, "NodeJoined"): _N.ALIVE,
    (_N.DEAD, "NodeJoined"): _N.ALIVE,
    (_N.ALIVE, "NodeSilenced"): _N.UNKNOWN,
    (_N.UNKNOWN, "NodeReturned"): _N.ALIVE,
    (_N.ALIVE, "NodeLost"): _N.DEAD,
    (_N.UNKNOWN, "NodeLost"): _N.DEAD,
}

_L = LoanState
LOAN: Table[LoanState] = {
    (_L.LENDING, "LoanGranted"): _L.LENT,
    (_L.LENDING, "LoanRefused"): _L.REFUSED,
    (_L.LENDING, "LoanLost"): _L.LOST,
    (_L.LENT, "ReclaimStarted"): _L.RECLAIMING,
    (_L.LENT, "LoanLost"): _L.LOST,
    (_L.RECLAIMING, "ReturnOrdered"): _L.RETURNING,
    (_L.RECLAIMING, "LoanLost"): _L.LOST,
    (_L.RETURNING, "LoanReturned"): _L.RETURNED,
    (_L.RETURNING, "LoanLost"): _L.LOST,
}

_C = CommandState
COMMAND: Table[CommandState] = {
    (_C.ISSUED, "CommandRepeated"): _C.ISSUED,
    (_C.ISSUED, "CommandDone"): _C.DONE,
    (_C.ISSUED, "CommandRefused"): _C.REFUSED,
    (_C.ISSUED, "CommandExpired"): _C.EXPIRED,
}


class InvalidTransition(Exception):
    """A bug in the scheduler: a fact that cannot follow. Nothing was changed."""

    def __init__(self, subject: str, state: str, fact: str) -> None:
        self.subject, self.state, self.fact = subject, state, fact
        super().__init__(f"{subject}: {fact} cannot happen while {state}")


def step(table: Table[State], subject: str, state: State, fact: str) -> State:
    """Give the state after the fact, or raise `InvalidTransition`."""
    after = table.get((state, fact))
    if after is None:
        raise InvalidTransition(subject, state, fact)
    return after
