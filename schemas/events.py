"""What agents and tenants report: facts, in the past tense, as strict payloads.

Each class names its stable wire type in `TYPE`; the number at its end is the version of the
payload. A new optional field keeps the version; anything else adds one, and what was written under
the old one stays readable.
"""

from itertools import pairwise
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from schemas.programs import Program, carried_unless_taken
from schemas.values import (
    MAX_GPUS_PER_NODE,
    Celsius,
    DurationS,
    Epoch,
    GpuCount,
    Gpus,
    MemoryMib,
    Metrics,
    MomentS,
    Name,
    Note,
    PerSecond,
    Positive,
    Ratio,
    Step,
    Strict,
    Watt,
)

PoolKind = Literal["training", "inference", "edge"]
StopReason = Literal[
    "completed", "scaled_in", "preempted", "migrated", "cancelled", "lease_ended", "superseded"
]

_PER_GPU = Field(min_length=1, max_length=MAX_GPUS_PER_NODE)


Session = Annotated[
    int,
    Field(ge=0, le=2**53, description="Rises with every connection of this agent."),
]


#: Of a GPU's training speed; the training pool's own is 1.
SpeedFactor = Annotated[float, Field(gt=0.0, le=100.0)]


class GangHeld(Strict):
    """Workers that an agent still has when it reports birth."""

    job: Name
    epoch: Epoch
    gpus: Gpus
    step: Step


class NodeBorn(Strict):
    """An agent is here with this node: its full inventory, and what it still runs."""

    TYPE: ClassVar[str] = "tidegate.node.born.v1"
    node: Name
    agent: Name = Field(description="Whom commands for this node are addressed to.")
    pool: Name
    pool_kind: PoolKind
    gpu_count: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE)]
    gpu_type: Name
    gpu_memory_mib: MemoryMib
    speed_factor: SpeedFactor = Field(
        default=1.0, description="Training speed of one GPU here over one of the training pool."
    )
    transfer_mib_per_s: Annotated[float, Field(gt=0.0, le=1e6)] = Field(
        default=1000.0, description="How fast checkpoints move to and from this node."
    )
    held: Annotated[list[GangHeld], Field(max_length=MAX_GPUS_PER_NODE)] = Field(
        default=[], description="Gangs that still run here."
    )
    loan: Name | None = Field(default=None, description="The loan the node is on, if any.")

    @model_validator(mode="after")
    def _held_gpus_are_here(self) -> "NodeBorn":
        held = [gpu for gang in self.held for gpu in gang.gpus]
        if held and max(held) >= self.gpu_count:
            raise ValueError(f"held: names GPU {max(held)}, the node has {self.gpu_count}")
        if len(set(held)) != len(held):
            raise ValueError("held: two gangs hold the same GPU")
        return self


class NodeDied(Strict):
    """The node is gone for good or is going down; its workers are gone with it."""

    TYPE: ClassVar[str] = "tidegate.node.died.v1"
    node: Name
    reason: Note = ""


class NodeMeasured(Strict):
    """Telemetry of one node: means over the window, one entry per GPU; null is "not measured"."""

    TYPE: ClassVar[str] = "tidegate.node.measured.v1"
    node: Name
    window_s: DurationS
    gpu_utilisation: Annotated[list[Ratio | None], _PER_GPU]
    gpu_memory_used_mib: Annotated[list[MemoryMib | None], _PER_GPU]
    gpu_temperature_c: Annotated[list[Celsius | None], _PER_GPU]
    gpu_power_w: Annotated[list[Watt | None], _PER_GPU]

    @model_validator(mode="after")
    def _same_gpus(self) -> "NodeMeasured":
        count = len(self.gpu_utilisation)
        if not (
            count
            == len(self.gpu_memory_used_mib)
            == len(self.gpu_temperature_c)
            == len(self.gpu_power_w)
        ):
            for name in ("gpu_memory_used_mib", "gpu_temperature_c", "gpu_power_w"):
                if (length := len(getattr(self, name))) != count:
                    raise ValueError(
                        f"{name}: must have one entry per GPU like gpu_utilisation,"
                        f" has {length}, not {count}"
                    )
        return self


