"""The state of a cell: a fold of facts, JSON in shape, so that it can be hashed and stored.

Do not change it anywhere but in `evolve`. Everything in it is a string, number, boolean, None,
list or dict (or a dataclass of those), in an order that facts determine.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from scheduler.core.facts import Allocation
from scheduler.core.standing import Standing
from scheduler.core.tenant_bytes import add, bytes_of
from scheduler.core.transitions import CommandState, JobState, LoanState, NodeState

#: Owners' demand is remembered as the peak of each slot this long, unless a leader's settings
#: say otherwise...
SLOT_S = 300.0
#: ...for this many slots: two days, so that the same time yesterday is always there.
SLOTS = 576


@dataclass(slots=True)
class Job:
    """A job, from submission until it is forgotten."""

    id: str
    tenant: str
    model: str
    gpus_min: int
    gpus_max: int
    total_steps: int | None  #: None: nobody declared it; it ends when its program does.
    samples_per_step: float
    rates: list[list[float]]  #: [[GPUs, declared samples per second], ...], GPUs ascending.
    deadline_s: float | None
    memory_mib: int
    checkpoint_mib: int
    checkpoint_cost_s: float
    start_cost_s: float
    priority: int
    edge_allowed: bool
    submit_s: float
    gpus: int | None = None  #: Size asked for; None: `gpus_min`.
    program: dict[str, Any] | None = None  #: What its workers run (`schemas.programs.Program`).
    number: int = 0  #: Counts submissions: the order of acceptance.
    state: JobState = JobState.QUEUED
    epoch: int = 0  #: Of its newest allocation; never falls.
    start_epoch: int = 0  #: Of its newest start; changes of size since then are the same gang.
    pool: str | None = None  #: Of `allocation`; None exactly when `allocation` is empty.
    allocation: Allocation = field(default_factory=dict)  #: GPUs it was told to run on.
    leaving: Allocation = field(default_factory=dict)  #: GPUs it was told to leave, not yet free.
    agents: list[str] = field(default_factory=list)  #: Who had a part of its newest gang, sorted.
    ready: list[str] = field(default_factory=list)  #: Nodes whose worker of `epoch` is up.
    target: Allocation | None = None  #: Claimed: what it shall run on next.
    target_pool: str | None = None
    target_verb: str = ""
    target_since_s: float = 0.0
    refused: bool = False  #: The engine refused what the latest plan that named it wanted.
    stop_reason: str = ""  #: Why it is CHECKPOINTING or STOPPING.
    stop_since_s: float = 0.0  #: While it is: since when.
    ordered_number: int = 0  #: Of the stimulus at which its newest change was ordered.
    cancel_requested: bool = False
    step: int = 0
    step_at_s: float = 0.0
    samples_per_s: float = 0.0  #: As last reported for the present allocation; 0 until then.
    rate_factor: float = 1.0  #: Observed over declared throughput.
    rate_at_s: float | None = None
    checkpoint_step: int = 0
    waiting_since_s: float = 0.0
    changed_s: float | None = None
    first_start_s: float | None = None
    attained_gpu_s: float = 0.0
    attained_at_s: float = 0.0
    held_s: float = 0.0  #: For how long it held GPUs, as of `attained_at_s`.
    note: list[float] = field(default_factory=list)  #: What a policy wrote on it.
    note_by: str = ""  #: The policy that did; empty for notes from before this was kept.
    backoff_until_s: float | None = None
    #: Until when an agent that was given up may still obey an order to start it.
    unsure_until_s: float = 0.0
    end_s: float | None = None
    failures: int = 0  #: Since it last saved further work.
    preemptions: int = 0
    migrations: int = 0
    restarts: int = 0  #: Changes of its allocation since its first start.
    #: What was learned of its speed (`stimuli.Curve`), and the step that it had then.
    curve: dict[str, Any] | None = None
    curve_step: int = 0
    curve_at_s: float = 0.0
    #: What was learned of how long it will be, if it declared no total (`stimuli.Length`), and the
    #: step that it had then.
    length: dict[str, Any] | None = None
    length_step: int = 0
    why: dict[str, Any] | None = None  #: The latest reason given for it.
    why_at_s: float = 0.0
    #: The newest values of what it reports of itself; last, since it is left out if there is none.
    metrics: dict[str, float] | None = None
    #: The deadline by the clock of who said it, in a cell whose time was ahead; left out, too.
    deadline_said_s: float | None = None
    #: Until `unsure_until_s`: node -> GPUs of the order to start it that may be obeyed; left out.
    unsure_gpus: dict[str, list[int]] | None = None

    @property
    def size(self) -> int:
        """GPUs it was told to run on."""
        return sum(map(len, self.allocation.values()))


@dataclass(slots=True)
class Node:
    """A node and the ledger of its GPUs."""

    id: str
    agent: str
    pool: str
    gpu_count: int
    gpu_type: str
    gpu_memory_mib: int
    speed_factor: float
    transfer_mib_per_s: float
    bootid: int
    state: NodeState = NodeState.ALIVE
    holder: list[str | None] = field(default_factory=list)  #: By GPU: the job that has it.
    epoch: list[int] = field(default_factory=list)  #: By GPU: the holder's epoch.
    claim: list[str | None] = field(default_factory=list)  #: By GPU: the job it is held for.
    lease_end_s: float | None = None  #: While UNKNOWN: when its workers have surely ended.
    loan: str | None = None
    loan_state: LoanState | None = None  #: None exactly when `loan` is None.
    loan_since_s: float = 0.0
    due_s: float | None = None  #: While going back: when its owner is expected to need it.
    returned_s: float | None = None
    said_s: float = 0.0  #: When its newest birth was said, with `bootid`.


@dataclass(slots=True)
class Pool:
    """A set of like nodes under one owner."""

    id: str
    kind: str
    nodes: list[str] = field(default_factory=list)  #: Sorted.


@dataclass(slots=True)
class Lender:
    """An owner with a tide: an inference pool, or an edge node."""

    id: str
    gpus_needed: float = 0.0
    served: float = 0.0  #: GPUs of those needed that it has.
    at_s: float | None = None
    slot: int = -1  #: Number of the newest slot since the Unix epoch.
    history: list[float | None] = field(default_factory=list)  #: Peaks by slot, oldest first.
    bootid: int = -1
    shortfall_gpu_s: float = 0.0  #: Of its present boot.
    source: str = ""  #: Whose report was taken last, with `bootid`, this number and this time.
    sequence: int = -1
    said_s: float = 0.0


@dataclass(slots=True)
class OpenCommand:
    """A command that awaits its acknowledgement."""

    id: str
    kind: str
    agent: str
    subject: str
    data: dict[str, Any]
    expires_s: float
    sent_s: float
    state: CommandState = CommandState.ISSUED
    tries: int = 1


@dataclass(slots=True)
class Totals:
    """Sums since the cell began."""

    jobs_submitted: int = 0
    jobs_completed: int = 0
    jobs_failed: int = 0
    jobs_cancelled: int = 0
    jobs_declined: int = 0  #: Refused for good by a policy; they count as failed too.
    submissions_refused: int = 0
    jct_s: float = 0.0  #: Over completed jobs.
    queueing_s: float = 0.0  #: Submission to first start, over started jobs.
    jobs_started: int = 0
    deadlines_total: int = 0
    deadlines_met: int = 0
    loans_granted: int = 0
    loans_reclaimed: int = 0
    reclaims_late: int = 0
    inference_shortfall_gpu_s: float = 0.0
    migrations: int = 0
    preemptions: int = 0
    scale_outs: int = 0
    scale_ins: int = 0
    failures: int = 0
    commands: int = 0
    claims: int = 0  #: Set, to be carried out or given up.
    claims_timed_out: int = 0  #: Given up on agents that did not answer.
    policy_failures: int = 0
    strays: int = 0
    gpu_s: float = 0.0  #: GPUs of nodes in contact, over time.
    training_gpu_s: float = 0.0  #: GPUs that jobs hold, over time.
    serving_gpu_s: float = 0.0  #: GPUs that owners need and have, over time.
    loaned_gpu_s: float = 0.0  #: GPUs on loan, over time.


@dataclass(slots=True)
class Leader:
    """Who decides, by what."""

    name: str = ""
    epoch: int = 0
    policy: str = ""
    settings: dict[str, float] = field(default_factory=dict)


def _about(command: OpenCommand) -> tuple[str, str]:
    return command.kind, command.agent if command.kind == "Rebirth" else command.subject


@dataclass(slots=True)
class ClusterState:
    """All that decisions depend on."""

    cell: str = "default"
    number: int = 0  #: Stimuli handled.
    now_s: float = 0.0
    dirty: bool = False  #: Something changed that a policy should see.
    next_cycle_s: float = 0.0
    loans: int = 0  #: Loans ever requested; names the next.
    leader: Leader = field(default_factory=Leader)
    jobs: dict[str, Job] = field(default_factory=dict)  #: By submission.
    #: In no order that decides anything: sorting at each birth would cost a fleet's square.
    nodes: dict[str, Node] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    lenders: dict[str, Lender] = field(default_factory=dict)
    commands: dict[str, OpenCommand] = field(default_factory=dict)
    claimants: list[str] = field(default_factory=list)  #: Jobs with a target, oldest first.
    starts_deferred: bool = False  #: Gangs that could start wait for the next turn.
    stray_nodes: list[str] = field(default_factory=list)  #: Nodes with GPUs no job accounts for.
    on_loan: list[str] = field(default_factory=list)  #: Nodes with a loan, sorted.
    last_cycle_s: float = 0.0
    cycle_number: int = 0  #: Of the stimulus at which the policy was asked last.
    standing: Standing = field(default_factory=Standing)  #: By people's requests.
    totals: Totals = field(default_factory=Totals)
    gpus_alive: int = 0  #: Kept beside `nodes` so that time passes in constant cost.
    gpus_held: int = 0
    gpus_serving: float = 0.0
    gpus_loaned: int = 0
    #: Open commands by kind and subject, of a Rebirth by agent; in the order of issue. JSON leaves
    #: out names with an underscore.
    _open: dict[tuple[str, str], dict[str, None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    #: Nodes whose loan begins or ends: all others that are on loan are lent, and stay so.
    _changing: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)

    #: Nodes with GPUs of orders to start that may be obeyed: jobs (`Job.unsure_gpus`).
    _unsure: dict[str, dict[str, None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    #: By tenant, the bytes that its jobs take here.
    _taken: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the open commands, what may begin, loans that begin or end, and tenants' bytes."""
        for command in self.commands.values():
            self._open.setdefault(_about(command), {})[command.id] = None
        for name in self.on_loan:
            if name in self.nodes:  # a copy without its tables has none
                self.note_loan(self.nodes[name])
        for job in self.jobs.values():
            add(self._taken, job.tenant, bytes_of(job.program))
            if job.unsure_gpus:
                self.note_unsure(job, job.unsure_gpus)

    def keep(self, job: Job) -> None:
        """Keep a job until it is forgotten."""
        self.jobs[job.id] = job
        add(self._taken, job.tenant, bytes_of(job.program))

    def forget(self, job: Job) -> None:
        """Let go of a job."""
        self.note_unsure(job, None)
        add(self._taken, job.tenant, -bytes_of(job.program))
        del self.jobs[job.id]

    def bytes_taken(self, tenant: str) -> int:
        """Say how many bytes a tenant's jobs take."""
        return self._taken.get(tenant, 0)

    def note_unsure(self, job: Job, gpus: dict[str, list[int]] | None) -> None:
        """Note on which GPUs an order to start a job may be obeyed."""
        for name in job.unsure_gpus or ():
            self._unsure.get(name, {}).pop(job.id, None)
            if not self._unsure.get(name, True):
                del self._unsure[name]
        job.unsure_gpus = gpus
        for name in gpus or ():
            self._unsure.setdefault(name, {})[job.id] = None

    def unsure_on(self, node: str) -> list[Job]:
        """List the jobs of which an order to start may be obeyed on a node, by id."""
        return [self.jobs[name] for name in sorted(self._unsure.get(node, ()))]

    def note_loan(self, node: Node) -> None:
        """Note that a node's loan may be in another state."""
        if node.loan_state in (None, LoanState.LENT):
            self._changing.pop(node.id, None)
        else:
            self._changing[node.id] = None

    def changing_loans(self, among: Set[str] | None = None) -> list[Node]:
        """List the nodes whose loan begins or ends, all or `among` some, by id."""
        names = self._changing if among is None else among & self._changing.keys()
        return [self.nodes[name] for name in sorted(names)]

    def open(self, command: OpenCommand) -> None:
        """Keep a command until it is closed."""
        self.commands[command.id] = command
        self._open.setdefault(_about(command), {})[command.id] = None

    def close(self, command: OpenCommand) -> None:
        """Let go of a command."""
        del self.commands[command.id]
        left = self._open.pop(_about(command))
        del left[command.id]
        if left:
            self._open[_about(command)] = left

    def opened(self, kind: str, subject: str) -> list[OpenCommand]:
        """List the open commands of a kind about a subject, of Rebirths those to an agent."""
        return [self.commands[name] for name in self._open.get((kind, subject), ())]

    def is_open(self, kind: str, subject: str) -> bool:
        """Whether there is such a command."""
        return (kind, subject) in self._open

    def advance(self, now_s: float) -> None:
        """Let time pass: add to the integrals."""
        elapsed_s = now_s - self.now_s
        if elapsed_s > 0 and self.number:
            totals = self.totals
            totals.gpu_s += self.gpus_alive * elapsed_s
            totals.training_gpu_s += self.gpus_held * elapsed_s
            totals.serving_gpu_s += self.gpus_serving * elapsed_s
            totals.loaned_gpu_s += self.gpus_loaned * elapsed_s
        self.now_s = max(self.now_s, now_s)


def slot_s(state: ClusterState) -> float:
    """How long the slots are in which owners' demand is remembered."""
    return state.leader.settings.get("load_slot_s", SLOT_S)


def policy_name(state: ClusterState) -> str:
    """Name the policy in force, without its options."""
    return state.leader.policy.partition(":")[0]


def site_id(pool: str, agent: str) -> str:
    """Name the nodes that one of several agents has in a pool.

    No pool's own name has an @, so that this is never another pool's.
    """
    return f"{pool}@{agent}"


def command_order(command: str) -> tuple[int, int]:
    """Sort key of command ids, `CELL-LEADER-ENTRY-INDEX`: the order in which they were issued."""
    _, entry, index = command.rsplit("-", 2)
    return int(entry), int(index)
