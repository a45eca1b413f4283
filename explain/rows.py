"""Jobs, nodes and loans of a cell as rows of plain data, and what is said of them in a word or two.

Moments in seconds since the Unix epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from explain.answer import Reading
from explain.ends import End, Kept
from explain.measured import Measured
from explain.phrases import SHORT, SINCE
from explain.progress import Length, length_of, outlook, share_done
from explain.shares import few
from explain.standing import NO_NODE, lacks_nodes, waits_for_nodes
from explain.wording import Wording, reason_from
from scheduler.core.freezes import freeze_of
from scheduler.core.standing import Cordon, Drain, Freeze, Hold, Recall, SetSize
from scheduler.core.state import ClusterState, Job, Node
from scheduler.core.transitions import TERMINAL, JobState
from scheduler.core.turn import reason_to_dict
from scheduler.policies.interface import Reason


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the state has it, with what can be said of its end."""

    job: str
    tenant: str
    model: str
    state: str
    pool: str | None
    gpus: int
    gpus_min: int
    gpus_max: int
    allocation: Mapping[str, Sequence[int]]  #: By node: its GPUs.
    step: int
    total_steps: int | None
    progress: float  #: The part of its steps that it took, 0 to 1.
    length: Length
    samples_per_s: float
    left_s: float | None
    needs_s: float | None
    ends_s: float | None
    submit_s: float
    first_start_s: float | None
    end_s: float | None
    deadline_s: float | None
    slack_s: float | None
    priority: int
    preemptions: int
    migrations: int
    failures: int
    hold: Hold | None  #: Who keeps it from its start, and why.
    set_size: SetSize | None  #: Who chose its size, and why; None: the policy does.
    why: Mapping[str, Any] | None  #: The newest reason, as the journal has it.
    why_in_words: str | None
    why_in_short: str  #: Of a job that failed, why it did; empty if nobody gave a reason.
    waited_s: float | None  #: For its first start, or, if it waits now, since it does.
    # What a gateway of an earlier release does not say:
    start_epoch: int = 0  #: Of the newest start of its workers, whose log it names.
    #: In the policy's own order of those that wait, from 1, if that was asked for; None: it waits
    #: for something else than its turn, or the policy keeps no order (`explain.turns`).
    position: int | None = None
    #: The newest values of what it reports of itself, such as its loss; None: it reports nothing.
    metrics: Mapping[str, float] | None = None
    #: Of one that is over, what was kept of what it leaves behind, and where.
    outputs: Kept | None = None


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs of a cell at a moment; the log began at `origin_s`."""

    now_s: float
    origin_s: float
    jobs: Sequence[JobRow]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as the state has it."""

    node: str
    pool: str
    agent: str
    state: str
    gpu_type: str
    gpu_count: int
    holders: Sequence[str | None]  #: By GPU: the job on it.
    claims: Sequence[str | None]  #: By GPU: the job that it is held for.
    gpu_utilisation: float | None  #: Mean of its GPUs, 0 to 1, in its last measurement.
    loan: str | None
    loan_state: str | None
    due_s: float | None
    lease_end_s: float | None
    cordon: Cordon | None  #: Who closed it to new work, and why.
    drain: Drain | None  #: Who has it emptied, and by when.
    freeze: Freeze | None  #: Who keeps it from being borrowed, and until when.
    # What a gateway of an earlier release does not say:
    kind: str = "training"  #: Of its pool: `training`, `inference` or `edge`.
    gpu_memory_mib: int = 0  #: Of each GPU; 0: not known.
    gpu_memory_used: float | None = None  #: The part of it in use, 0 to 1, when last measured.


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of a cell at a moment; the log began at `origin_s`."""

    now_s: float
    origin_s: float
    nodes: Sequence[NodeRow]


@dataclass(frozen=True, slots=True)
class LoanRow:
    """A node on loan."""

    node: str
    pool: str
    loan: str | None
    state: str | None
    since_s: float
    due_s: float | None  #: None: its owner has not called it back.
    gpus: int
    gpus_used: int
    recall: Recall | None  #: Who called it back, if not its owner.


@dataclass(frozen=True, slots=True)
class LoanTotals:
    """How lending went so far."""

    loans_granted: int
    loans_reclaimed: int
    reclaims_late: int
    loaned_gpu_s: float
    inference_shortfall_gpu_s: float


@dataclass(frozen=True, slots=True)
class Loans:
    """Nodes on loan at a moment; the log began at `origin_s`."""

    now_s: float
    origin_s: float
    loans: Sequence[LoanRow]
    totals: LoanTotals
    #: By node or pool, of every lender by the empty name: who keeps them from being borrowed.
    freezes: Mapping[str, Freeze]


def jobs_of(reading: Reading, state: str | None, *, every: bool) -> list[Job]:
    """Choose jobs: those in a state; without one those that go on, or every one."""
    jobs = reading.state.jobs.values()
    if state is not None:
        return [job for job in jobs if job.state == state]
    return [job for job in jobs if every or job.state not in TERMINAL]


def jobs_table(
    reading: Reading,
    jobs: Sequence[Job],
    ends: Mapping[str, End],
    positions: Mapping[str, int] | None = None,
) -> Jobs:
    """Give jobs as rows.

    Args:
        reading: Whose jobs they are.
        jobs: Which.
        ends: Of some that are over, what the journal says of that.
        positions: Of some that wait, when their turn comes.
    """
    lacking = lacks_nodes(reading.state)
    rows = [
        _job_row(
            job,
            reading,
            ends.get(job.id, End()),
            positions or {},
            _reason(job, reading.state, lacking=lacking),
        )
        for job in jobs
    ]
    return Jobs(reading.state.now_s, reading.origin_s, rows)


def _job_row(
    job: Job,
    reading: Reading,
    end: End,
    positions: Mapping[str, int],
    why: Mapping[str, Any] | None,
) -> JobRow:
    now_s = reading.state.now_s
    ahead = outlook(job, now_s)
    return JobRow(
        job=job.id,
        tenant=job.tenant,
        model=job.model,
        state=job.state.value,
        pool=job.pool,
        gpus=job.size,
        gpus_min=job.gpus_min,
        gpus_max=job.gpus_max,
        allocation=job.allocation,
        step=job.step,
        total_steps=job.total_steps,
        progress=share_done(job, now_s),
        length=length_of(job),
        samples_per_s=job.samples_per_s,
        left_s=ahead.left_s,
        needs_s=ahead.needs_s,
        ends_s=ahead.ends_s,
        submit_s=job.submit_s,
        first_start_s=job.first_start_s,
        end_s=job.end_s,
        deadline_s=job.deadline_s,
        slack_s=ahead.slack_s,
        priority=job.priority,
        preemptions=job.preemptions,
        migrations=job.migrations,
        failures=job.failures,
        start_epoch=job.start_epoch,
        position=positions.get(job.id),
        metrics=job.metrics,
        hold=reading.state.standing.holds.get(job.id),
        set_size=reading.state.standing.sizes.get(job.id),
        why=why,
        why_in_words=end.failure or _sentence(job, why, Wording(reading.origin_s)) or None,
        why_in_short=end.failure or _short(job, why),
        waited_s=waited_s(job, now_s),
        outputs=end.outputs,
    )


def _reason(job: Job, state: ClusterState, *, lacking: bool) -> Mapping[str, Any] | None:
    """Give the newest reason of a job; of one that waits while no node is in contact, that."""
    if lacking and waits_for_nodes(state, job):
        return reason_to_dict(Reason(job.id, "waits", NO_NODE))
    return job.why


def _sentence(job: Job, why: Mapping[str, Any] | None, wording: Wording) -> str:
    if why is None or job.state in TERMINAL:
        return ""
    return wording.sentence(reason_from(why))


def _short(job: Job, why: Mapping[str, Any] | None) -> str:
    """Say in short why an unfinished job is as it is; empty if nobody gave a reason."""
    if why is None or job.state in TERMINAL:
        return ""
    rule, needs = str(why["rule"]), why["needs"]
    said = SHORT.get(f"{rule} {why['verb']}") or SHORT.get(rule, rule)
    if job.state is JobState.RUNNING and job.target is None:
        said = SINCE.get(said, said)
    # A need named `gpus` is of a whole site: "7 of 22" would read as the job's own.
    if job.state is JobState.QUEUED and needs and "gpus" in needs[0][0] and needs[0][0] != "gpus":
        said += f", {few(needs[0][1])} of {few(needs[0][2])}"
    return said


def waited_s(job: Job, now_s: float) -> float | None:
    """Give how long it waited for its first start, or, if it waits now, since it does."""
    if job.state is JobState.QUEUED:
        return now_s - job.waiting_since_s
    return None if job.first_start_s is None else job.first_start_s - job.submit_s


def nodes_of(reading: Reading) -> list[Node]:
    """Give all nodes, by pool."""
    return sorted(reading.state.nodes.values(), key=lambda node: (node.pool, node.id))


def nodes_table(reading: Reading, nodes: Sequence[Node], used: Mapping[str, Measured]) -> Nodes:
    """Give nodes as rows; `used` has the last measurement of some."""
    rows = [
        NodeRow(
            node=node.id,
            pool=node.pool,
            agent=node.agent,
            state=node.state.value,
            gpu_type=node.gpu_type,
            gpu_count=node.gpu_count,
            holders=node.holder,
            claims=node.claim,
            kind=reading.state.pools[node.pool].kind,
            gpu_memory_mib=node.gpu_memory_mib,
            gpu_utilisation=used[node.id].busy if node.id in used else None,
            gpu_memory_used=_memory(node, used.get(node.id)),
            loan=node.loan,
            loan_state=None if node.loan_state is None else node.loan_state.value,
            due_s=node.due_s,
            lease_end_s=node.lease_end_s,
            cordon=reading.state.standing.cordons.get(node.id),
            drain=reading.state.standing.drains.get(node.id),
            freeze=freeze_of(reading.state, node),
        )
        for node in nodes
    ]
    return Nodes(reading.state.now_s, reading.origin_s, rows)


def _memory(node: Node, used: Measured | None) -> float | None:
    if used is None or used.memory_mib is None or not node.gpu_memory_mib:
        return None
    return min(1.0, used.memory_mib / node.gpu_memory_mib)


def loans_table(reading: Reading) -> Loans:
    """Give the nodes on loan as rows, and how lending went so far."""
    state = reading.state
    rows = [
        LoanRow(
            node=node.id,
            pool=node.pool,
            loan=node.loan,
            state=node.loan_state,
            since_s=node.loan_since_s,
            due_s=node.due_s,
            gpus=node.gpu_count,
            gpus_used=sum(holder is not None for holder in node.holder),
            recall=state.standing.recalls.get(node.id),
        )
        for node in (state.nodes[name] for name in state.on_loan)
    ]
    so_far = LoanTotals(**{one.name: getattr(state.totals, one.name) for one in fields(LoanTotals)})
    return Loans(state.now_s, reading.origin_s, rows, so_far, state.standing.freezes)


def tenants(node: NodeRow) -> tuple[str, str]:
    """Say which jobs are on a node, and for which others it is held; each may be empty."""
    held: dict[str, int] = {}
    for holder in node.holders:
        if holder is not None:
            held[holder] = held.get(holder, 0) + 1
    claims = sorted({claim for claim in node.claims if claim is not None and claim not in held})
    on_it = ", ".join(f"{job} ×{count}" for job, count in held.items())
    return on_it, f"held for {', '.join(claims)}" if claims else ""
