"""One run on Kubernetes: handed in once, released, placed, followed, sent away, until it is gone.

Nothing is concluded from silence, nor from what the mirror lacks: a run is over when its Job is
complete, or when the API itself says that neither the Job nor any Pod of it is left. A Pod that is
being deleted still has its GPUs.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from cloud_agent.clusters.attempt import Outcome, Progress
from cloud_agent.clusters.held import Started
from cloud_agent.kubernetes.api import Api, Away, Json, Refused
from cloud_agent.kubernetes.body import (
    SAID,
    TOLD,
    WISH,
    Work,
    job_body,
    placed,
    progress_name,
    selector,
)
from cloud_agent.kubernetes.mirror import View
from cloud_agent.kubernetes.objects import End, JobSeen, PodSeen
from cloud_agent.kubernetes.options import KubernetesOptions
from cloud_agent.kubernetes.record import Record, load
from runtime.executors.folder import CHECKPOINTS, WORK, replace_text

_log = logging.getLogger(__name__)
#: Refusals of a Job until they are final.
_REFUSALS = 3
#: When a worker fails, the others would wait for it for ever.
_FAILED_GRACE_S = 10.0
#: 0 would have Kubernetes forget a Pod at once, with its processes perhaps alive.
_GRACE_MIN_S = 1
_ERROR_MAX = 1000
_DELETED = "somebody other than the agent deleted its Job"
_GIVEN_UP = (
    "Kubernetes gave the Job up: the agent's lease ended, or Pods of it were deleted, or failed "
    "unseen"
)
_RESTARTED = "the agent was restarted while it sent the workers away"


@dataclass(slots=True)
class _Asked:
    """When a Pod was told to leave, and by when."""

    at_s: float
    by_s: float


@dataclass(slots=True)
class _Waits:
    """Since when something is so; None: it is not."""

    to_run_s: float | None = None
    to_speak_s: float | None = None
    why: str = ""


@dataclass(slots=True)
class _Refusals:
    count: int = 0
    again_s: float = -math.inf
    why: str = ""


@dataclass(frozen=True, slots=True)
class Desk:
    """What all runs share: the API, what it showed last, and the options."""

    api: Api
    view: Callable[[], View | None]
    options: KubernetesOptions
    #: Until when Pods may run, in seconds since 1970; None: no lease was given.
    lease_s: Callable[[], float | None] = lambda: None


@dataclass(slots=True)
class _Memory:
    """What the mirror has shown of workers, which it forgets with their Pods."""

    ends: dict[int, End] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    disrupted: dict[int, str] = field(default_factory=dict)

    def note(self, pods: list[PodSeen]) -> None:
        for pod in pods:
            if pod.node is not None:
                self.nodes[pod.rank] = pod.node
            if pod.end is not None:
                self.ends.setdefault(pod.rank, pod.end)
            if pod.disrupted is not None:
                self.disrupted.setdefault(pod.rank, pod.disrupted)

    def failure(self) -> tuple[str, bool] | None:
        """Say which worker failed and how, and whether trying again makes sense."""
        bad = {rank: end for rank, end in self.ends.items() if end.code != 0}
        for rank, end in bad.items():  # in the order in which they were seen to end
            where = f"worker {rank} on {self.nodes.get(rank, 'no node')}"
            return f"{where} {end.words()}", all(end.runnable for end in bad.values())
        for rank, why in sorted(self.disrupted.items()):
            return f"Kubernetes ended worker {rank} by itself: {why}", True
        return None


class Attempt:
    """The run of one epoch. All calls come from one thread."""

    def __init__(self, desk: Desk, work: Work, started: Started) -> None:
        self.started, self.folder = started, work.folder
        self.progress = Progress(work.folder, [progress_name(n) for n in range(len(work.nodes))])
        self.trains = False
        self._desk, self._work = desk, work
        self._record: Record | None = load(work.folder)
        self.ended: Outcome | None = None if self._record is None else self._record.outcome
        self._refusals, self._waits, self._memory = _Refusals(), _Waits(), _Memory()
        self._asked: dict[str, _Asked] = {}
        #: What Kubernetes was told last; the mirror may not show it yet.
        self._deadline_s: int | None = None

    @property
    def step(self) -> int:
        """How far it is known to be."""
        said = self.progress.step
        return self.started.step if said is None else max(self.started.step, said)

    @property
    def run(self) -> tuple[str, int]:
        """The job and epoch that it is of."""
        return self._work.job, self._work.epoch

    @property
    def uid(self) -> str | None:
        """The uid of its Job; None: it has none yet."""
        return None if self._record is None else self._record.uid

    def save(self) -> None:
        """Ask the workers for a checkpoint; they go on."""
        record = self._record
        if record is not None:
            record.wishes += 1
            record.write(self.folder)
            replace_text(self.folder / WISH, f"{record.wishes}\n")

    def turn(self, now_s: float, leave_by_s: float | None) -> None:
        """Do what is next; with `leave_by_s`, see that it is gone by then.

        Raises:
            OSError: the shared folder does not answer; nothing is lost.
        """
        if self.ended is not None:
            return
        view = self._desk.view()
        try:
            if self._record is None:
                self._hand_in(view, now_s, is_unwanted=leave_by_s is not None)
            elif view is None:
                self._note_start(now_s, is_running=False)
            else:
                self._follow(self._record, view, now_s, leave_by_s)
        except Away:
            return  # asked again at the next turn; the mirror notices too
        except Refused as refused:
            # Something was gone or had changed, which the mirror shows next; or it is forbidden.
            if refused.status not in (404, 409):
                self._waits.why = str(refused)
                _log.warning("Kubernetes refuses what %s needs: %s", self._work.name, refused)

    # --- begin ---

    def _hand_in(self, view: View | None, now_s: float, *, is_unwanted: bool) -> None:
        """Create the Job, unless it is there: an earlier answer may have been lost."""
        if is_unwanted:
            # Whatever was created was never released. If it is there, or comes yet, it is a stray.
            self.ended = Outcome(False, "it was called off before it began")
            return
        refusals = self._refusals
        if view is None or now_s < refusals.again_s:
            return
        for name in (CHECKPOINTS, WORK, SAID, TOLD):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        try:
            uid = self._create()
        except (Refused, ValueError) as error:
            refusals.count, refusals.why = refusals.count + 1, str(error)
            refusals.again_s = now_s + refusals.count
            if refusals.count >= _REFUSALS or isinstance(error, ValueError):
                error_text = f"Kubernetes does not take the Job: {refusals.why}"
                self.ended = Outcome(False, error_text[:_ERROR_MAX])
            return
        if uid is not None:
            self._record = Record(uid)
            self._record.write(self.folder)

    def _create(self) -> str | None:
        """Give the Job's uid; None: the name is not free yet."""
        api, work = self._desk.api, self._work
        body = job_body(work, self._desk.options)
        try:
            return str(api.create_job(body)["metadata"]["uid"])
        except Refused as refused:
            if refused.status != 409:
                raise
        there = api.job(work.name)
        if there is None or "deletionTimestamp" in there["metadata"]:
            return None
        marks = body["metadata"]["annotations"].items()
        if not marks <= (there["metadata"].get("annotations") or {}).items():
            raise ValueError(f"there is a Job {work.name} that is none of this agent's: delete it")
        return str(there["metadata"]["uid"])

    # --- follow ---

    def _follow(self, record: Record, view: View, now_s: float, leave_by_s: float | None) -> None:
        job = next((one for one in view.jobs if one.uid == record.uid), None)
        # Who deletes a Job may leave its Pods behind (`--cascade=orphan`): they have no owner then.
        pods = [
            one
            for one in view.pods
            if one.owner == record.uid or (not one.owner and (one.job, one.epoch) == self.run)
        ]
        self._memory.note(pods)
        is_unwanted = leave_by_s is not None
        if job is not None and not is_unwanted:
            self._keep_lease(job)
        # Workers that somebody else sent away end well too, and make a deleted Job complete.
        is_ours = record.cause is None and (is_unwanted or job is None or not job.leaves)
        if job is not None and job.complete and is_ours:
            self._note_start(now_s, is_running=False)
            self._end(record, Outcome(True))
        elif job is None and not pods:
            self._look_whether_gone(record, is_unwanted=is_unwanted)
        elif leave_by_s is not None:
            self._send_away(record, job, pods, now_s, leave_by_s)
        elif record.cause is not None or self._find_cause(record, job, pods):
            self._send_away(record, job, pods, now_s, now_s + _FAILED_GRACE_S)
        elif self._has_begun(record, pods, now_s):
            self._note_start(now_s, is_running=True)
        elif job is not None and not record.released:
            self._release(record, job, view, now_s)
        else:
            self._place(pods)

    def _find_cause(self, record: Record, job: JobSeen | None, pods: list[PodSeen]) -> bool:
        """Tell whether it has failed, or somebody else has ended it; note why."""
        failure = self._memory.failure()
        gone = next((pod for pod in pods if pod.leaves and not pod.is_over), None)
        if failure is not None:
            record.cause, record.retriable = failure
        elif (job is None or job.leaves) and not record.sent_away:
            record.cause = _DELETED
        elif gone is not None and not record.sent_away:
            record.cause = f"somebody other than the agent deleted the Pod of worker {gone.rank}"
        elif job is not None and job.failed:
            record.cause = _RESTARTED if record.sent_away else _GIVEN_UP
        elif job is not None and record.released and self._is_suspended(job):
            record.cause = "somebody other than the agent suspended its Job"
        else:
            return False
        record.cause = record.cause[:_ERROR_MAX]
        record.write(self.folder)
        return True

    def _release(self, record: Record, job: JobSeen, view: View, now_s: float) -> None:
        """Let it run, once nothing of another epoch of this job is there."""
        there = {(one.job, one.epoch) for one in view.jobs}
        there |= {(one.job, one.epoch) for one in view.pods}
        if not any(name == self._work.job for name, _ in there - {self.run}):
            self._let_run(job, now_s, {"suspend": False})
            record.released = True
            record.write(self.folder)

    def _keep_lease(self, job: JobSeen) -> None:
        """Have Kubernetes end the Job with the agent's lease, should the agent be gone by then."""
        if job.began_s is not None:
            self._let_run(job, job.began_s, {})

    def _let_run(self, job: JobSeen, since_s: float, changes: Json) -> None:
        """Tell Kubernetes until when it runs, if that or something else has changed."""
        lease_s = self._desk.lease_s()
        deadline_s = None if lease_s is None else max(1, math.ceil(lease_s - since_s))
        known_s = max(self._deadline_s or 0, job.deadline_s or 0)
        if deadline_s is not None and deadline_s > known_s:
            changes = {**changes, "activeDeadlineSeconds": deadline_s}
            self._deadline_s = deadline_s
        if changes:
            self._desk.api.change_job(job.name, {"metadata": {"uid": job.uid}, "spec": changes})

    def _place(self, pods: list[PodSeen]) -> None:
        """Give each Pod the node that was chosen for it."""
        for pod in pods:
            if pod.gated and not pod.leaves:
                self._desk.api.change_pod(pod.name, placed(self._work.nodes[pod.rank]))

    def _has_begun(self, record: Record, pods: list[PodSeen], now_s: float) -> bool:
        """Tell whether all Pods run; give it up after a limit."""
        waits, limit_s = self._waits, self._desk.options.pending_timeout_s
        if len([pod for pod in pods if pod.phase != "Pending"]) == len(self._work.nodes):
            return True
        waits.to_run_s = now_s if waits.to_run_s is None else waits.to_run_s
        obstacles = [pod.waits_for for pod in pods if pod.waits_for is not None and not pod.gated]
        waits.why = obstacles[0] if obstacles else waits.why
        if now_s - waits.to_run_s > limit_s:
            record.cause = (
                f"its Pods do not all run after {limit_s:g} s, Kubernetes says: "
                f"{waits.why or 'nothing'}; see that the nodes are ready and their GPUs left to "
                "Tidegate"
            )[:_ERROR_MAX]
            record.write(self.folder)
        return False

    def _is_suspended(self, job: JobSeen) -> bool:
        """Ask the API itself: the mirror may show what was before the release."""
        if not job.suspended:
            return False
        now = self._desk.api.job(job.name)
        return now is not None and bool(now["spec"].get("suspend"))

    def _note_start(self, now_s: float, *, is_running: bool) -> None:
        """Tell whether it trains: at its first word; of a silent one, when it has lived a while."""
        waits = self._waits
        if is_running and waits.to_speak_s is None:
            waits.to_speak_s = now_s
        lived_s = -1.0 if waits.to_speak_s is None else now_s - waits.to_speak_s
        if self.progress.step is not None or lived_s >= self._desk.options.quiet_start_s:
            self.trains = True

    # --- end ---

    def _send_away(
        self,
        record: Record,
        job: JobSeen | None,
        pods: list[PodSeen],
        now_s: float,
        leave_by_s: float,
    ) -> None:
        """Delete the Pods with this grace, which only they can be given, then the Job."""
        if not record.sent_away:
            record.sent_away = True  # so that the next agent does not take it for another's deed
            record.write(self.folder)
        usual_s = now_s + self._desk.options.grace_s
        by_s = usual_s if leave_by_s == math.inf else max(leave_by_s, now_s)
        for pod in pods:
            asked = self._asked.get(pod.uid)
            if pod.is_over or (asked is not None and by_s > asked.by_s - _GRACE_MIN_S):
                continue
            since_s = now_s if asked is None else asked.at_s
            grace_s = max(_GRACE_MIN_S, math.ceil(by_s - since_s))
            self._desk.api.delete_pod(pod.name, pod.uid, grace_s)
            self._asked[pod.uid] = _Asked(since_s, by_s)
        if job is not None and not job.leaves:
            self._desk.api.delete_job(job.name, job.uid)

    def _look_whether_gone(self, record: Record, *, is_unwanted: bool) -> None:
        """Ask the API itself: the mirror may lag behind."""
        api, work = self._desk.api, self._work
        there = api.job(work.name)
        if there is not None and there["metadata"]["uid"] == record.uid:
            return
        if api.pods(selector(self._desk.options.agent, work)):
            return
        ends = self._memory.ends
        all_well = len(ends) == len(work.nodes) and all(end.code == 0 for end in ends.values())
        if record.cause is not None:
            self._end(record, Outcome(False, record.cause, record.retriable))
        elif is_unwanted and all_well:
            self._end(record, Outcome(True))
        else:
            words = _RESTARTED if record.sent_away else _DELETED
            self._end(record, Outcome(False, *(self._memory.failure() or (words, True))))

    def _end(self, record: Record, outcome: Outcome) -> None:
        record.outcome = outcome
        record.write(self.folder)
        self.ended = outcome
