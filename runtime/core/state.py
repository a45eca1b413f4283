"""The state of an agent: gangs, nodes and loans, the inbox, epochs; as flat JSON rows.

Rows are keyed `gang/JOB`, `node/NODE`, `epoch/JOB`, `inbox/ID`, `leader/CELL`, `lease` and `back`,
so that the store writes only what a turn changed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from runtime.core.messages import Placement
from schemas.commands import GangSpec
from schemas.events import GangHeld, NodeBorn, PoolKind, StopReason
from schemas.options import CHECKED, Seconds
from schemas.topics import COMMANDS

_DAY_S = 86_400.0
#: A day longer than the bus keeps commands: a forgotten one can no longer be delivered again.
MEMORY_S = (COMMANDS.retention_s or 0.0) + _DAY_S

GangPhase = Literal["starting", "running", "scaling", "stopping"]
LoanPhase = Literal["owned", "draining", "lent", "returning"]
Outcome = Literal["done", "refused"]
#: What is done about gangs that were lost with their machine.
AfterReboot = Literal["resume", "report"]
Row = dict[str, Any]


@checked(frozen=True, slots=True, config=CHECKED)
class Limits:
    """The times and limits that the core acts by."""

    #: A periodic checkpoint comes at least this long after the last one, and at most
    #: `checkpoint_max_s`; each job has its own interval in between, so that gangs do not all save
    #: at once.
    checkpoint_min_s: Seconds = 600.0
    #: At most this long after the last one.
    checkpoint_max_s: Seconds = 900.0
    #: For the checkpoint when a lease ends.
    lease_grace_s: Seconds = 120.0
    #: How long command ids and epochs are remembered, in seconds.
    memory_s: Seconds = MEMORY_S
    #: What to do with gangs that were lost with their machine while their lease still runs: resume
    #: them here at once, or report them as failed. None: resume where workers are processes.
    after_reboot: AfterReboot | None = None
    #: How often a gang is resumed under one epoch before it is reported as failed.
    resumes_max: Annotated[int, Field(ge=0)] = 5

    def __post_init__(self) -> None:
        if self.checkpoint_min_s > self.checkpoint_max_s:
            raise ValueError("checkpoint_min_s: must be at most checkpoint_max_s")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node of the agent's, as its birth reports it."""

    node: str
    pool: str
    pool_kind: PoolKind
    gpu_count: int
    gpu_type: str
    gpu_memory_mib: int
    speed_factor: float = 1.0
    transfer_mib_per_s: float = 1000.0

    @property
    def lendable(self) -> bool:
        """Whether the node has an owner other than training."""
        return self.pool_kind != "training"

    def born(self, agent: str, held: Sequence[GangHeld] = (), loan: str | None = None) -> NodeBorn:
        """Give its birth, as an agent says it; `held` are the gangs that it has.

        Raises:
            ValidationError: what is said of it is out of range.
        """
        return NodeBorn(
            node=self.node,
            agent=agent,
            pool=self.pool,
            pool_kind=self.pool_kind,
            gpu_count=self.gpu_count,
            gpu_type=self.gpu_type,
            gpu_memory_mib=self.gpu_memory_mib,
            speed_factor=self.speed_factor,
            transfer_mib_per_s=self.transfer_mib_per_s,
            held=list(held),
            loan=loan,
        )


@dataclass(slots=True)
class NodeState:
    """Who uses a node now: its owner or training."""

    phase: LoanPhase = "owned"
    loan: str | None = None
    #: The previous loan: a late command must not start it again.
    last_loan: str | None = None
    #: Commands that are acknowledged once the owner has left, or has the node back.
    waiting: list[str] = field(default_factory=list)

    def to_row(self) -> Row:
        return {
            "phase": self.phase,
            "loan": self.loan,
            "last_loan": self.last_loan,
            "waiting": list(self.waiting),
        }

    @classmethod
    def from_row(cls, row: Row) -> "NodeState":
        return cls(row["phase"], row["loan"], row["last_loan"], list(row["waiting"]))


@dataclass(slots=True)
class Gang:
    """A gang that holds GPUs here."""

    job: str
    epoch: int
    placement: dict[str, tuple[int, ...]]
    phase: GangPhase
    step: int
    checkpoint_step: int
    checkpoint_cost_s: float
    #: The command behind the present phase; None when the agent itself acted.
    cause: str | None
    #: Since when the last checkpoint counts; None before the first step.
    checkpointed_s: float | None = None
    checkpointing: bool = False
    stop_reason: StopReason | None = None
    stop_by_s: float | None = None
    stop_saves: bool = False
    #: GPUs given up in changes of size and not yet free: epoch that had them, and which.
    leaving: list[tuple[int, dict[str, tuple[int, ...]]]] = field(default_factory=list)
    #: What its workers run; None of one that an earlier release started.
    spec: GangSpec | None = None
    #: How often it was resumed under this epoch.
    resumes: int = 0

    def to_row(self) -> Row:
        return {
            "epoch": self.epoch,
            "placement": _plain(self.placement),
            "phase": self.phase,
            "step": self.step,
            "checkpoint_step": self.checkpoint_step,
            "checkpoint_cost_s": self.checkpoint_cost_s,
            "cause": self.cause,
            "checkpointed_s": self.checkpointed_s,
            "checkpointing": self.checkpointing,
            "stop_reason": self.stop_reason,
            "stop_by_s": self.stop_by_s,
            "stop_saves": self.stop_saves,
            "leaving": [[epoch, _plain(left)] for epoch, left in self.leaving],
            "spec": None if self.spec is None else self.spec.model_dump(mode="json"),
            "resumes": self.resumes,
        }

    @classmethod
    def from_row(cls, job: str, row: Row) -> "Gang":
        spec = row.get("spec")
        fields = {
            **row,
            "placement": _placement(row["placement"]),
            "leaving": [(epoch, _placement(left)) for epoch, left in row["leaving"]],
            # Through JSON: lists stand for the tuples of a strict payload.
            "spec": None if spec is None else GangSpec.model_validate_json(json.dumps(spec)),
        }
        return cls(job=job, **fields)


def _plain(placement: Placement) -> dict[str, list[int]]:
    return {node: list(gpus) for node, gpus in placement.items()}


def _placement(plain: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    return {node: tuple(gpus) for node, gpus in plain.items()}


def without(placement: Placement, other: Placement) -> dict[str, tuple[int, ...]]:
    """Give the GPUs of `placement` that are not in `other`."""
    rest = {
        node: tuple(gpu for gpu in gpus if gpu not in other.get(node, ()))
        for node, gpus in placement.items()
    }
    return {node: gpus for node, gpus in rest.items() if gpus}
