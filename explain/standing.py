"""What people asked for that still holds, in words: of a job, and of a cell."""

from collections.abc import Mapping

from explain.moments import day_clock
from scheduler.core.standing import Accepted, Pause
from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import JobState

_PARTS = {"starts": "starts and growth", "loans": "new loans"}


def standing_of(state: ClusterState, job: Job, origin_s: float) -> list[str]:
    """Say what people asked for that holds for a job now, and the command that ends it.

    Args:
        state: Of its cell.
        job: The job.
        origin_s: When the log began.
    """
    standing, said = state.standing, list[str]()
    if (hold := standing.holds.get(job.id)) is not None:
        since = day_clock(hold.since_s, origin_s)
        lets = f"`tidegate job release {job.id}` lets it go on"
        said.append(f"held by {hold.by} since {since}{_because(hold.reason)}; {lets}")
    if (only := standing.sizes.get(job.id)) is not None:
        since = day_clock(only.since_s, origin_s)
        gpus = f"{only.gpus} GPU{'' if only.gpus == 1 else 's'}"
        lets = f"`tidegate job scale {job.id} auto` leaves its size to the policy"
        said.append(f"set to {gpus} by {only.by} since {since}{_because(only.reason)}; {lets}")
    pause = standing.pauses.get("starts")
    if pause is not None and job.state is JobState.QUEUED:
        said.append(_paused("starts", pause, origin_s))
    return said


def pauses_of(pauses: Mapping[str, Pause], origin_s: float) -> list[str]:
    """Say what of a cell is paused, and how that is ended."""
    return [_paused(part, pause, origin_s) for part, pause in sorted(pauses.items())]


def accepted_of(accepted: Mapping[str, Accepted], origin_s: float) -> list[str]:
    """Say what may join besides what the operator's list has, and how that is ended."""
    said = []
    for name, one in sorted(accepted.items()):
        who = f"any node of agent {one.agent}" if one.node is None else one.node
        of = "" if one.agent == name else f", of agent {one.agent},"
        what = f"in {one.pool} ({one.pool_kind}), at most {one.gpu_count} GPUs"
        speed = "" if one.speed_factor == 1.0 else f" of speed {one.speed_factor:g}"
        by = f"by {one.by} since {day_clock(one.since_s, origin_s)}{_because(one.reason)}"
        said.append(
            f"Accepted: {who}{of} {what}{speed}, {by}; `tidegate node refuse {name}` ends that."
        )
    return said


def _paused(part: str, pause: Pause, origin_s: float) -> str:
    when = f"since {day_clock(pause.since_s, origin_s)}"
    if pause.until_s is not None:
        when += f" until {day_clock(pause.until_s, origin_s)}"
    said = f"{_PARTS[part]} are paused by {pause.by} {when}{_because(pause.reason)}"
    return f"{said}; `tidegate resume {part}` ends that"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
