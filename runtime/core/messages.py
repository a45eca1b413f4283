"""What the agent core hears (commands, reports, ticks) and answers (acks, events, actions)."""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.commands import CommandData, GangSpec
from schemas.events import CommandAcknowledged, EventData

#: Which GPUs, by node; nodes in order of name, indices ascending.
Placement = Mapping[str, tuple[int, ...]]


# --- heard ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A command as its envelope brought it."""

    id: str
    data: CommandData
    #: When it was said.
    said_s: float
    #: From when on it must not be carried out; None: it does not expire.
    expires_s: float | None = None
    #: Which leader of the cell said it: the next leader's number is higher.
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Birth:
    """The agent is up (again); `running` names the jobs whose workers outlived the last boot."""

    running: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing but time has passed."""


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
class Pace:
    """What a gang says of its steps, as `JobProgressed` has it; None: nothing."""

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


@dataclass(frozen=True, slots=True)
class GangStopped:
    """All workers have left as asked; the job can go on from `step`."""

    job: str
    epoch: int
    step: int


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
    #: Whether nobody ended it: its machine or its supervisor went, and an agent that began
    #: afterwards found it so.
    lost: bool = False


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
    | GangProgress
    | GangStopped
    | GangCompleted
    | GangFailed
    | NodeDrained
    | NodeHandedBack
)
Stimulus = Command | Birth | Tick | Report


# --- answered ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Executor: run this gang."""

    job: str
    epoch: int
    placement: Placement
    spec: GangSpec
    step: int
    transfer_s: float
    #: It was lost here with its machine: it may go on from a newer checkpoint that is here.
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class ScaleWorkers:
    """Executor: run the gang on these GPUs instead, under this epoch from now on."""

    job: str
    epoch: int
    placement: Placement


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
    """Executor: see that workers end by themselves then, whatever has become of the agent."""

    #: None: no lease was ever given, so none ends.
    until_s: float | None
    #: What workers have to save and leave then.
    grace_s: float


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Owner: leave this node. Asked again after a restart; must bear repetition."""

    node: str


@dataclass(frozen=True, slots=True)
class HandBackNode:
    """Owner: the node is yours again. Asked again after a restart; must bear repetition."""

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

    Nothing of it may take effect before the core's changes are stored with it.
    """

    acks: tuple[Delivery, ...] = ()
    events: tuple[Said, ...] = ()
    actions: tuple[Action, ...] = ()


#: What most ticks answer; shared because it is frozen.
NOTHING = Outputs()
