"""What the API takes and answers of branches: what would come of a change, and when jobs will end.

Fields are only ever added. Moments are in seconds since the Unix epoch, in the log's own time.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from gateway.models import Framed, TideRow
from schemas.requests import VerbData
from schemas.values import Name
from simulator.branch.change import LIKE_MAX, NODES_MAX
from simulator.branch.preview import Preview
from simulator.branch.run import Outcome

#: The longest that a branch may be, and the most runs of it.
HOURS_LEAST, HOURS_MOST, RUNS_MOST = 0.1, 168.0, 20
_Count = Annotated[int, Field(ge=1, le=1000)]


class JobsLike(BaseModel):
    """Jobs that are submitted at the entry."""

    model_config = ConfigDict(extra="forbid", strict=True)

    like: Name = Field(description="A job that the state at the entry has.")
    count: _Count = Field(default=1, description="How many like it, under new names.")


class ChangeBody(BaseModel):
    """What is done otherwise than in the control, at the entry."""

    model_config = ConfigDict(extra="forbid", strict=True)

    policy: str | None = Field(
        default=None, max_length=4096, description="Another policy: its name, with options."
    )
    settings: dict[str, float] = Field(
        default_factory=dict, description="Settings of the engine.", max_length=64
    )
    add_nodes: dict[str, _Count] = Field(
        default_factory=dict,
        description=f"By pool, nodes like its first; {NODES_MAX:,} in all, at most.",
        max_length=64,
    )
    lose: list[Name] = Field(
        default_factory=list, description="Nodes that are lost, for good.", max_length=10_000
    )
    demand: float = Field(
        default=1.0, ge=0.0, le=100.0, description="Times what owners need from then on."
    )
    requests: list[Annotated[VerbData, Field(discriminator="verb")]] = Field(
        default_factory=list,
        description="What an operator asks for; `by_s` and `until_s` count from the entry.",
        max_length=100,
    )
    jobs: list[JobsLike] = Field(
        default_factory=list, max_length=100, description=f"{LIKE_MAX:,} in all, at most."
    )


class BranchBody(BaseModel):
    """What is to be tried."""

    model_config = ConfigDict(extra="forbid", strict=True)

    entry: int | None = Field(
        default=None, ge=0, le=2**53, description="Go on after this one; null: the newest."
    )
    hours: float = Field(default=6.0, ge=HOURS_LEAST, le=HOURS_MOST, description="How long.")
    runs: int = Field(
        default=1,
        ge=1,
        le=RUNS_MOST,
        description="How often. All but the first draw what nobody has measured.",
    )
    change: ChangeBody = Field(default_factory=ChangeBody)


class BranchTide(BaseModel):
    """The tide over the time of the branch, about 200 rows each."""

    recorded: list[TideRow] = Field(description="As far as the log goes on.")
    control: list[TideRow]
    branch: list[TideRow] | None = Field(description="Null where nothing is changed.")


class DeedRow(BaseModel):
    """Something that only one side did, or did at another time."""

    at_s: float
    entry: int = Field(description="Its number in the log of that side.")
    subject: str = Field(description="A job, or a node of a lender.")
    kind: str
    what: str
    only_in: Literal["control", "branch"]


Ranges = dict[str, tuple[float, float] | None]


class BranchResult(BaseModel):
    """What came of it: what `tidegate branch --json` writes, the tide, and what differs."""

    log: str
    cell: str
    entry: int
    at_s: float
    until_s: float
    recorded_until_s: float
    owners_need: str = Field(description="`recorded`, or `as the day before`, or first one.")
    recorded: Outcome | None = Field(description="Null where the log does not go on.")
    control_until_recorded_end: Outcome = Field(
        description="Against `recorded` it is the error of the method on this log."
    )
    control: Outcome
    branch: Outcome | None = Field(description="Null where nothing is changed.")
    runs: int
    ranges: dict[str, Ranges] | None = Field(
        description="Of more than one run: the least and the most of `control`, `branch` and "
        "`difference`, by part of an outcome."
    )
    first_difference: DeedRow | None
    violations: int = Field(description="Of what must always hold; 0 unless the engine is wrong.")
    tide: BranchTide
    deeds: list[DeedRow] = Field(description="The first 200 that differ, in order of time.")
    previews: list[Preview] = Field(
        description="By request: which gangs move, when nodes are free, which deadlines are missed."
    )


#: The document has this model already, by the route that takes it.
_ASKED = WithJsonSchema(
    {"allOf": [{"$ref": "#/components/schemas/BranchBody"}],
     "description": "What was asked for, with the entry that it goes on after."}
)  # fmt: skip


class BranchAnswer(BaseModel):
    """A branch: how far it is, and what came of it."""

    branch: str = Field(
        description="Its id. Once it is done, reads take `cell=branch-ID` and answer of it."
    )
    cell: str
    state: Literal["waiting", "running", "done", "failed", "ended"]
    done: float = Field(description="0 to 1.")
    problem: str | None = Field(description="Why it failed, and what to do.")
    asked: Annotated[dict[str, Any], _ASKED]
    asked_by: str
    asked_s: float = Field(description="When, by the gateway's clock.")
    result: BranchResult | None = Field(description="Once it is done; in lists always null.")


class BranchesAnswer(BaseModel):
    """The branches that who asks may see, newest first."""

    branches: list[BranchAnswer]


class MomentRange(BaseModel):
    """When something happens, over the runs in which it does."""

    least_s: float | None = Field(description="The earliest; null: in no run.")
    most_s: float | None = Field(description="The latest; null: in no run.")
    none: int = Field(description="Runs in which it does not within `hours`.")


class ForecastAnswer(Framed):
    """When a job will start and end, over several runs of a branch without change."""

    job: str
    runs: int
    hours: float
    starts: MomentRange | None = Field(description="Null: it has its GPUs already, or has ended.")
    ends: MomentRange | None = Field(description="Null: it has ended already.")
    took_s: float = Field(description="How long that took to work out, for all jobs at once.")


class ForecastComing(BaseModel):
    """It is being worked out; ask again after Retry-After."""

    cell: str
    entry: int
    job: str
    done: float = Field(description="0 to 1.")
