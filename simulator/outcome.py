"""What comes of a run: of every job, and of the pools beside the training pool."""

from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import Floats, Ints
from simulator.physics.base import Cluster


@dataclass(frozen=True, slots=True, eq=False)
class FleetRecord:
    """What became of loans, owners, edge servers and failures."""

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
    needed_gpu_s: float  #: By the owners of inference pools.
    short_gpu_s: float  #: The part of it that they did not have.
    owned_gpu_s: float  #: All GPU time of inference pools.
    edge_short_gpu_s: float  #: What owners of edge servers needed and did not have.
    failures: int
    #: (t,) moments; GPUs on loan from inference pools from then on, and those that jobs hold.
    line_s: Floats
    line_lent: Ints
    line_used: Ints


@dataclass(slots=True, eq=False)
class Outcome:
    """What came of a run. N jobs by submission, then id; moments in s, inf for never."""

    cluster: Cluster
    ids: tuple[str, ...]
    tenants: tuple[str, ...]
    requested: Ints  #: (N,)
    submit_s: Floats  #: (N,)
    deadline_s: Floats  #: (N,)
    start_s: Floats = field(init=False)  #: (N,) first start.
    ready_s: Floats = field(init=False)  #: (N,) end of the first start's pause.
    end_s: Floats = field(init=False)  #: (N,)
    waited_s: Floats = field(init=False)  #: (N,) without GPUs from submission to end, or till now.
    attained_gpu_s: Floats = field(init=False)  #: (N,)
    paused_gpu_s: Floats = field(init=False)  #: (N,) the part of it without progress.
    lost_gpu_s: Floats = field(init=False)  #: (N,) GPU time whose work has to be done again.
    refused: Ints = field(init=False)  #: (N,) 1 where the policy refused it.
    restarts: Ints = field(init=False)  #: (N,)
    preemptions: Ints = field(init=False)  #: (N,)
    grown: Ints = field(init=False)  #: (N,)
    shrunk: Ints = field(init=False)  #: (N,)
    moved: Ints = field(init=False)  #: (N,)
    migrated: Ints = field(init=False)  #: (N,) starts in another pool, or edge server, than before.
    crossed: Ints = field(init=False)  #: (N,) those of them between the edge and elsewhere.
    killed: Ints = field(init=False)  #: (N,) stops without a checkpoint.
    until_s: float = 0.0  #: When the run stopped.
    #: (t,), (t,) moments and GPUs allocated from then on.
    line_s: Floats = field(init=False)
    line_gpus: Ints = field(init=False)
    decision_s: Floats = field(init=False)  #: (d,) how long each decision took.
    decision_jobs: Ints = field(init=False)  #: (d,) active jobs at each.
    #: While a job waited: GPU seconds that were free, and those of them that no whole gang of the
    #: size the first of them asked for could use.
    idle_gpu_s: float = 0.0
    stranded_gpu_s: float = 0.0
    claims: int = 0  #: Allocations that jobs were to have.
    claims_timed_out: int = 0  #: Those of them that were given up because GPUs were not free.
    reclaim_preemptions: int = 0  #: Jobs that a reclaim stopped, by the plan or by force.
    invariant_violations: int = 0
    fleet: FleetRecord | None = None  #: None: there was the training pool alone, and no failure.

    def __post_init__(self) -> None:
        """Begin with nothing counted, and nothing begun."""
        many = len(self.ids)
        self.start_s, self.ready_s, self.end_s = (np.full(many, np.inf) for _ in range(3))
        for name in ("waited_s", "attained_gpu_s", "paused_gpu_s", "lost_gpu_s"):
            setattr(self, name, np.zeros(many))
        for name in ("refused", "restarts", "preemptions", "grown", "shrunk", "moved",
                     "migrated", "crossed", "killed"):  # fmt: skip
            setattr(self, name, np.zeros(many, dtype=np.int64))
