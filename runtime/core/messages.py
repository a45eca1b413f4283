"""Inputs of the agent core (commands, reports, ticks), and outputs (acks, events, actions)."""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.commands import CommandData, GangSpec
from schemas.events import CommandAcknowledged, EventData

#: Which GPUs, by node; nodes in order of name, indices ascending.
Placement = Mapping[str, tuple[int, ...]]


# --- inputs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A command, from its envelope."""

    id: str
    data: CommandData
    #: When it was issued.
    said_s: float
    #: From when on it must not be carried out; None: it does not expire.
    expires_s: float | None = None
    #: The epoch of the leader that issued it; the next leader's is higher.
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Birth:
    """The agent has started; `running` names the jobs whose workers outlived its restart."""

    running: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed, and nothing else happened."""


@dataclass(frozen=True, slots=True)
class GangStarted:
    """All workers of the allocation `epoch` have taken their first step."""

    job: str
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class WorkersLeft:
    """The GPUs that the allocation `epoch` gave up in a change of size are free."""

    job: str
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    """A checkpoint is durable."""

    job: str
    epoch: int
    step: int
    uri: str
    size_mib: int
    cost_s: float


@dataclass(frozen=True, slots=True)
class CheckpointLost:
    """A checkpoint could not be written."""

    job: str
    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class OutputsStored:
    """What the job names as its outputs is in the store, as far as it was there."""

    job: str
    epoch: int
    uri: str
    files: int
    size_mib: int
    left_out: str


@dataclass(frozen=True, slots=True)
class Pace:
    """What a gang reports of its steps, as `JobProgressed` has it; None: nothing."""

    batch: float | None = None
    step_s: float | None = None
    pass_s: float | None = None
    gradient_noise: float | None = None


@dataclass(frozen=True, slots=True)
class GangProgress:
    """How far a running gang is, and how fast it trains between pauses."""

    job: str
    epoch: int
    step: int
    samples_per_s: float
    pace: Pace = Pace()
    #: The newest values of what the job names itself; None: it names nothing.
    metrics: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class GangStopped:
    """All workers have left as asked; the job can go on from `step`."""

    job: str
    epoch: int
    step: int
    #: Whether any was started.
    ran: bool = True


@dataclass(frozen=True, slots=True)
class GangCompleted:
    """The last step is done and all workers have left."""

    job: str
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class GangFailed:
    """A worker died, and the gang with it."""

    job: str
    epoch: int
    error: str
    retriable: bool = True
    #: Whether it was lost: its machine or supervisor went down, and the next agent found it so.
    lost: bool = False
    #: Whether a worker was started.
    ran: bool = True


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """The owner serves nothing on the node any more."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeHandedBack:
    """The owner has the node again."""

    node: str


Report = (
    GangStarted
    | WorkersLeft
    | CheckpointDone
    | CheckpointLost
    | OutputsStored
    | GangProgress
    | GangStopped
    | GangCompleted
    | GangFailed
    | NodeDrained
    | NodeHandedBack
)
Stimulus = Command | Birth | Tick | Report


# --- outputs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Executor: run this gang."""

    job: str
    epoch: int
    placement: Placement
    spec: GangSpec
    step: int
    transfer_s: float
    #: Whether it was lost here with its machine; then it may go on from a newer local checkpoint.
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class ScaleWorkers:
    """Executor: run the gang on these GPUs instead, under this epoch from now on."""

    job: str
    epoch: int
    placement: Placement
    #: How long its workers may take to save, where that is longer than usual.
    save_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckpointWorkers:
    """Executor: write a checkpoint and go on."""

    job: str
    epoch: int


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Executor: stop, after a checkpoint if asked, within the grace in any case."""

    job: str
    epoch: int
    checkpoint: bool
    grace_s: float


@dataclass(frozen=True, slots=True)
class KeepLease:
    """Executor: see that workers end at the lease's end even if the agent is gone."""

    #: None: no lease was given, so none ends.
    until_s: float | None
    #: What workers have to save and leave then.
    grace_s: float


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Owner: leave this node. Repeated after a restart; must be idempotent."""

    node: str


@dataclass(frozen=True, slots=True)
class HandBackNode:
    """Owner: take the node back. Repeated after a restart; must be idempotent."""

    node: str


Action = (
    StartWorkers
    | ScaleWorkers
    | CheckpointWorkers
    | StopWorkers
    | KeepLease
    | DrainNode
    | HandBackNode
)


@dataclass(frozen=True, slots=True)
class Said:
    """An event to publish, and the id of the command that caused it, if one did."""

    data: EventData
    causation: str | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """An ack to publish."""

    data: CommandAcknowledged
    causation: str


@dataclass(frozen=True, slots=True)
class Outputs:
    """What follows from one stimulus. Acks are published before events, both in order.

    None of it may take effect before it is stored together with the core's changes.
    """

    acks: tuple[Delivery, ...] = ()
    events: tuple[Said, ...] = ()
    actions: tuple[Action, ...] = ()


#: What most ticks answer; shared because it is frozen.
NOTHING = Outputs()
