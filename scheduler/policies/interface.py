"""What a policy is: a pure function from a snapshot (numpy columns) to a plan with its reasons.

A policy sees the cluster as columns and answers with the allocations it wants to hold, whatever
is under way; the engine's reconciler turns the difference into the next safe commands. A policy
reads no clock, keeps no memory but the notes it writes on jobs, and orders everything it does by
explicit keys, so that the same snapshot gives the same plan on every machine and hash seed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Numbers that a policy may write on a job.
NOTE = 4


class Phase(IntEnum):
    """What a job is doing, as far as a policy needs to know."""

    #: Holds no GPU.
    WAITING = 0
    #: Holds GPUs and trains; may be scaled, moved or preempted.
    RUNNING = 1
    #: Between two allocations (starting, scaling, stopping): must be left alone this cycle.
    #: Its GPUs, present and claimed, are not free; its `size` and `pool` are those it is going to.
    MOVING = 2


#: The same as plain numbers: numpy compares a column with these several times as fast.
WAITING, RUNNING, MOVING = (phase.value for phase in Phase)


class Kind(IntEnum):
    """Whose a pool is."""

    TRAINING = 0
    INFERENCE = 1
    EDGE = 2


class LoanPhase(IntEnum):
    """Where a node of a lender is between its owner and training."""

    #: The owner's; may be lent. Nodes of training pools are always here, and always usable.
    OWNED = 0
    #: Asked for; the owner is draining it.
    LENDING = 1
    #: Training may use it; may be reclaimed.
    LENT = 2
    #: Going back; takes no new work.
    RECLAIMING = 3


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """All unfinished jobs, by submission (`submit_s`, then id). n jobs, k sizes."""

    ids: tuple[str, ...]
    tenants: tuple[str, ...]
    phase: Ints  #: (n,) `Phase`.
    submit_s: Floats  #: (n,)
    deadline_s: Floats  #: (n,) inf where there is none.
    priority: Ints  #: (n,) higher first.
    remaining_steps: Floats  #: (n,) as last reported, extrapolated by the engine to now.
    attained_gpu_s: Floats  #: (n,)
    held_s: Floats  #: (n,) for how long it has held GPUs, pauses included.
    first_start_s: Floats  #: (n,) inf if it never held any.
    restarts: Ints  #: (n,) changes of its allocation since its first start.
    waiting_since_s: Floats  #: (n,) when it last became WAITING; submit_s for a new one.
    requested: Ints  #: (n,) the size its tenant asked for; what does not scale gives just this.
    size: Ints  #: (n,) GPUs held, 0 when WAITING.
    pool: Ints  #: (n,) index into `Pools`, -1 when WAITING.
    changed_s: Floats  #: (n,) when its allocation last changed; -inf if never.
    sizes: Ints  #: (k,) every size any job may take, ascending, shared by all.
    #: (n, k) steps per second at each size on one training pool's GPUs (speed factor 1),
    #: corrected by what was observed; 0 where the size is not allowed for the job.
    rate: Floats
    rate_age_s: Floats  #: (n,) age of the observation behind `rate`; inf: declared only.
    checkpoint_age_steps: Floats  #: (n,) steps that a kill now would lose.
    checkpoint_cost_s: Floats  #: (n,)
    start_cost_s: Floats  #: (n,)
    checkpoint_mib: Floats  #: (n,)
    memory_mib: Floats  #: (n,) needed on each GPU.
    edge_allowed: Bools  #: (n,)
    backoff_until_s: Floats  #: (n,) do not try to start it before; -inf if it never failed.
    #: (n, `NOTE`) what the policy wrote on the job with `Plan.notes`; NaN where nothing.
    notes: Floats
    #: (n, m) speed on each pool's GPUs relative to `rate`; 0: it cannot run there.
    affinity: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """Pools of like nodes. A gang lives in one pool; in an EDGE pool, on one node. m pools."""

    ids: tuple[str, ...]
    kind: Ints  #: (m,) `Kind`.
    speed: Floats  #: (m,) speed of its GPUs relative to the training pool's (lambda for edge).
    gpu_memory_mib: Floats  #: (m,)
    transfer_mib_per_s: Floats  #: (m,) to and from it, for checkpoints.

    def occupied(self, nodes: "Nodes") -> Bools:
        """(m,) pools with a node. One whose last node died must not change what a policy does."""
        return np.bincount(nodes.pool, minlength=len(self.ids)) > 0


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """All nodes whose agents are in contact, by id. p nodes."""

    ids: tuple[str, ...]
    pool: Ints  #: (p,) index into `Pools`.
    gpus: Ints  #: (p,)
    #: (p,) GPUs that nobody holds and nobody has claimed. On nodes that are not usable: 0.
    free: Ints
    usable: Bools  #: (p,) training may place work here now.
    loan: Ints  #: (p,) `LoanPhase`.
    lent_since_s: Floats  #: (p,) when it became LENT; -inf otherwise.
    returned_s: Floats  #: (p,) when it last went back to its owner; -inf if never.


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """Who holds how many GPUs where: h triples, by job then node."""

    job: Ints  #: (h,) index into `Jobs`.
    node: Ints  #: (h,) index into `Nodes`.
    gpus: Ints  #: (h,)


@dataclass(frozen=True, slots=True, eq=False)
class Lender:
    """One owner with a tide: an inference pool, or one edge node."""

    id: str  #: The pool's id, or the node's.
    nodes: Ints  #: indices into `Nodes`, by id.
    gpus_needed: float  #: as last reported.
    load_age_s: float  #: age of that report; inf if there never was one.
    #: Most GPUs needed in each past slot of `slot_s`, oldest first; the last is the present one.
    #: NaN where nothing was reported.
    history: Floats
    slot_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All that a policy may know."""

    now_s: float
    jobs: Jobs
    pools: Pools
    nodes: Nodes
    holdings: Holdings
    lenders: tuple[Lender, ...]


