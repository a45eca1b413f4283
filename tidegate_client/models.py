"""What the API answers. Written by `python -m gateway.client_models`; do not edit.

Moments are in seconds since the Unix epoch, in the log's own time.
"""

from __future__ import annotations

from typing import Any

from tidegate_client.parts import (
    Accepted,
    Answered,
    Cordon,
    Deadlines,
    Drain,
    Freeze,
    Gpus,
    JobRow,
    Kept,
    Length,
    LineDocument,
    LoanRow,
    LoanTotals,
    LogChunk,
    OutputDocument,
    PastLoan,
    Pause,
    PolicyInForce,
    PoolRow,
    QuotaRow,
    ReasonDocument,
    ReclaimDocument,
    RefusedCommand,
    Speeds,
    Stay,
    Stored,
    WaitDocument,
    WaitEndDocument,
)


class Act(Answered):
    """What somebody asked for, and what came of it."""

    about: str
    at_s: float
    entry: int
    key_id: str
    reason: str
    refused_because: str
    request: str
    result: str
    role: str
    subject: str
    tenant: str | None = None
    verb: str
    via: str


class AgentRow(Answered):
    """Who speaks for some nodes."""

    agent: str
    boot: int
    born_s: float
    commands: int
    delay_s: float | None = None
    heard_s: float | None = None
    lease_end_s: float | None = None
    nodes: list[str]
    pools: list[str]
    refusals: list[RefusedCommand] | None = None
    silent_since_s: float | None = None
    state: str


class CurvesAnswer(Answered):
    """What a job reported of itself over time, such as its loss."""

    cell: str
    complete: bool
    curves: dict[str, list[tuple[float, int, float]]]
    entry: int | None = None
    job: str
    now_s: float
    origin_s: float


class Decided(Answered):
    """A decision, in short; `entries/N` has all of it."""

    at_s: float
    commands: int
    entry: int
    error: str | None = None
    facts: dict[str, int]
    policy: str
    reasons: list[ReasonDocument]
    reasons_total: int
    source: str
    stimulus: str
    subject: str | None = None


class JobAnswer(Answered):
    """One job."""

    cell: str
    entry: int | None = None
    job: JobRow
    now_s: float
    origin_s: float


class LoanHistoryAnswer(Answered):
    """Every loan of the log, in the order in which they began."""

    cell: str
    entry: int | None = None
    loans: list[PastLoan]
    now_s: float
    origin_s: float


class LoansAnswer(Answered):
    """Nodes on loan, and how lending went so far."""

    cell: str
    entry: int | None = None
    loans: list[LoanRow]
    now_s: float
    origin_s: float
    totals: LoanTotals


class NodeRow(Answered):
    """A node as the state has it."""

    agent: str
    claims: list[str | None]
    cordon: Cordon | None = None
    drain: Drain | None = None
    due_s: float | None = None
    freeze: Freeze | None = None
    gpu_count: int
    gpu_memory_mib: int = 0
    gpu_memory_used: float | None = None
    gpu_type: str
    gpu_utilisation: float | None = None
    holders: list[str | None]
    kind: str = "training"
    lease_end_s: float | None = None
    loan: str | None = None
    loan_state: str | None = None
    node: str
    pool: str
    state: str


class Overview(Answered):
    """A cell at a glance."""

    cell: str
    deadlines: Deadlines
    entry: int | None = None
    gpus: Gpus
    jobs: dict[str, int]
    leader: str
    leader_epoch: int
    loans: LoanTotals
    nodes: dict[str, int]
    now_s: float
    origin_s: float
    policy: str
    pools: list[PoolRow]
    totals: dict[str, float]


class PiecesAnswer(Answered):
    """Pieces of what a worker wrote."""

    next: int
    pieces: list[LogChunk]


class RulesAnswer(Answered):
    """What holds in a cell: what people asked for, and what is configured."""

    accepted: dict[str, Accepted] | None = None
    cell: str
    entry: int | None = None
    freezes: dict[str, Freeze]
    now_s: float
    origin_s: float
    pauses: dict[str, Pause]
    policy: PolicyInForce
    quotas: list[QuotaRow]


class StaysAnswer(Answered):
    """Where a job ran, when and how large."""

    cell: str
    entry: int | None = None
    job: str
    now_s: float
    origin_s: float
    stays: list[Stay]


class WhyInWords(Answered):
    """Why a job is as it is, and the same as a terminal shows it."""

    allocation: dict[str, list[int]]
    asked: list[str]
    because: ReasonDocument | None = None
    checkpoint: Stored | None = None
    claims: dict[str, list[int]] | None = None
    curve: Speeds | None = None
    ended: list[str] | None = None
    ends_s: float | None = None
    failure: str | None = None
    gpus: int
    history: list[LineDocument]
    job: str
    left_s: float | None = None
    length: Length | None = None
    metrics: dict[str, float] | None = None
    needs_s: float | None = None
    now_s: float
    origin_s: float
    output: OutputDocument | None = None
    outputs: Kept | None = None
    pool: str | None = None
    reasons: list[ReasonDocument]
    reclaims: list[ReclaimDocument]
    since_s: float
    slack_s: float | None = None
    spec: dict[str, Any]
    state: str
    step: int | None = None
    text: str
    wait_end: WaitEndDocument | None = None
    waits: list[WaitDocument]
