"""What comes of a run: of every job, and of the pools beside the training pool."""

from dataclasses import dataclass

from scheduler.policies.interface import Floats, Ints
from simulator.physics.base import Room


@dataclass(frozen=True, slots=True, eq=False)
class FleetRecord:
    """What became of loans, owners, edge servers and failures. N jobs as in `Outcome`."""

    gpus: int  #: Of all pools.
    ready_gpu_s: float  #: That jobs could have had: training nodes that are up, nodes lent, edge.
    loans: int
    lent_gpu_s: float  #: Of inference pools, from being lent until being back.
    lent_used_gpu_s: float  #: The part of it that jobs held.
    edge_gpu_s: float  #: Of edge servers, while open to training.
    edge_used_gpu_s: float
    #: (r,) nodes asked back: which batch, asked and due when, and back with its owner when (inf:
    #: not by the end of the run). A batch is what one plan asks back of one pool.
    reclaim_batch: Ints
    reclaim_asked_s: Floats
    reclaim_due_s: Floats
    reclaim_back_s: Floats
    reclaim_preemptions: int  #: Jobs that a reclaim stopped, by the plan or by force.
    needed_gpu_s: float  #: By the owners of inference pools.
    short_gpu_s: float  #: The part of it that they did not have.
    owned_gpu_s: float  #: All GPU time of inference pools.
    edge_needed_gpu_s: float
    edge_short_gpu_s: float
    failures: int
    migrated: Ints  #: (N,) starts in another pool, or edge server, than the one before.
    crossed: Ints  #: (N,) those of them between the edge and elsewhere.
    killed: Ints  #: (N,) stops without a checkpoint.
    lost_gpu_s: Floats  #: (N,) GPU time whose work has to be done again.
    #: (t,) moments; GPUs on loan from inference pools from then on, and those that jobs hold.
    line_s: Floats
    line_lent: Ints
    line_used: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came of a run. N jobs by submission, then id; moments in s, inf for never."""

    policy: str
    room: Room
    ids: tuple[str, ...]
    tenants: tuple[str, ...]
    requested: Ints  #: (N,)
    submit_s: Floats  #: (N,)
    deadline_s: Floats  #: (N,)
    start_s: Floats  #: (N,) first start.
    ready_s: Floats  #: (N,) end of the first start's pause.
    end_s: Floats  #: (N,)
    refused: Ints  #: (N,) 1 where the policy refused it.
    waited_s: Floats  #: (N,) without GPUs between submission and end, or the run's end.
    attained_gpu_s: Floats  #: (N,)
    paused_gpu_s: Floats  #: (N,) the part of it without progress.
    restarts: Ints  #: (N,)
    preemptions: Ints  #: (N,)
    grown: Ints  #: (N,)
    shrunk: Ints  #: (N,)
    moved: Ints  #: (N,)
    until_s: float  #: When the run stopped.
    #: (t,), (t,) moments and GPUs allocated from then on.
    line_s: Floats
    line_gpus: Ints
    decision_s: Floats  #: (d,) how long each decision took.
    decision_jobs: Ints  #: (d,) active jobs at each.
    #: While a job waited: GPU seconds that were free, and those of them that no whole gang of the
    #: size the first of them asked for could use.
    idle_gpu_s: float
    stranded_gpu_s: float
    claims: int = 0  #: Allocations that jobs were to have.
    claims_timed_out: int = 0  #: Those of them that were given up because GPUs were not free.
    invariant_violations: int = 0
    fleet: FleetRecord | None = None  #: None: there was the training pool alone, and no failure.