class InferenceLoad(Strict):
    """What the owner of a lending pool serves now, and how many GPUs that takes."""

    TYPE: ClassVar[str] = "tidegate.inference.load.v1"
    pool: Name
    node: Name | None = Field(default=None, description="Null: the figures are the whole pool's.")
    requests_running: Annotated[int, Field(ge=0, le=2**53)]
    requests_waiting: Annotated[int, Field(ge=0, le=2**53)]
    request_rate_per_s: PerSecond
    latency_p99_s: DurationS | None = None
    kv_cache_use: Ratio | None = None
    gpus_needed: GpuCount = Field(description="GPUs the owner needs now to serve this load.")
    gpus_serving: GpuCount = Field(description="GPUs the owner has to serve with now.")
    shortfall_gpu_s: Annotated[float, Field(ge=0.0, le=1e15)] = Field(
        default=0.0, description="GPU-seconds short since the agent's birth; a running total."
    )


#: Samples a second of a whole gang. The bounds keep every quotient with a batch, and every run
#: time, finite and far from what floats cannot hold; real jobs are nowhere near them.
Rate = Annotated[float, Field(ge=1e-9, le=1e9)]
#: Of a job; one of a higher priority goes first.
Priority = Annotated[int, Field(ge=-1000, le=1000)]
#: Samples that one optimiser step takes; bounded for the same reason.
Batch = Annotated[float, Field(ge=1e-6, le=1e9)]
#: Seconds that a step takes; who does not know says nothing.
Taken = Annotated[float, Field(ge=1e-7, le=1e6)]


class RatePoint(Strict):
    """One point of a throughput curve."""

    gpus: Annotated[int, Field(ge=1, le=65_536)]
    samples_per_s: Rate


def _ascending(rates: list[RatePoint]) -> list[RatePoint]:
    if any(a.gpus >= b.gpus for a, b in pairwise(rates)):
        raise ValueError("sizes must ascend, each once")
    return rates


#: Declared throughput by number of GPUs, sizes ascending.
Rates = Annotated[list[RatePoint], Field(min_length=1, max_length=64), AfterValidator(_ascending)]


class JobSubmitted(Strict):
    """A tenant asks for training: how much work, which sizes, by when."""

    TYPE: ClassVar[str] = "tidegate.job.submitted.v1"
    job: Name
    tenant: Name
    model: Name
    gpus_min: Annotated[int, Field(ge=1, le=65_536)]
    gpus_max: Annotated[int, Field(ge=1, le=65_536)]
    gpus: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        default=None,
        description="Size asked for: policies that do not scale give exactly this. "
        "If left out, gpus_min.",
    )
    total_steps: Annotated[int, Field(ge=1, le=2**53)] | None = Field(
        default=None,
        description="Optimiser steps in all. If left out, it ends when its program does; how long "
        "that will take is learned, and its deadline is no promise.",
    )
    samples_per_step: Batch = Field(
        description="Global batch: samples that one optimiser step takes."
    )
    rates: Rates = Field(
        description="Declared throughput by size on the training pool's GPUs, sizes ascending."
    )
    deadline_s: MomentS | None = None
    memory_mib: MemoryMib = Field(default=0, description="Needed on each GPU.")
    checkpoint_mib: MemoryMib = 0
    checkpoint_cost_s: DurationS = Field(default=10.0, description="Pause of one checkpoint.")
    start_cost_s: DurationS = Field(default=30.0, description="From launch to the first step.")
    priority: Priority = 0
    edge_allowed: bool = True
    program: Annotated[Program, AfterValidator(carried_unless_taken)] | None = Field(
        default=None, description="What its workers run; null where they are simulated."
    )

    @model_validator(mode="after")
    def _sizes_agree(self) -> "JobSubmitted":
        if self.gpus_max < self.gpus_min:
            raise ValueError("gpus_max: must be at least gpus_min")
        if self.gpus is not None and not self.gpus_min <= self.gpus <= self.gpus_max:
            raise ValueError("gpus: must lie between gpus_min and gpus_max")
        if not any(self.gpus_min <= point.gpus <= self.gpus_max for point in self.rates):
            raise ValueError("rates: no size between gpus_min and gpus_max has a rate")
        return self


class JobCancelled(Strict):
    """A tenant takes a job back."""

    TYPE: ClassVar[str] = "tidegate.job.cancelled.v1"
    job: Name
    reason: Note = ""


