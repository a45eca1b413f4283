"""What the engine is given: the closed union of its inputs, and what it answers.

A stimulus is a fact from outside (an event's payload, as `schemas` has it) or the passing of
time, with the moment the scheduler took it up. It holds all that the decision may depend on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

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
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)


@dataclass(frozen=True, slots=True)
class LeaderStarted:
    """A scheduler process took the cell over, with this policy and these settings."""

    leader: str
    leader_epoch: int
    policy: str
    settings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """Nothing was heard of the node since `last_heard_s`."""

    node: str
    last_heard_s: float


@dataclass(frozen=True, slots=True)
class NodeHeard:
    """A silent node was heard of again."""

    node: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing but time: whatever is due shall happen."""


Input = (
    LeaderStarted
    | NodeBorn
    | NodeDied
    | NodeSilent
    | NodeHeard
    | InferenceLoad
    | JobSubmitted
    | JobCancelled
    | JobProgressed
    | WorkerStarted
    | WorkerStopped
    | WorkerFailed
    | CheckpointCommitted
    | CheckpointFailed
    | CommandAcknowledged
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
