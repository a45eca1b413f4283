"""What a policy is: a pure function from a snapshot (numpy columns) to a plan with its reasons.

A policy sees the cluster as columns and answers with the allocations it wants to hold, whatever
is under way; the engine's reconciler turns the difference into the next safe commands. A policy
reads no clock, keeps no memory but the notes it writes on jobs, and orders everything it does by
explicit keys, so that the same snapshot gives the same plan on every machine and hash seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Numbers that a policy may write on a job.
NOTE = 4
#: The first number of the note on a job that is promised to be in time, of policies that promise.
PROMISED = 1.0
_PROMISING = ("tide", "elasticflow")
#: The most sizes that a snapshot shows.
SIZES_MOST = 256


def promised(note: Sequence[float], writer: str) -> bool:
    """Whether a note, by the policy of this name, says that its job is promised to be in time."""
    return writer in _PROMISING and note[:1] == [PROMISED]


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

    #: The owner's; may be lent. Nodes of training pools are always here, and usable unless drained.
    OWNED = 0
    #: Asked for; the owner is draining it. Reclaimed, it is asked for no longer.
    LENDING = 1
    #: Training may use it; may be reclaimed.
    LENT = 2
    #: Going back, or the owner's and not to be lent now; takes no new work.
    RECLAIMING = 3


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """All unfinished jobs, by submission. n jobs, k sizes, m sites.

    GPUs that a job was told to leave are its own no more, though they are not free yet.
    """

    ids: tuple[str, ...]
    tenants: tuple[str, ...]
    phase: Ints  #: (n,) `Phase`.
    submit_s: Floats  #: (n,)
    #: (n,) inf where there is none, and for a job that declared no total: nobody can promise it.
    deadline_s: Floats
    priority: Ints  #: (n,) higher first.
    #: (n,) above 0; as last reported, extrapolated by the engine to now; of a job that declared no
    #: total, as was learned of its kin, else a guess. Steps, or where a curve
    #: was learned the unit of that: always the unit that `rate` has.
    remaining_steps: Floats
    attained_gpu_s: Floats  #: (n,) GPUs times how long it has held them, pauses included.
    held_s: Floats  #: (n,) for how long it has held GPUs, pauses included.
    first_start_s: Floats  #: (n,) inf if it never held any.
    restarts: Ints  #: (n,) starts and changes of size since its first start.
    waiting_since_s: Floats  #: (n,) when it last became WAITING; submit_s for a new one.
    requested: Ints  #: (n,) the size its tenant asked for; what does not scale gives just this.
    size: Ints  #: (n,) GPUs that it has, or is to have; 0 when WAITING.
    #: (n,) GPUs that its gang holds, until it has left them, also on nodes out of contact. Of one
    #: that changes its size, which runs on both at no time: the more of what it leaves and goes on
    #: with.
    held: Ints
    leaves: Bools  #: (n,) told to leave all GPUs that it holds: it is MOVING, to none.
    pool: Ints  #: (n,) index into `Pools`, -1 when WAITING.
    changed_s: Floats  #: (n,) when its allocation last changed; -inf if never.
    #: (k,) every size that any job declares, or is learned to run at; ascending, shared by all. At
    #: most `SIZES_MOST`: where there are more, first those that jobs hold, or are going to; then
    #: tenants add one in turn, by their first jobs. A tenant adds the sizes that its jobs ask for,
    #: by submission, then their least, their largest, and all others. A job that can run at none
    #: of what is shown has no rate above 0.
    sizes: Ints
    #: (n, k) work per second at each size on GPUs of speed 1; 0 where the size is not allowed for
    #: the job. As declared and corrected by what was observed, or as learned. Between two sizes of
    #: which that is known it lies on a straight line.
    rate: Floats
    rate_age_s: Floats  #: (n,) age of the observation behind `rate`; inf: declared only.
    checkpoint_age_steps: Floats  #: (n,) work that a kill now would lose, as `remaining_steps`.
    checkpoint_cost_s: Floats  #: (n,)
    start_cost_s: Floats  #: (n,)
    checkpoint_mib: Floats  #: (n,)
    memory_mib: Floats  #: (n,) needed on each GPU.
    edge_allowed: Bools  #: (n,)
    #: (n,) do not start it before: it failed, or an old order may still be obeyed; -inf: neither.
    backoff_until_s: Floats
    refused: Bools  #: (n,) the engine refused what the last plan that named it wanted for it.
    #: (n, `NOTE`) what this policy wrote on the job with `Plan.notes`; NaN where nothing. What
    #: another policy wrote is not shown; one with other options is the same policy.
    notes: Floats
    #: (n, m) speed on each site's GPUs relative to `rate`; 0: it cannot run there.
    affinity: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """Where a gang can live: the nodes of one agent in one pool. m sites, by pool, then agent.

    A pool whose nodes are one agent's is one site. An EDGE pool is one here too, but a gang there
    lives on one node. A site without a node in contact is left out, unless a job is there. Figures
    are those of its slowest node in contact: a gang is as fast as its slowest member.
    """

    ids: tuple[str, ...]  #: POOL, or POOL@AGENT where more than one site of the pool is shown.
    kind: Ints  #: (m,) `Kind`.
    speed: Floats  #: (m,) speed of its GPUs relative to the training pool's (lambda for edge).
    gpu_memory_mib: Floats  #: (m,)
    transfer_mib_per_s: Floats  #: (m,) to and from it, for checkpoints.

    def occupied(self, nodes: "Nodes") -> Bools:
        """(m,) pools with a node. One whose last node died must not change what a policy does."""
        return np.bincount(nodes.pool, minlength=len(self.ids)) > 0


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """All nodes whose agents are in contact, by id. p nodes.

    A cordoned one is left out, unless it is being drained or is on loan, or gangs stay on it: then
    it has their GPUs alone, none of them free, and who is planned for them anew is refused. While
    jobs wait that could start if nobody else were there, a gang on such nodes alone is MOVING: it
    is left as it is.
    """

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
    """One owner with a tide: an inference pool, or one edge node. It has a node in contact."""

    id: str  #: The pool's own id, or the node's.
    nodes: Ints  #: indices into `Nodes`, by id; of all sites of the pool.
    gpus_needed: float  #: as last reported.
    load_age_s: float  #: age of that report; inf if there never was one.
    #: Most GPUs needed in each past slot of `slot_s`, oldest first; the last is the present one.
    #: NaN where nothing was reported; the present slot then has what was reported last.
    history: Floats
    slot_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All that a policy may know. Its arrays cannot be written."""

    now_s: float
    jobs: Jobs
    pools: Pools
    nodes: Nodes
    holdings: Holdings
    lenders: tuple[Lender, ...]
    #: Tenant -> GPUs that are guaranteed to it, and the most that it may hold, as an administrator
    #: said: this replaces what a policy's options say of that tenant.
    quotas: Mapping[str, tuple[int, int]] = field(default_factory=dict)


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


