"""What people asked for that still holds, in words: of a job, and of a cell."""

from collections.abc import Mapping

from explain.moments import day_clock
from explain.shares import counted
from scheduler.core.standing import Accepted, Pause
from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import JobState, NodeState

#: The rule by which jobs wait while no node is in contact. No policy is asked then, so none gives
#: a reason, and one of before would be out of date.
NO_NODE = "gang.no_node"
#: Cordoned nodes that are named, at most.
_CORDONS = 3
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
        gpus = counted(only.gpus, "GPU")
        lets = f"`tidegate job scale {job.id} auto` leaves its size to the policy"
        said.append(f"set to {gpus} by {only.by} since {since}{_because(only.reason)}; {lets}")
    if job.state is JobState.QUEUED:
        said += _cordoned(state, job, origin_s)
    pause = standing.pauses.get("starts")
    if pause is not None and job.state is JobState.QUEUED:
        said.append(_paused("starts", pause, origin_s))
    return said


def lacks_nodes(state: ClusterState) -> bool:
    """Whether jobs wait because no node is in contact, and not because starts are paused."""
    alive = any(node.state is NodeState.ALIVE for node in state.nodes.values())
    return not alive and "starts" not in state.standing.pauses


def waits_for_nodes(state: ClusterState, job: Job) -> bool:
    """Whether a job of a cell that `lacks_nodes` waits for that."""
    waits = job.state in (JobState.QUEUED, JobState.MIGRATING)
    return waits and job.id not in state.standing.holds


def _cordoned(state: ClusterState, job: Job, origin_s: float) -> list[str]:
    """Say which nodes would have room for a job if they were not cordoned; else none."""
    cordons = state.standing.cordons
    fit = [
        node
        for node in state.nodes.values()
        if node.state is NodeState.ALIVE
        and node.gpu_memory_mib >= job.memory_mib
        and (job.edge_allowed or state.pools[node.pool].kind != "edge")
        and (state.pools[node.pool].kind == "training" or node.loan is not None)
    ]
    if sum(node.gpu_count for node in fit if node.id not in cordons) >= job.gpus_min:
        return []
    said = []
    for node in [node for node in fit if node.id in cordons][:_CORDONS]:
        cordon = cordons[node.id]
        since = f"since {day_clock(cordon.since_s, origin_s)}{_because(cordon.reason)}"
        opens = f"`tidegate node uncordon {node.id}` opens it"
        # Not with the id first: as a sentence of its own it begins with a capital letter.
        could = f"node {node.id}, which it could use"
        said.append(f"{could}, is cordoned by {cordon.by} {since}; {opens}")
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
        what = f"in {one.pool} ({one.pool_kind}), at most {counted(one.gpu_count, 'GPU')}"
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
