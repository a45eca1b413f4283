"""What the API answers, as models: fields are only ever added.

Rows and answers that a terminal shows too are those of `explain`. Moments are in seconds since the
Unix epoch, in the log's own time.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from explain.cell import PolicyInForce, QuotaRow
from explain.documents import ReasonDocument, WhyDocument
from explain.loan_history import PastLoan
from explain.overview import Deadlines, Gpus, PoolRow
from explain.rows import JobRow, LoanRow, LoanTotals, NodeRow
from explain.spans import Stay
from scheduler.core.standing import Accepted, Freeze, Pause
from schemas.logs import LogChunk


class ProblemDocument(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What is wrong, and what to do next.")
    parameter: str | None = Field(
        default=None, description="The parameter or field that is wrong, such as `args.node`."
    )
    request: str | None = Field(default=None, description="The id of the request refused.")
    entry: int | None = Field(default=None, description="The entry of the journal that refuses it.")


class Framed(BaseModel):
    """What each answer about a state says of it."""

    cell: str
    entry: int | None = Field(description="The last entry folded in; null before the first.")
    now_s: float
    origin_s: float = Field(description="When the log began.")


class Allowed(BaseModel):
    """How much a subject may ask for."""

    reads_per_s: float
    reads_burst: float
    writes_per_s: float
    writes_burst: float
    seeks_at_once: int
    streams: int
    waits: int = Field(description="Requests whose answers wait for the scheduler, at a time.")


class Me(BaseModel):
    """Who asks."""

    name: str
    role: str
    tenant: str | None
    via: str
    limits: Allowed
    verbs: list[str] = Field(
        description="What it may ask for; a tenant of its own jobs alone. Empty where nobody can."
    )
    signs_out: bool = Field(description="Whether it has a session that POST /logout ends.")


class Overview(Framed):
    """A cell at a glance."""

    leader: str
    leader_epoch: int
    policy: str
    jobs: dict[str, int] = Field(description="By state, how many.")
    nodes: dict[str, int] = Field(description="By state, how many.")
    gpus: Gpus
    pools: list[PoolRow]
    loans: LoanTotals
    deadlines: Deadlines
    totals: dict[str, float] = Field(description="Sums since the cell began.")


class TideRow(BaseModel):
    """The tide at a moment, in GPUs."""

    at_s: float
    need: float = Field(description="What owners need by their newest reports.")
    owned: int = Field(description="Of owners' nodes in contact, what is theirs now.")
    lent: int
    unused: int = Field(description="Of what is lent, what no job has.")
    used: int = Field(description="What jobs hold, on loan or not.")
    queue: int = Field(description="Jobs that wait.")


class ForeseenRow(BaseModel):
    """What an owner is forecast to need in a slot of time, in GPUs."""

    at_s: float = Field(description="When the slot begins.")
    need: float
    need_high: float = Field(description="With what the policy keeps beside the forecast.")


class Foreseen(BaseModel):
    """What an owner is forecast to need, as far as the policy looks."""

    lender: str
    rows: list[ForeseenRow]


class TideAnswer(Framed):
    """The tide over time: at the end of each five minutes, and now."""

    slot_s: float
    complete: bool = Field(description="False while the index is being built.")
    rows: list[TideRow]
    forecast: list[Foreseen] | None = Field(
        default=None,
        description="If it was asked for: the policy's own forecast of each lender whose report is "
        "fresh; empty under one that does not lend. Of now it may be half a minute old.",
    )


class MomentRow(BaseModel):
    """Something that whoever looks back looks for."""

    entry: int
    at_s: float
    kind: str = Field(
        description="`lent`, `reclaim`, `returned`, `late`, `lost`, `leader`, `drain`, `pause`, or "
        "`people`: somebody asked for something other than a new job."
    )
    about: str = Field(description="The node, the leader or the verb; or empty.")


class MomentsAnswer(Framed):
    """What whoever looks back looks for, and when entries were."""

    first: int = Field(description="The first entry that the log still has.")
    complete: bool = Field(
        description="False while the index is being built, or if some are left out."
    )
    moments: list[MomentRow] = Field(description="Ascending; of each kind the newest 500.")
    places: list[tuple[int, float]] = Field(
        description="Entries and when they were, ascending; between two, time is about straight."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyInWords(WhyDocument):
    """Why a job is as it is, and the same as a terminal shows it."""

    text: str


class Page(Framed):
    """A page of rows."""

    total: int = Field(description="Rows of all pages.")
    next: str | None = Field(description="The cursor of the next page; null after the last.")


class JobsPage(Page):
    """Jobs."""

    jobs: list[JobRow]


class SomeFields(Page):
    """Jobs, of which some fields were asked for."""

    jobs: list[dict[str, Any]]


class NodesPage(Page):
    """Nodes."""

    nodes: list[NodeRow]


class JobAnswer(Framed):
    """One job."""

    job: JobRow


class StoryEvent(BaseModel):
    """A fact of a job's life."""

    entry: int
    at_s: float
    kind: str
    fields: dict[str, Any]
    because: ReasonDocument | None
    reclaimed: list[str] = Field(description="Nodes whose owners called them back.")


