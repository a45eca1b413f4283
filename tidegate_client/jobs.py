"""A job as a program describes it, and the request that it becomes."""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_UNITS_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)")
#: States of a job that last.
ENDED = ("completed", "failed", "cancelled")
#: All states of a job.
STATES = (
    *("queued", "starting", "running", "scaling", "checkpointing", "stopping", "migrating"),
    *ENDED,
)


class Job(BaseModel):
    """A job to submit. What it has no name for goes into `more`, as docs/jobs.md has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Its id; if left out, it follows from the key that it is submitted with, or is made up.
    id: str | None = None
    #: Whose it is; if left out, that of who submits it, or `operator`.
    tenant: str | None = None
    model: str = "unnamed"
    #: A size, or the smallest and the largest.
    gpus: int | tuple[int, int] = 1
    #: Optimiser steps in all; None: until it ends.
    steps: int | None = None
    samples_per_step: float = 1.0
    #: Samples a second by GPUs; if left out, as fast as it has GPUs.
    rates: Mapping[int, float] | None = None
    #: From now: "90m", "2h", "1h30m", or seconds.
    deadline: str | float | None = None
    priority: int = 0
    edge: bool = True
    memory_mib: int = 0
    #: What its workers run, as words, or a line for the shell; None where they are simulated.
    command: str | Sequence[str] | None = None
    #: Of the program beside its command: `env`, `workdir`, `resize`.
    program: Mapping[str, Any] = Field(default_factory=dict)
    #: Further fields of a submission, such as `checkpoint_mib`.
    more: Mapping[str, Any] = Field(default_factory=dict)

    @field_validator("deadline")
    @classmethod
    def _is_a_length(cls, value: str | float | None) -> str | float | None:
        if value is not None:
            seconds_of(value)
        return value

    @model_validator(mode="after")
    def _runs_something(self) -> Self:
        if self.program and self.command is None:
            raise ValueError("program: goes with command, which is what the job's workers run")
        return self

    def named(self, key: str | None) -> str:
        """Give its id. The same key gives the same one, so that a repeated run submits one job."""
        if self.id is not None:
            return self.id
        told = secrets.token_hex(4) if key is None else hashlib.sha256(key.encode()).hexdigest()
        return f"job-{told[:12]}"

    def spec(self, name: str, now_s: float) -> dict[str, Any]:
        """Give it as the scheduler takes it; `now_s` is now in the log's time."""
        low, high = (self.gpus, self.gpus) if isinstance(self.gpus, int) else self.gpus
        rates = self.rates
        if rates is None:
            sizes = [2**power for power in range(high.bit_length()) if 2**power < high]
            rates = {size: float(size) for size in (*sizes, high)}
        spec: dict[str, Any] = {
            "job": name,
            "model": self.model,
            "gpus_min": low,
            "gpus_max": high,
            "total_steps": self.steps,
            "samples_per_step": self.samples_per_step,
            "rates": [{"gpus": n, "samples_per_s": rates[n]} for n in sorted(rates)],
            "priority": self.priority,
            "edge_allowed": self.edge,
            "memory_mib": self.memory_mib,
        }
        if self.tenant is not None:
            spec["tenant"] = self.tenant
        if self.deadline is not None:
            spec["deadline_s"] = now_s + seconds_of(self.deadline)
        if self.command is not None:
            line = isinstance(self.command, str)
            argv = ["sh", "-c", self.command] if line else list(self.command)
            spec["program"] = {"argv": argv, **self.program}
        return spec | dict(self.more)


def seconds_of(length: str | float) -> float:
    """Read a length of time: `90m`, `2h`, `1h30m`, or seconds.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(length, str):
        if length < 0:
            raise ValueError(f"{length} is no length of time; it counts from now")
        return float(length)
    found = _LENGTH.findall(length)
    if not found or _LENGTH.sub("", length).strip():
        raise ValueError(f"{length!r} is no length of time; write 90m, 2h or 1h30m")
    return sum(float(count) * _UNITS_S[unit] for count, unit in found)