# A plan has thousands of the next three; frozen ones take three times as long to make.


@dataclass(slots=True)
class Figure:
    """A number that a decision used. The unit ends the name."""

    name: str
    value: float
    age_s: float = 0.0


@dataclass(slots=True)
class Need:
    """What would have to change for another answer."""

    name: str
    have: float
    want: float


@dataclass(slots=True)
class Reason:
    """Why something was, or was not, done; data, so that it can be asked for later.

    `verb` is one of: starts waits scales_out scales_in preempts migrates lends reclaims keeps.
    """

    subject: str  #: A job, or a lender's node.
    verb: str
    rule: str  #: The rule that decided, as `family.rule`: `edgeflow.rule2`, `gang.backfill`.
    figures: tuple[Figure, ...] = ()
    lost_to: tuple[str, ...] = ()  #: Jobs or lenders that got what the subject lost or wants.
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The allocation a job shall have: how many GPUs on which nodes, all in one pool."""

    pool: str
    placement: tuple[tuple[str, int], ...]  #: (node, GPUs), by node.

    @property
    def size(self) -> int:
        """GPUs in all."""
        return sum(count for _, count in self.placement)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy wants. Jobs it does not name stay as they are.

    A job mapped to None shall hold nothing: it is preempted if it runs. Targets taken together
    with what unnamed and MOVING jobs hold never exceed a node's GPUs; a target may use GPUs that
    another named job gives up in the same plan: the engine waits for them, and holds them.
    """

    targets: Mapping[str, Target | None] = field(default_factory=dict)
    lend: tuple[str, ...] = ()  #: Nodes to ask their owners for.
    #: Nodes to give back, each with the moment the owner is expected to need it.
    reclaim: Mapping[str, float] = field(default_factory=dict)
    #: Waiting jobs that the policy refuses for good: they fail as declined.
    decline: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    #: What to write on jobs, at most `NOTE` finite numbers each: the only memory a policy has. It
    #: is journalled, shown again in `Jobs.notes`, and gone with the job.
    notes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def check_notes(self) -> None:
        """Find what could not be journalled.

        Raises:
            ValueError: a note is too long or not finite.
        """
        for job, note in self.notes.items():
            if len(note) > NOTE or not all(map(math.isfinite, note)):
                raise ValueError(f"note on {job}: {note}; at most {NOTE} finite numbers")


class Policy(Protocol):
    """A scheduling policy."""

    @property
    def name(self) -> str:
        """The name it is selected by."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide. Pure: equal snapshots give equal plans."""
        ...
