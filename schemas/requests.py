"""What people ask for: requests, each with who asks, why, and until when it is worth taking.

A gateway authenticates people, and signs a request's exact bytes; the scheduler believes what it
says of them (`subject`, `role`, `tenant`) as far as it trusts the gateway's key. On a log that is a
file nothing is signed: whoever can write the file is its owner.

A verb is one model: its name is the literal of `verb`, the other fields are its arguments. One that
is not known to this release, or an argument that is not, is refused: to leave out a part of what a
person asks for would be to do something else.
"""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field, model_validator

from schemas.events import JobSubmitted, PoolKind, Priority, SpeedFactor
from schemas.journal import PolicyLine
from schemas.values import (
    MAX_GPUS_PER_NODE,
    GpuCount,
    LogBytes,
    LogPosition,
    MomentS,
    Name,
    Note,
    Rank,
    Strict,
)

#: What people may be; each role may do what `scheduler.core.rights` says.
Role = Literal["viewer", "tenant", "operator", "admin"]
#: Nobody may ask for something that long before it is to be done, in seconds. So long at most a
#: scheduler remembers which requests it has taken.
LIFE_MAX_S = 7 * 86_400.0

#: What of a cell can be paused: starts (and growth), loans, or both.
Paused = Literal["starts", "loans", "all"]

Subject = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+/-]{0,199}$",
        description="A person or a robot, as the gateway knows it: a name or an address.",
    ),
]


class Verb(Strict):
    """What is asked for. Other than in an event, a field that is not known is refused."""

    model_config = ConfigDict(extra="forbid")

    verb: str


class CordonNode(Verb):
    """No new work on this node; what runs there goes on."""

    verb: Literal["node.cordon"] = "node.cordon"
    node: Name


class UncordonNode(Verb):
    """The node takes work again; a drain of it is called off."""

    verb: Literal["node.uncordon"] = "node.uncordon"
    node: Name


class DrainNode(Verb):
    """No new work on this node, and what runs there saves its work and leaves."""

    verb: Literal["node.drain"] = "node.drain"
    node: Name
    by_s: MomentS = Field(description="When it should be empty. The drain ends then in any case.")
    force: bool = Field(
        default=False, description="Whether what is left there by then is stopped without a save."
    )


class AcceptNode(Verb):
    """A node may join that the operator's list does not have, as this and as nothing else."""

    verb: Literal["node.accept"] = "node.accept"
    agent: Name = Field(description="Who alone may speak for it.")
    node: Name | None = Field(
        default=None, description="The node; none: any node of the agent, each as this says."
    )
    pool: Name
    pool_kind: PoolKind
    gpu_count: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE)] = Field(
        description="The most GPUs that it may have."
    )
    speed_factor: SpeedFactor = Field(default=1.0, description="As its birth says, exactly.")


class RefuseNode(Verb):
    """What was accepted of a node or an agent is accepted no longer, from its next birth on."""

    verb: Literal["node.refuse"] = "node.refuse"
    node: Name = Field(description="A node as it was accepted, or an agent with all its nodes.")


class CancelJob(Verb):
    """A job is taken back; if it runs, its gang leaves."""

    verb: Literal["job.cancel"] = "job.cancel"
    job: Name


class HoldJob(Verb):
    """A job is not started until it is released; one that runs saves its work, leaves and waits."""

    verb: Literal["job.hold"] = "job.hold"
    job: Name


class ReleaseJob(Verb):
    """A job that was held, or whose size was set, is the policy's to decide on again."""

    verb: Literal["job.release"] = "job.release"
    job: Name


class RequeueJob(Verb):
    """A job that runs saves its work, leaves its GPUs, and waits in the queue."""

    verb: Literal["job.requeue"] = "job.requeue"
    job: Name


class PrioritiseJob(Verb):
    """A job has this priority from now on."""

    verb: Literal["job.priority"] = "job.priority"
    job: Name
    priority: Priority


class ScaleJob(Verb):
    """A job runs on so many GPUs, and on no other number, until it is released."""

    verb: Literal["job.scale"] = "job.scale"
    job: Name
    gpus: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        description="One of the sizes that the job declares; null: the policy chooses again."
    )


class PauseCell(Verb):
    """No job of the cell is started or grows, no node is lent, or both, for a time."""

    verb: Literal["cell.pause"] = "cell.pause"
    what: Paused = "all"
    until_s: MomentS | None = Field(
        default=None, description="When it ends; null: when somebody resumes it."
    )


class ResumeCell(Verb):
    """A pause of the cell ends now."""

    verb: Literal["cell.resume"] = "cell.resume"
    what: Paused = "all"


class SubmitJob(Verb):
    """A job is to be run."""

    verb: Literal["job.submit"] = "job.submit"
    spec: JobSubmitted = Field(description="The job, as an event of submission has it.")

    @property
    def job(self) -> str:
        """The job's id."""
        return self.spec.job


