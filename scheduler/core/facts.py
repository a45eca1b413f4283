"""What the engine decided or took note of: facts, past tense, the only way state changes.

The journal keeps them for good, and `evolve` accepts every one ever written: fields are added
with a default, never removed or given another meaning; one that was renamed is read by an upcaster
(`schemas.upcast`). An allocation is `{node: [GPU index, ...]}`.
Nobody changes a fact. They are not frozen, since that takes three times as long to make, and there
are thousands in a turn.
"""

from dataclasses import dataclass
from typing import Any

from scheduler.core.facts_cell import (
    LoanRecalled as LoanRecalled,
    LoansFrozen as LoansFrozen,
    LoansUnfrozen as LoansUnfrozen,
    OwnerShort as OwnerShort,
    OwnerUnheard as OwnerUnheard,
    PolicyChanged as PolicyChanged,
    PolicyCleared as PolicyCleared,
    PolicyConfigured as PolicyConfigured,
    QuotaCleared as QuotaCleared,
    QuotaSet as QuotaSet,
)
from scheduler.core.facts_fleet import (
    CommandDone as CommandDone,
    CommandExpired as CommandExpired,
    CommandIssued as CommandIssued,
    CommandRefused as CommandRefused,
    CommandRepeated as CommandRepeated,
    CycleRan as CycleRan,
    LenderRenamed as LenderRenamed,
    LoanGranted as LoanGranted,
    LoanLost as LoanLost,
    LoanRefused as LoanRefused,
    LoanRequested as LoanRequested,
    LoanReturned as LoanReturned,
    PolicyFailed as PolicyFailed,
    ReclaimStarted as ReclaimStarted,
    ReturnOrdered as ReturnOrdered,
)
from scheduler.core.facts_requests import (
    CellPaused as CellPaused,
    CellResumed as CellResumed,
    DrainEnded as DrainEnded,
    DrainStarted as DrainStarted,
    JobHeld as JobHeld,
    JobPrioritised as JobPrioritised,
    JobReleased as JobReleased,
    JobRequeued as JobRequeued,
    JobSizeFreed as JobSizeFreed,
    JobSizeSet as JobSizeSet,
    NodeAccepted as NodeAccepted,
    NodeCordoned as NodeCordoned,
    NodeRefused as NodeRefused,
    NodeUncordoned as NodeUncordoned,
    RequestCounted as RequestCounted,
    RequestDone as RequestDone,
    RequestKeptLonger as RequestKeptLonger,
    RequestRefused as RequestRefused,
)

Allocation = dict[str, list[int]]


@dataclass(slots=True)
class LeaderChanged:
    """A scheduler process leads the cell."""

    leader: str
    leader_epoch: int
    policy: str
    settings: dict[str, float]


@dataclass(slots=True)
class NodeJoined:
    """A node is here, with this inventory; `bootid` counts its agent's starts."""

    node: str
    agent: str
    pool: str
    pool_kind: str
    gpu_count: int
    gpu_type: str
    gpu_memory_mib: int
    speed_factor: float
    transfer_mib_per_s: float
    bootid: int
    said_s: float = 0.0


@dataclass(slots=True)
class NodeSilenced:
    """A node is out of contact; its workers' leases end at `lease_end_s`."""

    node: str
    lease_end_s: float


@dataclass(slots=True)
class NodeReturned:
    """A silent node is in contact again."""

    node: str


@dataclass(slots=True)
class NodeLost:
    """A node is gone; whatever it ran has ended."""

    node: str
    reason: str


@dataclass(slots=True)
class StrayFound:
    """A node still runs a gang that the ledger had given up; its GPUs are not free."""

    node: str
    job: str
    epoch: int
    gpus: list[int]


@dataclass(slots=True)
class LoadObserved:
    """An owner needs this many GPUs now."""

    lender: str
    gpus_needed: float
    gpus_serving: float
    shortfall_gpu_s: float
    bootid: int
    source: str = ""
    sequence: int = -1
    said_s: float = 0.0


@dataclass(slots=True)
class JobAccepted:
    """A job is in the queue."""

    job: str
    spec: dict[str, Any]


@dataclass(slots=True)
class SubmissionRefused:
    """A submission was not taken; nothing of it is kept."""

    job: str
    reason: str


@dataclass(slots=True)
class JobAdvanced:
    """How far a running job is, as its agent reports."""

    job: str
    step: int
    samples_per_s: float
    checkpoint_step: int
    checkpoint_cost_s: float


