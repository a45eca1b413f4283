"""One run on Kubernetes: its Job is created once, unsuspended, placed, followed, and deleted.

A missing answer, or an object that the informer does not show, proves nothing: a run is over when
its Job is complete, or when the API itself says that neither the Job nor any Pod of it is left. A
Pod that is being deleted still has its GPUs.
"""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cloud_agent.clusters.attempt import Attempt as ClusterAttempt, Work
from cloud_agent.kubernetes.api import Api, Away, Json, Refused
from cloud_agent.kubernetes.body import (
    SAID,
    SAVE_REQUEST,
    TOLD,
    job_body,
    job_name,
    nodes_of,
    placed,
    progress_name,
    selector,
)
from cloud_agent.kubernetes.informer import View
from cloud_agent.kubernetes.objects import (
    APART_S,
    End,
    JobSeen,
    PodSeen,
    differing,
    hindered,
    pod_seen,
)
from cloud_agent.kubernetes.record import Record, load
from cloud_agent.options import KubernetesOptions
from runtime.durable import write_file
from runtime.executors.attempt import Outcome
from runtime.executors.folder import CHECKPOINTS, WORK

_log = logging.getLogger(__name__)
#: How often Kubernetes may refuse a Job before the run fails.
_REFUSALS = 3
#: When a worker fails, the others get this grace: they would wait for it for ever.
_FAILED_GRACE_S = 10.0
#: With 0 Kubernetes would forget a Pod at once, while its processes may be alive.
_GRACE_MIN_S = 1
_ERROR_MAX = 1000
_DELETED = "somebody other than the agent deleted its Job"
_GIVEN_UP = (
    "Kubernetes gave the Job up: the agent's lease ended, or Pods of it were deleted, or failed "
    "unseen"
)
_RESTARTED = "the agent was restarted while it deleted the workers"


@dataclass(slots=True)
class _Deletion:
    """When a Pod was deleted, and by when it must be gone."""

    at_s: float
    by_s: float


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all runs share: the API, the informer's view, the options and the lease."""

    api: Api
    view: Callable[[], View | None]
    options: KubernetesOptions
    #: Until when Pods may run, in seconds since 1970; None: no lease was given.
    lease_s: Callable[[], float | None] = lambda: None


@dataclass(slots=True)
class _PodHistory:
    """What the informer has shown of workers; it forgets that with their Pods."""

    ends: dict[int, End] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    disrupted: dict[int, str] = field(default_factory=dict)
    #: Workers whose Pods were being deleted while they ran.
    deleted: set[int] = field(default_factory=set)

    def note(self, pods: Iterable[PodSeen]) -> None:
        for pod in pods:
            if pod.rank in self.ends:
                continue  # what becomes of a Pod after its worker's end undoes nothing
            if pod.node is not None:
                self.nodes[pod.rank] = pod.node
            if pod.end is not None:
                self.ends[pod.rank] = pod.end
            if pod.disrupted is not None:
                self.disrupted.setdefault(pod.rank, pod.disrupted)
            if pod.leaves and not pod.is_over:
                self.deleted.add(pod.rank)

    @property
    def is_disturbed(self) -> bool:
        """Whether a worker was sent away while it ran."""
        return bool(self.deleted or self.disrupted)

    def missing(self, pods: list[PodSeen]) -> int | None:
        """Name a worker whose Pod was deleted while it ran, or is gone without an end seen."""
        there = {pod.rank for pod in pods}
        gone = self.deleted | (self.nodes.keys() - there - self.ends.keys())
        return min(gone, default=None)

    def failure(self) -> tuple[str, bool] | None:
        """Name the worker that failed, how, and whether a retry makes sense."""
        bad = {rank: end for rank, end in self.ends.items() if end.code != 0}
        for rank, end in bad.items():  # the first that was seen to end
            where = f"worker {rank} on {self.nodes.get(rank, 'no node')}"
            return f"{where} {end.words()}", all(end.runnable for end in bad.values())
        for rank, why in sorted(self.disrupted.items()):
            return f"Kubernetes ended worker {rank} by itself: {why}", True
        return None


