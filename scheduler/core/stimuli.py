"""What the engine is given: the closed union of its inputs, and what it answers.

A stimulus is a fact from outside (an event's payload, as `schemas` has it) or the passing of
time, with the moment the scheduler took it up. It holds all that the decision may depend on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict, get_args

from scheduler.policies.interface import Reason
from schemas.commands import CommandData
from schemas.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CommandAcknowledged,
    InferenceLoad,
    JobCancelled,
    JobProgressed,
    JobSubmitted,
    NodeBorn,
    NodeDied,
    OutputsKept,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from schemas.requests import Request
from schemas.values import Strict


@dataclass(frozen=True, slots=True)
class LeaderStarted:
    """A scheduler process took the cell over, with this policy and these settings.

    A policy that an administrator chose is in force instead, unless this one is `pinned`.
    """

    leader: str
    leader_epoch: int
    policy: str
    settings: Mapping[str, float]
    pinned: bool = False


#: Leader epochs count seconds from the beginning of 2020, so that they fit an envelope until 2088.
_EPOCH_ZERO_S = 1_577_836_800.0


def next_epoch(former: int, now_s: float) -> int:
    """Give the epoch of a new leader, or of a job's next allocation.

    It is above the former, and above any that the journal has lost: a log that was restored from
    a copy knows older epochs than agents have heard, and the time lifts the next one above all of
    them. Ids of commands and loans hold a leader's, so they never come again with another meaning.

    Args:
        former: The one before.
        now_s: The present moment, in seconds since the Unix epoch.
    """
    return max(former + 1, int(now_s - _EPOCH_ZERO_S))


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """Nothing was heard of the node since `last_heard_s`."""

    node: str
    last_heard_s: float


@dataclass(frozen=True, slots=True)
class NodeHeard:
    """A silent node was heard of again."""

    node: str


class Curve(TypedDict):
    """What was learned of one job's speed. Work is in the unit that the points have.

    Attributes:
        points: [[GPUs, work per second], ...], GPUs ascending, on the fewest nodes of a pool of
            speed 1. 0: the job cannot have that size. Sizes between two that are above 0 lie on a
            straight line; sizes outside are not allowed.
        per_step: Work in one reported step, from now on.
        left: Work left at the step that was reported last; None: that of the steps left.
        measured: Sizes that the job or its kin ran at; the other points follow from a model.
        affinity: By pool, its speed there relative to the points; elsewhere it is the pool's own.
        at_s: When each of `measured` was reported last, in seconds since the Unix epoch.
    """

    points: list[list[float]]
    per_step: float
    left: float | None
    measured: list[int]
    affinity: dict[str, float]
    at_s: NotRequired[list[float]]


@dataclass(frozen=True, slots=True)
class CurvesLearned:
    """What an estimator learned of jobs from their reports.

    It is recorded as it was learned, so that a replay needs no estimator.
    """

    curves: Mapping[str, Curve]


class Length(TypedDict):
    """What was learned of the length of one job that declared no total. In reported steps.

    Attributes:
        left: Steps left at the step that was reported last.
        ended: Of its kin, those that count and took more steps than it did so far.
        took: The fewest and the most steps that these took; nothing if there are none.
        running: Of its kin, those that count and are further than it, and run still.
    """

    left: float
    ended: int
    took: list[float]
    running: int


@dataclass(frozen=True, slots=True)
class LengthsLearned:
    """What an estimator learned of jobs without a total; recorded as it was learned, too."""

    lengths: Mapping[str, Length]


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing but time: whatever is due shall happen."""

    #: Why the leader's policy was not heard in this cycle, so that another stood in; empty if it
    #: was. It is recorded since how long a policy takes is no part of any decision.
    cut: str = ""


class SubmittedAhead(JobSubmitted):
    """A job as it was submitted to a cell whose time is ahead of the clock; its due date is moved.

    `deadline_s` is when the cell's time will have it. What was said is kept: who submits the job
    again says it again, and the cell may be ahead by more then, or by less, or not at all.
    """

    deadline_said_s: float | None = None


class Requested(Strict):
    """A person asks for something, in these very bytes: who is to prove it later has them.

    `raw` is the message, the whole envelope; it is UTF-8. Key and signature are empty on a log that
    is a file: nothing there is signed.
    """

    raw: str
    kid: str = ""
    signature: str = ""
    #: How far the cell's time was ahead of the scheduler's clock: moments are by clocks.
    ahead_s: float = 0.0
    request: Request


Input = (
    LeaderStarted
    | NodeBorn
    | NodeDied
    | NodeSilent
    | NodeHeard
    | InferenceLoad
    | JobSubmitted
    | SubmittedAhead
    | JobCancelled
    | JobProgressed
    | WorkerStarted
    | WorkerStopped
    | WorkerFailed
    | CheckpointCommitted
    | OutputsKept
    | CheckpointFailed
    | CommandAcknowledged
    | CurvesLearned
    | LengthsLearned
    | Requested
    | TimePassed
)

#: By name, as the journal has it.
INPUTS: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Input)}


@dataclass(frozen=True, slots=True)
class Cause:
    """The message a stimulus came from. A boot id of -1: from the scheduler itself."""

    source: str
    bootid: int = -1
    sequence: int = -1
    #: When it was said, by its source's clock, but not after it was heard. Seconds since the epoch.
    said_s: float = 0.0

    def is_before(self, bootid: int, said_s: float) -> bool:
        """Whether it is of an earlier boot than another message of its source.

        The boot id and the clock must both say so. Alone, one message with a high boot id would
        make all that its source ever says old; so would a clock that was ahead once.
        """
        return self.bootid < bootid and self.said_s <= said_s


@dataclass(frozen=True, slots=True)
class Stimulus:
    """One input of the engine. `at_s` never falls from one to the next."""

    at_s: float
    data: Input
    cause: Cause = Cause("scheduler")


@dataclass(frozen=True, slots=True)
class Command:
    """A command to send: to whom, and until when it is worth carrying out."""

    id: str
    agent: str
    data: CommandData
    expires_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The engine's answer: facts to record, commands to send, why, and when to ask again."""

    facts: tuple[Any, ...] = ()
    commands: tuple[Command, ...] = ()
    reasons: tuple[Reason, ...] = field(default=())
    #: When time alone will have made something due; None while nothing is.
    wake_s: float | None = None
