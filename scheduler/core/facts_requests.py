"""What came of people's requests: facts, as in `facts`, which has all."""

from dataclasses import dataclass
from typing import Literal

from scheduler.core.standing import Part


@dataclass(slots=True)
class RequestDone:
    """A request was taken, and what it asks for was done or begun; it is not taken again."""

    request: str
    expires_s: float


@dataclass(slots=True)
class RequestRefused:
    """A request was taken, and refused; it is not taken again. `field` is of the request."""

    request: str
    expires_s: float
    field: str
    reason: str


@dataclass(slots=True)
class RequestKeptLonger:
    """The id of a request that was taken is remembered so much longer: the cell is so far ahead."""

    request: str
    ahead_s: float


@dataclass(slots=True)
class RequestCounted:
    """Of a request that was taken it is remembered who asked for what: so many are taken."""

    request: str
    counted_as: str


@dataclass(slots=True)
class NodeCordoned:
    """The node takes no new work until it is uncordoned."""

    node: str
    request: str
    by: str
    reason: str


@dataclass(slots=True)
class NodeUncordoned:
    """The node takes work again."""

    node: str
    request: str
    by: str


@dataclass(slots=True)
class DrainStarted:
    """What runs on the node is to leave it by then; with `force`, what is left then is stopped."""

    node: str
    request: str
    by: str
    by_s: float
    force: bool


@dataclass(slots=True)
class DrainEnded:
    """The drain is over: the node is empty, or its time was up, or it was called off."""

    node: str
    outcome: Literal["empty", "deadline", "called_off"]


@dataclass(slots=True)
class NodeAccepted:
    """A node of this agent may join as this and as nothing else; without a name, any of its."""

    joins: str | None  #: Its name. What facts call `node` is one that has joined.
    agent: str
    pool: str
    pool_kind: str
    gpu_count: int
    speed_factor: float
    request: str
    by: str
    reason: str


@dataclass(slots=True)
class NodeRefused:
    """What was accepted by this name, a node's or an agent's, is accepted no longer."""

    joins: str
    request: str
    by: str


@dataclass(slots=True)
class JobHeld:
    """The job is not started until it is released; `role` is that of who asked."""

    job: str
    request: str
    by: str
    role: str
    reason: str


@dataclass(slots=True)
class JobReleased:
    """The job may be started again."""

    job: str
    request: str
    by: str


@dataclass(slots=True)
class JobRequeued:
    """The job leaves its GPUs and waits again, since somebody asked for it."""

    job: str
    request: str
    by: str
    reason: str


@dataclass(slots=True)
class JobPrioritised:
    """The job has this priority from now on."""

    job: str
    request: str
    by: str
    priority: int


@dataclass(slots=True)
class JobSizeSet:
    """The job runs on so many GPUs, and on no other number, until it is released."""

    job: str
    request: str
    by: str
    reason: str
    gpus: int


@dataclass(slots=True)
class JobSizeFreed:
    """The policy chooses the job's size again."""

    job: str
    request: str
    by: str


@dataclass(slots=True)
class CellPaused:
    """No job is started or grows, or no node is lent, until then; None: until it is resumed."""

    what: Part
    request: str
    by: str
    reason: str
    until_s: float | None


@dataclass(slots=True)
class CellResumed:
    """A pause is over: its time was up, or somebody, `by`, asked for it."""

    what: Part
    by: str