class Attempt(ClusterAttempt):
    """The run of one epoch on Kubernetes."""

    def __init__(self, context: RunContext, work: Work) -> None:
        self._nodes, self._name = nodes_of(work), job_name(work)
        super().__init__(work, [progress_name(rank) for rank in range(len(self._nodes))])
        self._context = context
        self._record: Record | None = load(work.folder)
        self.ended = None if self._record is None else self._record.outcome
        if self._record is None and work.program.secrets and work.tenant is None:
            words = "secrets: an agent keeps them by tenant, and the job names none"
            self.ended = Outcome(False, words, retriable=False, ran=False)
        self._history = _PodHistory()
        self._refusals, self._retry_s = 0, -math.inf
        #: Since when it waits for its Pods to run, and what keeps them from it.
        self._waits_since_s: float | None = None
        self._waits_for = ""
        self._deletions: dict[str, _Deletion] = {}
        #: The deadline that was last set; the informer may not show it yet.
        self._deadline_s: int | None = None

    @property
    def uid(self) -> str | None:
        """The uid of its Job; None: it has none yet."""
        return None if self._record is None else self._record.uid

    def hear(self, heard: Iterable[PodSeen]) -> None:
        """Note what was shown of Pods since the last look, also of those that are gone by now."""
        self._history.note(self._own(heard))

    def save(self) -> None:
        record = self._record
        if record is not None:
            record.wishes += 1
            record.write(self.folder)
            write_file(self.folder / SAVE_REQUEST, f"{record.wishes}\n".encode(), synced=False)

    def advance(self, now_s: float, leave_by_s: float | None) -> None:
        if self.ended is not None:
            return
        view = self._context.view()
        try:
            if self._record is None:
                self._submit(view, now_s, is_unwanted=leave_by_s is not None)
            elif view is not None:
                self._follow(self._record, view, now_s, leave_by_s)
        except Away:
            return  # tried again at the next call; the informer notices too
        except Refused as refused:
            # 404, 409: an object is gone or has changed, which the informer will show.
            if refused.status not in (404, 409):
                self._waits_for = str(refused)
                _log.warning("Kubernetes refuses what %s needs: %s", self._name, refused)

    # --- begin ---

    def _submit(self, view: View | None, now_s: float, *, is_unwanted: bool) -> None:
        """Create the Job, unless it exists: an earlier answer may have been lost."""
        if is_unwanted:
            # A Job that was created is still suspended. If it exists, or appears, it is an orphan.
            self.ended = Outcome(False, "it was stopped before it began", ran=False)
            return
        if view is None or now_s < self._retry_s:
            return
        for name in (CHECKPOINTS, WORK, SAID, TOLD):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        try:
            uid = self._create()
        except (Refused, ValueError) as error:
            self._refusals += 1
            self._retry_s = now_s + self._refusals
            if self._refusals >= _REFUSALS or isinstance(error, ValueError):
                words = f"Kubernetes does not take the Job: {error}"
                self.ended = Outcome(False, words[:_ERROR_MAX], ran=False)
            return
        if uid is not None:
            record = Record(uid)
            record.write(self.folder)
            self._record = record  # only now: without its file it is not to run

    def _create(self) -> str | None:
        """Give the Job's uid; None: the name is not free yet."""
        api, work = self._context.api, self.work
        body = job_body(work, self._context.options)
        try:
            return str(api.create_job(body)["metadata"]["uid"])
        except Refused as refused:
            if refused.status != 409:
                raise
        there = api.job(self._name)
        if there is None or "deletionTimestamp" in there["metadata"]:
            return None
        marks = body["metadata"]["annotations"].items()
        if not marks <= (there["metadata"].get("annotations") or {}).items():
            raise ValueError(f"a Job {self._name} exists that is not this agent's: delete it")
        return str(there["metadata"]["uid"])

    # --- follow ---

    def _follow(self, record: Record, view: View, now_s: float, leave_by_s: float | None) -> None:
        job = next((one for one in view.jobs if one.uid == record.uid), None)
        pods = self._own(view.pods)
        self._history.note(pods)
        self.runs, is_unwanted = False, leave_by_s is not None
        if job is not None and not is_unwanted:
            self._keep_lease(job, now_s)
        # Workers that somebody else sends away exit with 0, too, and then their Job is complete.
        is_disturbed = self._history.is_disturbed or (job is not None and job.leaves)
        is_ours = record.cause is None and (is_unwanted or not is_disturbed)
        # Pods are watched apart from Jobs: that they were sent away may not be shown yet.
        is_behind = any(not pod.is_over for pod in pods if pod.owner)
        if job is not None and job.complete and is_ours and not is_behind:
            self._end(record, Outcome(True))
        elif job is None and not pods:
            self._look_whether_gone(record, is_unwanted=is_unwanted)
        elif leave_by_s is not None:
            self._terminate(record, job, pods, now_s, leave_by_s)
        elif record.cause is not None or self._find_cause(record, job, pods, now_s):
            self._terminate(record, job, pods, now_s, now_s + _FAILED_GRACE_S)
        elif self._has_begun(record, pods, now_s):
            self.runs = True
        elif job is not None and not record.released:
            self._release(record, job, view, now_s)
        else:
            self._place(pods)

    def _own(self, pods: Iterable[PodSeen]) -> list[PodSeen]:
        """Pick the Pods of this run; they have no owner if their Job was deleted without them."""
        return [one for one in pods if one.rank < len(self._nodes) and self._has(one)]

    def _has(self, pod: PodSeen) -> bool:
        """Whether it is of this run, whose Job may have been deleted without it."""
        if pod.owner:
            return pod.owner == self.uid
        is_ours = pod.folder_id in ("", self.work.folder_id)
        return is_ours and (pod.job, pod.epoch) == self.run

    def _find_cause(
        self, record: Record, job: JobSeen | None, pods: list[PodSeen], now_s: float
    ) -> bool:
        """Tell whether it failed, or somebody else ended it; record why."""
        failure = self._history.failure()
        gone = self._history.missing(pods)
        if failure is not None:
            record.cause, record.retriable = failure
        elif (job is None or job.leaves) and not record.sent_away:
            record.cause = _DELETED
        elif gone is not None and not record.sent_away:
            record.cause = f"somebody other than the agent deleted the Pod of worker {gone}"
        elif job is not None and job.failed:
            clocks = differing(self._ahead_s(now_s))
            record.cause = _RESTARTED if record.sent_away else _GIVEN_UP + clocks
        elif job is not None and record.released and self._is_suspended(job):
            record.cause = "somebody other than the agent suspended its Job"
        else:
            return False
        record.cause = record.cause[:_ERROR_MAX]
        record.write(self.folder)
        return True

    def _release(self, record: Record, job: JobSeen, view: View, now_s: float) -> None:
        """Unsuspend the Job, once no other epoch of this job exists."""
        there = {(one.job, one.epoch) for one in view.jobs}
        there |= {(one.job, one.epoch) for one in view.pods}
        if not any(name == self.work.job for name, _ in there - {self.run}):
            self._let_run(job, now_s, {"suspend": False})
            record.released = True
            record.write(self.folder)

    def _keep_lease(self, job: JobSeen, now_s: float) -> None:
        """Have Kubernetes end the Job with the agent's lease, in case the agent is gone by then.

        It counts by its own clock. A Job began later by ours where that is behind; where it is
        ahead, ours may be wrong, and the shorter lease holds.
        """
        if job.began_s is not None:
            behind_s = -self._ahead_s(now_s)
            self._let_run(job, job.began_s + (behind_s if behind_s > APART_S else 0.0), {})

    def _ahead_s(self, now_s: float) -> float:
        """Give how far Kubernetes' clock is ahead of ours, as far as is known."""
        return (self._context.api.server_s() or now_s) - now_s

    def _let_run(self, job: JobSeen, since_s: float, changes: Json) -> None:
        """Set the Job's deadline if it has changed, together with other changes."""
        lease_s = self._context.lease_s()
        deadline_s = None if lease_s is None else max(1, math.ceil(lease_s - since_s))
        known_s = max(self._deadline_s or 0, job.deadline_s or 0)
        if deadline_s is not None and deadline_s > known_s:
            changes = {**changes, "activeDeadlineSeconds": deadline_s}
            known_s = deadline_s
        if changes:
            self._context.api.change(
                "jobs", job.name, {"metadata": {"uid": job.uid}, "spec": changes}
            )
            self._deadline_s = known_s  # only now: one that did not arrive is set again

    def _place(self, pods: list[PodSeen]) -> None:
        """Give each Pod the node that was chosen for it."""
        for pod in pods:
            if pod.gated and not pod.leaves:
                self._context.api.change("pods", pod.name, placed(self._nodes[pod.rank]))

    def _has_begun(self, record: Record, pods: list[PodSeen], now_s: float) -> bool:
        """Whether all Pods run, or have run; after a limit the run has failed."""
        limit_s = self._context.options.pending_timeout_s
        begun = {pod.rank for pod in pods if pod.phase != "Pending"} | self._history.ends.keys()
        if len(begun) == len(self._nodes):
            return True
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        obstacles = [pod.waits_for for pod in pods if pod.waits_for is not None and not pod.gated]
        self._waits_for = obstacles[0] if obstacles else self._waits_for
        if now_s - self._waits_since_s > limit_s:
            has_secrets = bool(self.work.program.secrets)
            words, record.retriable = hindered(self._waits_for, has_secrets=has_secrets)
            record.cause = f"its Pods do not all run after {limit_s:g} s, {words}"[:_ERROR_MAX]
            record.write(self.folder)
        return False

    def _is_suspended(self, job: JobSeen) -> bool:
        """Ask the API itself: the informer may show what was before the release."""
        if not job.suspended:
            return False
        now = self._context.api.job(job.name)
        return now is not None and bool(now["spec"].get("suspend"))

    # --- end ---

    def _terminate(
        self,
        record: Record,
        job: JobSeen | None,
        pods: list[PodSeen],
        now_s: float,
        leave_by_s: float,
    ) -> None:
        """Delete the Pods, which take a grace, then the Job, which takes none."""
        if not record.sent_away:
            record.sent_away = True  # so that the next agent knows that the agent deleted it
            record.write(self.folder)
        usual_s = now_s + self._context.options.grace_s
        by_s = usual_s if leave_by_s == math.inf else max(leave_by_s, now_s)
        for pod in pods:
            deletion = self._deletions.get(pod.uid)
            if pod.is_over and pod.owner:
                continue  # it goes with its Job; without one it would stay for ever
            if deletion is not None and by_s > deletion.by_s - _GRACE_MIN_S:
                continue
            since_s = now_s if deletion is None else deletion.at_s
            grace_s = max(_GRACE_MIN_S, math.ceil(by_s - since_s))
            self._context.api.delete_pod(pod.name, pod.uid, grace_s)
            self._deletions[pod.uid] = _Deletion(since_s, by_s)
        if job is not None and not job.leaves:
            self._context.api.delete_job(job.name, job.uid)

    def _look_whether_gone(self, record: Record, *, is_unwanted: bool) -> None:
        """Ask the API itself whether it is gone: the informer may lag behind."""
        api, labels = self._context.api, selector(self._context.options.agent, self.work)
        # By its labels: an earlier release gave its Job another name.
        if any(job["metadata"]["uid"] == record.uid for job in api.now("jobs", labels)):
            return
        pods = (pod_seen(said) for said in api.now("pods", labels))
        if any(pod is None or self._has(pod) for pod in pods):
            return
        ends = self._history.ends
        all_well = len(ends) == len(self._nodes) and all(end.code == 0 for end in ends.values())
        if record.cause is not None:
            self._end(record, Outcome(False, record.cause, record.retriable))
        elif is_unwanted and all_well:
            self._end(record, Outcome(True))
        else:
            words = _RESTARTED if record.sent_away else _DELETED
            self._end(record, Outcome(False, *(self._history.failure() or (words, True))))

    def _end(self, record: Record, outcome: Outcome) -> None:
        record.outcome = outcome
        record.write(self.folder)
        self.ended = outcome
