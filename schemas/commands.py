"""What the scheduler asks of agents: imperative, in desired-state form, fenced by epochs.

A command says what shall hold ("job J runs on these GPUs at epoch E"), never "one more", so that
a repeated one changes nothing.
"""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field

from schemas.events import Batch, Rates
from schemas.programs import Program
from schemas.values import (
    MAX_NODES_PER_GANG,
    DurationS,
    Epoch,
    LogBytes,
    LogPosition,
    MemoryMib,
    MomentS,
    Name,
    NodeGpus,
    Note,
    Rank,
    Step,
    Strict,
)


def _each_once(placement: list[NodeGpus]) -> list[NodeGpus]:
    if len({part.node for part in placement}) != len(placement):
        raise ValueError("must name each node once")
    return placement


Placement = Annotated[
    list[NodeGpus],
    Field(min_length=1, max_length=MAX_NODES_PER_GANG),
    AfterValidator(_each_once),
]


class GangSpec(Strict):
    """All that an agent needs to run the job's workers."""

    model: Name
    total_steps: Annotated[int, Field(ge=1, le=2**53)] | None = Field(
        default=None, description="Null: it is done when its workers end with success."
    )
    samples_per_step: Batch
    rates: Rates
    checkpoint_mib: MemoryMib
    checkpoint_cost_s: DurationS
    start_cost_s: DurationS
    program: Program | None = Field(
        default=None, description="What its workers run; null where they are simulated."
    )
    tenant: Name | None = Field(
        default=None, description="Whose the job is: as whose user its workers run."
    )
    first_epoch: Epoch = Field(
        default=0,
        description="What was stored under lower ones is of an earlier job that had this name.",
    )


class StartGang(Strict):
    """Run this gang, whole or not at all, on exactly these GPUs."""

    TYPE: ClassVar[str] = "tidegate.gang.start.v1"
    job: Name
    epoch: Epoch
    placement: Placement
    spec: GangSpec
    step: Step = Field(description="Go on from the checkpoint of this step; 0 starts afresh.")
    transfer_s: DurationS = Field(default=0.0, description="Expected time to fetch it from afar.")


class ScaleGang(Strict):
    """The running gang shall run on exactly these GPUs instead."""

    TYPE: ClassVar[str] = "tidegate.gang.scale.v1"
    job: Name
    epoch: Epoch
    placement: Placement


class StopGang(Strict):
    """Leave the GPUs: after a checkpoint if asked, within the grace in any case."""

    TYPE: ClassVar[str] = "tidegate.gang.stop.v1"
    job: Name
    epoch: Epoch
    reason: Literal["preempted", "migrated", "cancelled", "superseded"]
    checkpoint: bool
    grace_s: DurationS


class LendNode(Strict):
    """Take the owner's replicas off this node and give it to training."""

    TYPE: ClassVar[str] = "tidegate.node.lend.v1"
    node: Name
    loan: Name


class ReturnNode(Strict):
    """The node is the owner's again; nothing of training is left on it."""

    TYPE: ClassVar[str] = "tidegate.node.return.v1"
    node: Name
    loan: Name


class Rebirth(Strict):
    """Say again who you are and what you hold: the scheduler missed something."""

    TYPE: ClassVar[str] = "tidegate.agent.rebirth.v1"
    reason: Note = ""


class RenewLease(Strict):
    """The scheduler heard you: what you run may go on, unheard, until then."""

    TYPE: ClassVar[str] = "tidegate.lease.renew.v1"
    until_s: MomentS
    boot: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        default=None, description="The start of the agent that was heard: the lease is its alone."
    )


class SendLog(Strict):
    """Say on the topic of logs what a worker of this job has written, for whoever reads it.

    It changes nothing: an agent neither remembers nor acknowledges it.
    """

    TYPE: ClassVar[str] = "tidegate.log.send.v1"
    job: Name
    epoch: Epoch = Field(description="Of the newest allocation; an older run may be the last here.")
    first_epoch: Epoch = Field(
        default=0, description="What was written under lower ones is of an earlier job of the name."
    )
    rank: Rank = Field(description="Which worker.")
    reader: Name = Field(description="Whose reading this is; asked again, it goes on longer.")
    from_byte: LogPosition = Field(description="Where to begin; negative: before the end.")
    max_bytes: LogBytes = Field(description="How much at most.")
    follow: bool = Field(description="Go on with what is written later.")
    until_s: MomentS = Field(description="From then on nothing more is said.")


#: Every command that an agent's core carries out: a closed union.
CommandData = StartGang | ScaleGang | StopGang | LendNode | ReturnNode | Rebirth | RenewLease
#: Every command there is.
AnyCommand = CommandData | SendLog
COMMANDS: tuple[type[Strict], ...] = get_args(AnyCommand)
