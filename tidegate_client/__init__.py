"""A client of Tidegate's gateway: what a scheduler of GPUs decided and why, and asking it for more.

with Client.from_context() as tidegate:
    print(tidegate.why("job-0042"))
"""

from tidegate_client.aio import AsyncClient, AsyncJobHandle
from tidegate_client.asking import Outcome
from tidegate_client.branching import Branch
from tidegate_client.client import Client, JobHandle
from tidegate_client.errors import (
    BadRequest,
    BranchFailed,
    Conflict,
    ContextError,
    JobEnded,
    NoGateway,
    NotAllowed,
    NotFound,
    NotKnown,
    Problem,
    Refused,
    TidegateError,
    TimedOut,
    TooMany,
    Unavailable,
)
from tidegate_client.events import Head
from tidegate_client.jobs import Job
from tidegate_client.operations import Why

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "BadRequest",
    "Branch",
    "BranchFailed",
    "Client",
    "Conflict",
    "ContextError",
    "Head",
    "Job",
    "JobEnded",
    "JobHandle",
    "NoGateway",
    "NotAllowed",
    "NotFound",
    "NotKnown",
    "Outcome",
    "Problem",
    "Refused",
    "TidegateError",
    "TimedOut",
    "TooMany",
    "Unavailable",
    "Why",
]