@dataclass(slots=True)
class JobMeasured:
    """What a running job reports of itself at a step, by the names that it gives; for people."""

    job: str
    step: int
    metrics: dict[str, float]


@dataclass(slots=True)
class JobsNoted:
    """What the policy of this name wrote on jobs, to be shown to it again."""

    notes: dict[str, list[float]]
    policy: str = ""


@dataclass(slots=True)
class CurvesReplaced:
    """These jobs have these curves from now on: by job, the fields of `stimuli.Curve`."""

    curves: dict[str, dict[str, Any]]


@dataclass(slots=True)
class LengthsReplaced:
    """These jobs are taken to be so long from now on: by job, the fields of `stimuli.Length`."""

    lengths: dict[str, dict[str, Any]]


@dataclass(slots=True)
class JobDeclined:
    """The policy refuses the job for good."""

    job: str


@dataclass(slots=True)
class JobExplained:
    """Why the job is as it is; the latest reason, kept for whoever asks."""

    job: str
    reason: dict[str, Any]


@dataclass(slots=True)
class TargetSet:
    """These GPUs are held for the job, from now on until it has them or gives them up."""

    job: str
    pool: str
    allocation: Allocation
    verb: str


@dataclass(slots=True)
class TargetDropped:
    """The job no longer claims other GPUs than it has."""

    job: str
    reason: str
    timed_out: bool = False  #: Others should have left those GPUs long ago.
    refused: bool = False  #: What the policy wanted for it cannot be carried out.


@dataclass(slots=True)
class RefusalsNoted:
    """Whether what the latest plan wanted for these jobs was refused; the policy is shown it."""

    jobs: dict[str, bool]


@dataclass(slots=True)
class StartsDeferred:
    """Whether gangs that could start wait for the next turn, since enough were started in one."""

    waiting: bool


@dataclass(slots=True)
class GangStarting:
    """The gang was told to start on these GPUs; they are the job's."""

    job: str
    epoch: int
    pool: str
    allocation: Allocation
    step: int


@dataclass(slots=True)
class GangScaling:
    """The gang was told to run on these GPUs instead; those given up are freed when reported."""

    job: str
    epoch: int
    allocation: Allocation
    keeps_claim: bool = False  #: It goes on claiming its target, of which this is a part.


@dataclass(slots=True)
class WorkerReady:
    """One worker of the gang is up."""

    job: str
    epoch: int
    node: str


@dataclass(slots=True)
class GangRunning:
    """All workers of the gang are up."""

    job: str


@dataclass(slots=True)
class GangCheckpointing:
    """The gang was told to save its work and leave."""

    job: str
    reason: str


@dataclass(slots=True)
class GangStopping:
    """The gang was told to leave, or died; what is left of it is leaving."""

    job: str
    reason: str
    detail: str = ""


@dataclass(slots=True)
class CheckpointSaved:
    """The job can go on from this step."""

    job: str
    step: int
    cost_s: float


@dataclass(slots=True)
class OutputsKept:
    """The job's outputs are in the store; the journal says where."""

    job: str
    uri: str
    files: int
    size_mib: int
    left_out: str


@dataclass(slots=True)
class CheckpointMissed:
    """A checkpoint failed; the one before it counts."""

    job: str
    error: str


@dataclass(slots=True)
class GpusReleased:
    """These GPUs of the node are nobody's."""

    job: str
    node: str
    gpus: list[int]


@dataclass(slots=True)
class JobQueued:
    """The job holds nothing and waits again; it goes on from `step`."""

    job: str
    reason: str
    step: int
    backoff_until_s: float | None


@dataclass(slots=True)
class JobMigrating:
    """The job left its GPUs; those claimed in another pool are next."""

    job: str
    step: int


@dataclass(slots=True)
class JobCompleted:
    """All steps are done."""

    job: str


@dataclass(slots=True)
class JobFailed:
    """The job will not be tried again."""

    job: str
    reason: str


@dataclass(slots=True)
class JobCancelled:
    """The tenant took the job back, and its GPUs are free."""

    job: str


@dataclass(slots=True)
class JobForgotten:
    """A finished job left the state; the journal keeps it."""

    job: str


@dataclass(slots=True)
class CancelRequested:
    """The tenant wants the job gone; its gang is still there."""

    job: str


FACTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and hasattr(cls, "__dataclass_fields__")
}
