"""Orders to start a gang, without what the job says anyway: the journal has them by reference.

A job's program may take 64 KiB, and one cycle may start hundreds of gangs.
"""

from functools import lru_cache
from typing import Any, cast

from scheduler.core.state import ClusterState, Job, OpenCommand
from scheduler.core.stimuli import Command, next_epoch
from schemas.commands import COMMANDS, CommandData, GangSpec, StartGang
from schemas.events import RatePoint
from schemas.programs import Program

_KINDS = {kind.__name__: kind for kind in COMMANDS}


def gang_spec(job: Job) -> GangSpec:
    """Give all that an agent needs to run the job's workers. It was checked when it came."""
    return GangSpec.model_construct(
        model=job.model,
        total_steps=job.total_steps,
        samples_per_step=job.samples_per_step,
        rates=list(_points(tuple([(int(size), rate) for size, rate in job.rates]))),
        checkpoint_mib=job.checkpoint_mib,
        checkpoint_cost_s=job.checkpoint_cost_s,
        start_cost_s=job.start_cost_s,
        tenant=job.tenant,
        program=None if job.program is None else Program.model_construct(**job.program),
        # Those of a forgotten job of this name are of before: epochs are as high as the time.
        first_epoch=next_epoch(0, job.submit_s),
    )


@lru_cache(maxsize=4096)
def _points(rates: tuple[tuple[int, float], ...]) -> tuple[RatePoint, ...]:
    """Give the points of a curve: many jobs have the same, and a job starts again and again."""
    return tuple([RatePoint(gpus=size, samples_per_s=rate) for size, rate in rates])


def recorded(data: CommandData) -> dict[str, Any]:
    """Give what a command says as it stands in the journal."""
    return data.model_dump(exclude={"spec"} if isinstance(data, StartGang) else None)


def reissue(state: ClusterState, command: OpenCommand) -> Command | None:
    """Make the same command again: the agent knows it by its id.

    Returns:
        None if its gang is not the job's any more, or its loan is over: nobody should begin that.
    """
    data = command.data
    if command.kind == "LendNode" and state.nodes[command.subject].loan != data["loan"]:
        return None
    if command.kind == "StartGang" and "spec" not in data:
        job = state.jobs.get(command.subject)
        if job is None or job.start_epoch != data["epoch"]:
            return None
        data = {**data, "spec": gang_spec(job)}
    made = _KINDS[command.kind].model_validate(data)
    return Command(command.id, command.agent, cast(CommandData, made), command.expires_s)