#: Verbs of reasons whose subjects are nodes.
OF_NODES = ("lends", "reclaims")


@dataclass(slots=True)
class Reason:
    """Why something was, or was not, done; data, so that it can be asked for later.

    `verb` is one of: starts waits scales_out scales_in preempts migrates lends reclaims keeps.
    """

    subject: str  #: A job, or a node where the verb is one of `OF_NODES`.
    verb: str
    rule: str  #: The rule that decided, as `family.rule`: `edgeflow.rule2`, `gang.backfill`.
    figures: tuple[Figure, ...] = ()
    lost_to: tuple[str, ...] = ()  #: Jobs or lenders that got what the subject lost or wants.
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The allocation a job shall have: how many GPUs on which nodes, all of one site."""

    pool: str  #: The site's id.
    placement: tuple[tuple[str, int], ...]  #: (node, GPUs), by node.

    @property
    def size(self) -> int:
        """GPUs in all."""
        return sum([count for _, count in self.placement])


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy wants. Jobs it does not name stay as they are.

    The engine checks it (`scheduler.policies.checked`) and adopts nothing of a malformed one.
    A job mapped to None shall hold nothing: it is preempted if it runs. Targets taken together
    with what unnamed and MOVING jobs hold never exceed a node's GPUs; a target may use GPUs that
    another named job gives up in the same plan: the engine waits for them, and holds them.
    """

    targets: Mapping[str, Target | None] = field(default_factory=dict)
    lend: tuple[str, ...] = ()  #: Nodes to ask their owners for.
    #: Nodes to give back, or to ask for no longer, each with the moment its owner is expected to
    #: need it.
    reclaim: Mapping[str, float] = field(default_factory=dict)
    #: Waiting jobs that the policy refuses for good: they fail as declined.
    decline: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    #: What to write on jobs, at most `NOTE` finite numbers each: the only memory a policy has. It
    #: is journalled, shown again in `Jobs.notes`, and gone with the job.
    notes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    #: By tenant, the most GPUs that its jobs may hold together: sizes that people set keep to it.
    limits: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Queueing(Protocol):
    """A policy that serves jobs in an order of its own, which does not follow from who starts."""

    def queue(self, snapshot: Snapshot) -> Sequence[str]:
        """Name the waiting jobs that it would try to start now, in the order of their turns."""
        ...


class Policy(Protocol):
    """A scheduling policy."""

    @property
    def name(self) -> str:
        """The name it is selected by."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide. Pure: equal snapshots give equal plans."""
        ...
