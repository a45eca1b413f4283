"""The options for running gangs that operators set: `[agent.workers]`.

Imports no store and no executor: every role reads the whole configuration.
"""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from schemas.options import Count, Delay, Names, Rate, Seconds, Section, listed

_is_place = re.compile(r"[a-z][a-z0-9+.-]*://[^@\s]+").fullmatch


def _place(text: str) -> str:
    if not _is_place(text) or ".." in text.split("/"):
        raise ValueError(
            f"{text!r} is no place to fetch from; write where addresses begin, without a login, "
            "such as s3://bucket/code or file:///shared/code"
        )
    return text


#: Places from which code may be fetched.
Places = Annotated[tuple[Annotated[str, AfterValidator(_place)], ...], BeforeValidator(listed)]


class WorkerOptions(Section):
    """What every executor heeds."""

    #: More variables of the agent that workers get, besides PATH, HOME and the like.
    pass_env: Names = ()
    #: A program that reports no step counts as started when its workers have run this long.
    quiet_start_s: Delay = 5.0
    #: After this long without a step (or 20 usual step times, if longer) a gang is reported as
    #: stuck.
    stuck_after_s: Seconds = 600.0
    #: Whether a stuck gang is killed, and reported as failed.
    end_stuck: bool = False
    #: The grace of workers to save at a change of size; on training's own nodes one and a half
    #: times what saves are known to take if that is more, six minutes at most.
    grace_s: Delay = 60.0
    #: How long, beyond the grace, the last checkpoint of a stopping gang may take to upload; then
    #: it is given up. Its GPUs stay taken meanwhile. An upload takes its size over half of
    #: `rate_mib_per_s` where it is read back. The scheduler waits as long only for jobs that
    #: declare `checkpoint_mib`, by `agent.transfer_mib_per_s`.
    final_upload_timeout_s: Delay = 60.0
    #: How many checkpoints of a job stay, on the local disk and in the store.
    checkpoint_retention: Count = 2


class MachineOptions(WorkerOptions):
    """What holds for processes of one machine."""

    #: The folder of GPU locks, the same for all agents of a machine. Unset: `locks` in `folder`.
    locks: Path | None = None
    #: The folder of the secrets that jobs name, `TENANT/NAME`; readable for the agent alone.
    secrets: Path | None = None
    #: Memory limit of a gang, where cgroups can be used.
    memory_mib: Count | None = None
    #: CPU limit of a gang in cores, where cgroups can be used.
    cpus: Rate | None = None
    #: The size at which a worker's log file is rotated.
    log_max_mib: Count = 16
    #: How many log files of a worker stay.
    log_files: Count = 4
    #: Where the code of jobs may be fetched from, by how its address begins; with `{tenant}` for
    #: the job's own. None: no job has code fetched. The agent fetches with its own rights.
    code: Places = ()
    #: The most that a job's outputs may take, of which the rest is left out.
    outputs_max_mib: Count = 1024
    #: The most that the code of a job may take, packed and unpacked.
    code_max_mib: Count = 512