class JobProgressed(Strict):
    """How far a running gang is."""

    TYPE: ClassVar[str] = "tidegate.job.progressed.v1"
    job: Name
    epoch: Epoch
    step: Step
    samples_per_s: PerSecond
    checkpoint_step: Step = Field(description="Step of the last checkpoint; what a crash keeps.")
    checkpoint_cost_s: DurationS
    gradient_noise: Positive | None = Field(
        default=None, description="Noise scale, B_simple of McCandlish et al. 2018, where known."
    )
    batch: Batch | None = Field(
        default=None, description="Samples of an optimiser step, if not as many as were declared."
    )
    step_s: Taken | None = Field(
        default=None, description="Mean time of an optimiser step since the last report, if known."
    )
    pass_s: Taken | None = Field(
        default=None, description="Of it, until gradients are exchanged, if known."
    )
    metrics: Metrics | None = Field(
        default=None,
        description="The newest values of what the job names itself, such as its loss.",
    )

    @model_validator(mode="after")
    def _checkpoint_is_past(self) -> "JobProgressed":
        if self.checkpoint_step > self.step:
            raise ValueError(f"checkpoint_step: must not be after step {self.step}")
        return self


class WorkerStarted(Strict):
    """One worker (the gang's processes on one node) takes its first step."""

    TYPE: ClassVar[str] = "tidegate.worker.started.v1"
    job: Name
    epoch: Epoch
    node: Name
    gpus: Gpus
    step: Step


_RAN = "False: the job's program was not started under this epoch, and has written nothing."


class WorkerStopped(Strict):
    """One worker has left these GPUs, in good order."""

    TYPE: ClassVar[str] = "tidegate.worker.stopped.v1"
    job: Name
    epoch: Epoch
    node: Name
    gpus: Gpus
    reason: StopReason
    step: Step = Field(
        description="Step that the job can go on from; of one that completed, its last."
    )
    ran: bool = Field(default=True, description=_RAN)


class WorkerFailed(Strict):
    """One worker died; its GPUs are free, the work since the last checkpoint is lost."""

    TYPE: ClassVar[str] = "tidegate.worker.failed.v1"
    job: Name
    epoch: Epoch
    node: Name
    gpus: Gpus
    error: Note
    retriable: bool = True
    step: Step = Field(description="Step that the job can go on from.")
    ran: bool = Field(default=True, description=_RAN)


class CheckpointCommitted(Strict):
    """A checkpoint is complete and durable."""

    TYPE: ClassVar[str] = "tidegate.checkpoint.committed.v1"
    job: Name
    epoch: Epoch
    step: Step
    uri: Annotated[str, Field(max_length=1000)]
    size_mib: MemoryMib
    cost_s: DurationS


class OutputsKept(Strict):
    """What a job names as its outputs is in the store, as far as it was there."""

    TYPE: ClassVar[str] = "tidegate.outputs.kept.v1"
    job: Name
    epoch: Epoch
    uri: Annotated[str, Field(max_length=1000)] = Field(description="The folder they are in.")
    files: Annotated[int, Field(ge=0, le=1_000_000)]
    size_mib: MemoryMib
    left_out: Note = Field(default="", description="What of them is not kept, and why.")


class CheckpointFailed(Strict):
    """A checkpoint could not be written; the one before it still counts."""

    TYPE: ClassVar[str] = "tidegate.checkpoint.failed.v1"
    job: Name
    epoch: Epoch
    error: Note


class CommandAcknowledged(Strict):
    """An agent says what became of a command; for a repeated command, the same again."""

    TYPE: ClassVar[str] = "tidegate.command.acknowledged.v1"
    command: Name
    outcome: Literal["done", "refused"]
    reason: Note = ""


class LinkOpened(Strict):
    """An agent's connection to the MQTT broker is up; the broker retains the newest word."""

    TYPE: ClassVar[str] = "tidegate.link.opened.v1"
    agent: Name
    session: Session


class LinkLost(Strict):
    """The MQTT broker lost an agent's connection: the agent's Will, written when it connected.

    Its work goes on: the agent is only out of contact. A session below the newest opened one is
    old news.
    """

    TYPE: ClassVar[str] = "tidegate.link.lost.v1"
    agent: Name
    session: Session


#: Measurements: frequent, and each replaces the one before. They have their own topic.
TELEMETRY: tuple[type[Strict], ...] = (NodeMeasured, InferenceLoad)
#: Every event there is: the closed union. Order is the order of the docs.
EventData = (
    NodeBorn
    | NodeDied
    | NodeMeasured
    | InferenceLoad
    | JobSubmitted
    | JobCancelled
    | JobProgressed
    | WorkerStarted
    | WorkerStopped
    | WorkerFailed
    | CheckpointCommitted
    | OutputsKept
    | CheckpointFailed
    | CommandAcknowledged
    | LinkOpened
    | LinkLost
)
EVENTS: tuple[type[Strict], ...] = get_args(EventData)