class ReadLog(Verb):
    """What a worker of a job has written is to be sent to the topic of logs."""

    verb: Literal["job.logs"] = "job.logs"
    job: Name
    rank: Rank = 0
    reader: Name = Field(
        description="Made by whoever reads, and named by each piece; asked again, it goes on."
    )
    from_byte: LogPosition = Field(description="Where to begin; negative: before the end.")
    max_bytes: LogBytes = Field(description="How much at most.")
    follow: bool = Field(default=False, description="Go on with what is written later.")
    until_s: MomentS = Field(
        description="From then on nothing more is sent; a minute from now at most."
    )


#: A node of a lender, or a whole pool; none: of every lender.
_Lender = Annotated[
    Name | None,
    Field(description="A node or a pool of a lender; none: every lender."),
]


class FreezeLoans(Verb):
    """Nothing is newly borrowed there; what is on loan stays so."""

    verb: Literal["loans.freeze"] = "loans.freeze"
    lender: _Lender = None
    until_s: MomentS | None = Field(
        default=None, description="When the freeze ends by itself; none: when it is lifted."
    )


class UnfreezeLoans(Verb):
    """The freeze of this name is lifted; without a name, every freeze."""

    verb: Literal["loans.unfreeze"] = "loans.unfreeze"
    lender: _Lender = None


class RecallLoans(Verb):
    """Nodes on loan go back to their owner."""

    verb: Literal["loans.recall"] = "loans.recall"
    lender: Name = Field(description="A node or a pool of a lender.")
    by_s: MomentS = Field(description="When the owner is to have them.")


class SetQuota(Verb):
    """A tenant's quota is this from now on, whatever the configuration says."""

    verb: Literal["quota.set"] = "quota.set"
    tenant: Name
    gpus: GpuCount = Field(description="The most GPUs that its jobs hold at once.")
    guaranteed: GpuCount = Field(
        default=0, description="GPUs that it has before others have more, if the policy is `tide`."
    )
    jobs: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="The most jobs of it that hold GPUs at once; none: any number."
    )


class ClearQuota(Verb):
    """A tenant's quota is what the configuration says again."""

    verb: Literal["quota.clear"] = "quota.clear"
    tenant: Name


class SetPolicy(Verb):
    """Another policy decides from now on, whatever the configuration says."""

    verb: Literal["policy.set"] = "policy.set"
    line: PolicyLine = Field(description="A policy and its options: `tide:patience_s=7200`.")
    recall: bool = Field(
        default=False, description="Whether all nodes on loan are called back first."
    )


class ClearPolicy(Verb):
    """The policy that the configuration names decides again."""

    verb: Literal["policy.clear"] = "policy.clear"
    recall: bool = Field(
        default=False, description="Whether all nodes on loan are called back first."
    )


#: Every verb there is: the closed union. Order is the order of the docs.
VerbData = (
    CordonNode
    | UncordonNode
    | DrainNode
    | AcceptNode
    | RefuseNode
    | PauseCell
    | ResumeCell
    | CancelJob
    | SubmitJob
    | HoldJob
    | ReleaseJob
    | RequeueJob
    | PrioritiseJob
    | ScaleJob
    | ReadLog
    | FreezeLoans
    | UnfreezeLoans
    | RecallLoans
    | SetQuota
    | ClearQuota
    | SetPolicy
    | ClearPolicy
)
VERBS: tuple[type[Verb], ...] = get_args(VerbData)
#: By its name, the model of each verb.
VERB_NAMES: dict[str, type[Verb]] = {verb.model_fields["verb"].default: verb for verb in VERBS}


class Request(Strict):
    """One person asks for one thing."""

    TYPE: ClassVar[str] = "tidegate.request.v1"
    id: Name = Field(description="Made by whoever asks; of requests with one id, one takes effect.")
    args: Annotated[VerbData, Field(discriminator="verb")] = Field(
        description="The verb and its arguments."
    )
    subject: Subject = Field(description="Who asks.")
    role: Role
    tenant: Name | None = Field(default=None, description="Whose member the subject is, if any's.")
    reason: Note = Field(default="", description="Why, in the words of whoever asks.")
    via: Name = Field(default="cli", description="What they ask with: the command line, a console.")
    asked_s: MomentS = Field(description="When it was asked.")
    expires_s: MomentS = Field(description="From then on nobody may act on it.")
    cell: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")] = Field(
        default="default", description="The cell that it is for."
    )

    @model_validator(mode="after")
    def _times_fit(self) -> "Request":
        if self.expires_s <= self.asked_s:
            raise ValueError("expires_s: must be after asked_s")
        if self.expires_s > self.asked_s + LIFE_MAX_S:
            raise ValueError(
                f"expires_s: must be at most {LIFE_MAX_S / 86_400:g} days after asked_s"
            )
        if self.role == "tenant" and self.tenant is None:
            raise ValueError("tenant: is missing, and role is tenant")
        return self

    @property
    def about(self) -> str:
        """The node, job, lender, tenant or agent that it is about; if it is about all, the cell."""
        names = ("node", "job", "lender", "tenant", "agent")
        found = (getattr(self.args, name, None) for name in names)
        return next((one for one in found if isinstance(one, str)), self.cell)
