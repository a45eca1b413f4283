"""What the API answers of the fleet: columns, agents, leaders, reclaims, the proof.

Fields are only ever added. Moments are in seconds since the Unix epoch, in the log's own time.
"""

from typing import Literal

from pydantic import BaseModel, Field

from explain.documents import ReasonDocument
from gateway.models import Framed, Page


class FleetPool(BaseModel):
    """A pool, by its place in the list."""

    pool: str
    kind: str = Field(description="`training`, `inference` or `edge`.")


class FleetNodes(BaseModel):
    """All nodes, a column for each thing said of them; by pool, then by name."""

    name: list[str]
    pool: list[int] = Field(description="Place in `pools`.")
    gpus: list[int] = Field(description="How many it has.")
    state: list[str] = Field(description="`alive`, `unknown` (out of contact) or `dead`.")
    loan: list[str | None] = Field(description="State of its loan; null: it is not on loan.")
    due_s: list[float | None] = Field(
        description="When its owner expects it back; null: it was not called back."
    )
    cordoned: list[bool]
    draining: list[bool]
    used: list[float | None] = Field(
        description="Mean of its GPUs' utilisation when last measured, 0 to 1; only of now."
    )


class FleetJob(BaseModel):
    """A job that has a GPU, by its place in the list."""

    job: str
    tenant: str


class FleetAnswer(Framed):
    """All nodes of a cell and who is on each GPU, as columns: for a drawing of ten thousand."""

    pools: list[FleetPool]
    nodes: FleetNodes
    jobs: list[FleetJob]
    gpus: list[int] = Field(
        description="Of all GPUs, in the order of the nodes: place in `jobs`; -1: no job has it."
    )


class RefusedCommand(BaseModel):
    """A command that an agent did not obey."""

    agent: str
    kind: str = Field(description="Of the command, such as `StartGang`.")
    subject: str = Field(description="The job or node that it was about.")
    at_s: float = Field(
        description="When it was refused or given up; of one that is open: when it was sent last."
    )
    tries: int = Field(description="Of one that is open: how often it was sent; else 0.")
    reason: str = Field(description="As the agent said it; empty: it did not answer.")
    is_open: bool = Field(description="It may still be answered.")
    text: str = Field(description="All of it in words.")


class AgentRow(BaseModel):
    """Who speaks for some nodes."""

    agent: str
    nodes: list[str]
    pools: list[str]
    state: str = Field(
        description="`alive`, `unknown` if a node of it is out of contact, `dead` if all are."
    )
    boot: int = Field(description="Number of its newest start.")
    born_s: float = Field(description="When it said so.")
    silent_since_s: float | None = Field(
        description="When the scheduler gave up hearing from it; null: it is in contact, or what "
        "was then is not in the log any more."
    )
    lease_end_s: float | None = Field(
        description="While it is out of contact: when its workers have surely ended."
    )
    heard_s: float | None = Field(
        description="When its newest measurement was stored; null: none is kept, or another "
        "moment than now was asked for."
    )
    delay_s: float | None = Field(
        description="From when it said that, by its own clock, until it was stored: the way, and "
        "what its clock is ahead or behind."
    )
    commands: int = Field(description="Sent to it and not acknowledged yet.")
    refusals: list[RefusedCommand] | None = Field(
        default=None,
        description="Commands of the last hour that it refused or left unanswered, the newest of "
        "each kind and reason; null while the index is being built.",
    )


class AgentsPage(Page):
    """Agents, by name."""

    agents: list[AgentRow]


class LeaderRow(BaseModel):
    """A scheduler that began to lead, or the same with another policy or other settings."""

    entry: int
    at_s: float
    leader: str
    leader_epoch: int = Field(description="Higher with each: commands of a lower one are refused.")
    policy: str
    another: bool = Field(description="Whether it is another scheduler than the one before.")


class LeadersAnswer(Framed):
    """Who led, newest first."""

    leaders: list[LeaderRow]
    next: str | None = Field(description="The cursor of the next page; null after the last.")


class ReclaimRow(BaseModel):
    """A node that goes back to its owner, or went."""

    node: str
    pool: str | None = Field(description="Null: the state does not know the node any more.")
    gpus: int | None
    state: Literal["going", "back", "lost"] = Field(description="`lost`: it died on loan.")
    called_entry: int = Field(description="Where it was called back.")
    called_s: float
    due_s: float = Field(description="When its owner is expected to need it.")
    saved_s: float | None = Field(description="When the last job that left it had saved its work.")
    empty_s: float | None = Field(description="When its agent was told to hand it back.")
    end_s: float | None = Field(
        description="When its owner had it, or it was lost; null: neither by this moment."
    )
    end_entry: int | None
    late_s: float = Field(description="How much later than due, so far if it still goes.")
    jobs: int = Field(description="How many jobs left it for that.")
    because: ReasonDocument | None


class ReclaimsPage(Framed):
    """Reclaims, newest first."""

    reclaims: list[ReclaimRow]
    next: str | None


class VerifiedAnswer(BaseModel):
    """Whether the log's decisions, decided again, are the recorded ones, byte for byte."""

    cell: str
    state: Literal["none", "running", "identical", "differs", "failed"] = Field(
        description="`none`: nobody asked before, and it begins now. `running`: all so far are "
        "identical. `identical`: so were all that there were when it looked last, and it goes on "
        "with what is new. `failed`: it could not go on; `problem` says why."
    )
    entries: int = Field(description="Decided again so far, from the first the log has.")
    of: int = Field(description="That the log has.")
    first: int = Field(description="The first of them; later than 0 where the log begins later.")
    first_difference: str | None
    problem: str | None
