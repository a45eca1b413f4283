"""Jobs and Pods of the API, reduced to the fields that tell the state of a gang."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from cloud_agent.kubernetes.api import Json

#: Names of labels, and of annotations that have values which are not valid as labels.
AGENT, JOB, EPOCH = "tidegate.io/agent", "tidegate.io/job", "tidegate.io/epoch"
#: The id of the shared folder that the run is in; agents of earlier releases said none.
FOLDER = "tidegate.io/folder"
#: The annotation with the index of a Pod in its Indexed Job.
INDEX = "batch.kubernetes.io/job-completion-index"
#: The scheduling gate that holds a Pod back until its node is chosen.
GATE = "tidegate.io/place"
#: The container that runs a worker; others may have been added to its Pod.
WORKER = "worker"
#: More digits than any epoch has.
_DIGITS_MAX = 18
#: Reasons for which a container could not be started at all.
_CANNOT_RUN = frozenset(("ContainerCannotRun", "StartError"))
_NOT_FOUND = (126, 127)
#: Clocks that are no further apart, in seconds, are taken for the same.
APART_S = 60.0


@dataclass(frozen=True, slots=True)
class JobSeen:
    """One of the agent's Jobs."""

    name: str
    uid: str
    job: str
    epoch: int
    #: The id of its shared folder; empty: none is said.
    folder_id: str
    suspended: bool
    #: Whether it is being deleted; it exists until its Pods are gone.
    leaves: bool
    complete: bool
    failed: bool
    #: When it was unsuspended, by the cluster's clock; None: not yet.
    began_s: float | None = None
    #: How long after that Kubernetes ends it by itself.
    deadline_s: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How a worker's process ended."""

    code: int
    reason: str
    message: str

    @property
    def runnable(self) -> bool:
        """Whether its process could be started."""
        return self.reason not in _CANNOT_RUN and self.code not in _NOT_FOUND

    def words(self) -> str:
        """Describe it in words."""
        if self.reason == "OOMKilled":
            how = "ran out of memory (the limit of its container)"
        elif self.code > 128 and self.runnable:
            how = f"was killed by signal {self.code - 128}"
        else:
            how = f"ended with exit code {self.code}"
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        return f"{how}: {lines[-1][:500]}" if lines else how


@dataclass(frozen=True, slots=True)
class PodSeen:
    """One of the agent's Pods."""

    name: str
    uid: str
    #: The uid of its Job; empty if it has none.
    owner: str
    job: str
    epoch: int
    folder_id: str
    rank: int
    node: str | None
    phase: str
    gated: bool
    #: Whether it is being deleted; its processes may run until it is gone.
    leaves: bool
    #: Why it does not run yet, if Kubernetes tells.
    waits_for: str | None
    #: How it ended, once it has.
    end: End | None
    #: Why Kubernetes ended it by itself, if it did.
    disrupted: str | None

    @property
    def is_over(self) -> bool:
        """Whether none of its processes is left."""
        return self.phase in ("Succeeded", "Failed")


def job_seen(said: Json) -> JobSeen | None:
    """Read a Job; None without our annotations."""
    marks = _marks(said)
    if marks is None:
        return None
    true = {one["type"] for one in _conditions(said) if one.get("status") == "True"}
    meta = said["metadata"]
    return JobSeen(
        meta["name"],
        meta["uid"],
        *marks,
        suspended=bool(said["spec"].get("suspend")),
        leaves="deletionTimestamp" in meta,
        complete="Complete" in true,
        failed="Failed" in true,
        began_s=_seconds(said.get("status", {}).get("startTime")),
        deadline_s=said["spec"].get("activeDeadlineSeconds"),
    )


def pod_seen(said: Json) -> PodSeen | None:
    """Read a Pod; None without our annotations."""
    marks = _marks(said)
    if marks is None:
        return None
    meta, spec, status = said["metadata"], said["spec"], said.get("status", {})
    index = meta.get("annotations", {}).get(INDEX, "")
    owners = [one["uid"] for one in meta.get("ownerReferences", ()) if one.get("controller")]
    return PodSeen(
        meta["name"],
        meta["uid"],
        owners[0] if owners else "",
        *marks,
        rank=int(index[:_DIGITS_MAX]) if index.isdecimal() else 0,
        node=spec.get("nodeName"),
        phase=status.get("phase", "Pending"),
        gated=any(one["name"] == GATE for one in spec.get("schedulingGates") or ()),
        leaves="deletionTimestamp" in meta,
        waits_for=next(_obstacles(said), None),
        end=_end(status),
        disrupted=_disrupted(said),
    )


def _seconds(moment: str | None) -> float | None:
    return None if moment is None else datetime.fromisoformat(moment).timestamp()


def _marks(said: Json) -> tuple[str, int, str] | None:
    notes = said["metadata"].get("annotations") or {}
    epoch = notes.get(EPOCH, "")
    is_number = epoch.isdecimal() and len(epoch) <= _DIGITS_MAX
    if JOB not in notes or not is_number:
        return None
    return notes[JOB], int(epoch), notes.get(FOLDER, "")


def _conditions(said: Json) -> list[Json]:
    return said.get("status", {}).get("conditions") or []


def _obstacles(said: Json) -> Iterator[str]:
    """Give what keeps a Pod from running, the most specific first."""
    for container in said.get("status", {}).get("containerStatuses") or ():
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            yield f"{waiting['reason']}: {waiting.get('message', '')}"
    for one in _conditions(said):
        if one["type"] == "PodScheduled" and one.get("status") == "False":
            yield f"{one.get('reason', '')}: {one.get('message', '')}"


def hindered(why: str, *, has_secrets: bool) -> tuple[str, bool]:
    """Say what keeps a Pod from running, what to do, and whether a retry makes sense.

    Args:
        why: What Kubernetes says of it.
        has_secrets: Whether its variables name keys of a Secret.
    """
    is_secret = has_secrets and why.startswith("CreateContainerConfigError: ")
    advice = "see that the nodes are ready and their GPUs left to Tidegate"
    if is_secret:
        advice = "ask the operator of this cluster for what `secrets` names"
    return f"Kubernetes says: {why or 'nothing'}; {advice}", not is_secret


def differing(ahead_s: float) -> str:
    """Say by how much Kubernetes' clock differs from ours, if it does: leases end by both."""
    if abs(ahead_s) <= APART_S:
        return ""
    where = "ahead of" if ahead_s > 0.0 else "behind"
    words = f"; Kubernetes' clock is {abs(ahead_s):.0f} s {where} the agent's"
    return f"{words}: set right the one that is wrong"


def _end(status: Json) -> End | None:
    for container in status.get("containerStatuses") or ():
        ended = container.get("state", {}).get("terminated")
        if ended and container["name"] == WORKER:
            code = int(ended.get("exitCode", 0))
            return End(code, ended.get("reason") or "", ended.get("message") or "")
    return None


def _disrupted(said: Json) -> str | None:
    for one in _conditions(said):
        if one["type"] == "DisruptionTarget" and one.get("status") == "True":
            return f"{one.get('reason', '')}: {one.get('message', '')}"
    status = said.get("status", {})
    if status.get("phase") == "Failed" and status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}"
    return None