class StoryAnswer(Framed):
    """What happened to a job."""

    job: str
    events: list[StoryEvent]


class LoansAnswer(Framed):
    """Nodes on loan, and how lending went so far."""

    loans: list[LoanRow]
    totals: LoanTotals


class LoanHistoryAnswer(Framed):
    """Every loan of the log, in the order in which they began."""

    loans: list[PastLoan]


class RulesAnswer(Framed):
    """What holds in a cell: what people asked for, and what is configured."""

    policy: PolicyInForce
    quotas: list[QuotaRow]
    pauses: dict[str, Pause] = Field(description="By what is paused: `starts`, `loans`.")
    freezes: dict[str, Freeze] = Field(
        description="By node or pool; of every lender by the empty name."
    )
    accepted: dict[str, Accepted] | None = Field(
        default=None, description="By node or agent, what may join besides what is listed."
    )


class StaysAnswer(Framed):
    """Where a job ran, when and how large."""

    job: str
    stays: list[Stay]


class CurvesAnswer(Framed):
    """What a job reported of itself over time, such as its loss."""

    job: str
    complete: bool = Field(description="False while the index is being built.")
    curves: dict[str, list[tuple[float, int, float]]] = Field(
        description="By name: moment, step and value of each point. Steps fall where it began "
        "again from a checkpoint."
    )


class PiecesAnswer(BaseModel):
    """Pieces of what a worker wrote."""

    pieces: list[LogChunk]
    next: int = Field(description="As `after`: where to go on.")


class Decided(BaseModel):
    """A decision, in short; `entries/N` has all of it."""

    entry: int
    at_s: float
    policy: str
    stimulus: str
    source: str
    subject: str | None
    facts: dict[str, int] = Field(description="By kind, how many.")
    commands: int
    reasons: list[ReasonDocument] = Field(description="Of those asked for, the first 50.")
    reasons_total: int
    error: str | None


class DecisionsPage(Framed):
    """Decisions, newest first."""

    decisions: list[Decided]
    next: str | None


class EntryAnswer(BaseModel):
    """An entry of the journal."""

    cell: str
    entry: int
    at_s: float
    policy: str
    stimulus: dict[str, Any]
    decision: dict[str, Any]
    digest: str


class Changed(BaseModel):
    """A job or node that two states differ in."""

    name: str
    change: str = Field(description="`added`, `removed` or `changed`.")
    fields: dict[str, list[Any]] = Field(description="By field that changed: before, after.")


class DiffAnswer(BaseModel):
    """What changed from one entry to another."""

    cell: str
    entry: int
    vs: int
    entry_s: float
    vs_s: float
    jobs: list[Changed]
    jobs_total: int
    nodes: list[Changed]
    nodes_total: int
    totals: dict[str, float] = Field(description="By sum, how much was added.")


class Letter(BaseModel):
    """A message that could not be taken."""

    topic: str
    offset: int
    at_s: float
    key: str
    field: str
    reason: str
    size: int
    text: str = Field(description="Its first 4 KiB; what is no UTF-8 is escaped.")


class LettersAnswer(Framed):
    """Dead letters, newest first."""

    letters: list[Letter]
    next: int | None = Field(description="As `before`, with `topic`: the next page.")
