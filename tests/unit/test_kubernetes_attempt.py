"""One run on Kubernetes, with an API that notes what it is asked."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from cloud_agent.clusters.attempt import Work
from cloud_agent.kubernetes.api import Api, Away, Json
from cloud_agent.kubernetes.attempt import Attempt, RunContext
from cloud_agent.kubernetes.executor import _Kubernetes
from cloud_agent.kubernetes.informer import Informer, View
from cloud_agent.kubernetes.objects import End, JobSeen, PodSeen, job_seen
from cloud_agent.kubernetes.record import Record, load
from cloud_agent.options import KubernetesOptions
from runtime.checkpoints.store import CheckpointStore
from runtime.core import Placement
from runtime.executors.gang_record import StartedRun
from schemas.programs import Program

NOW_S = 1_700_000_000.0
PLACES = {"n1": (0,)}
JOB = "n"
POD = PodSeen("p", "p", "u", "j", 1, "f", 0, "n1", "Running", False, False, None, None, None)
ENDED = replace(POD, phase="Succeeded", end=End(0, "Completed", ""))


class Notes:
    """Takes what is asked of the API."""

    def __init__(self) -> None:
        self.changes: list[Json] = []
        self.deleted: list[str] = []
        self.is_away = False
        self.server_ahead_s: float | None = None
        #: What the API itself has, as (uid, name).
        self.there: list[tuple[str, str]] = []
        self.their_pods: list[Json] = []

    def server_s(self) -> float | None:
        return None if self.server_ahead_s is None else NOW_S + self.server_ahead_s

    def create_job(self, body: Json) -> Json:
        return {"metadata": {"uid": "u"}}

    def change(self, kind: str, name: str, changes: Json) -> None:
        if self.is_away:
            raise Away("no answer")
        assert kind == ("jobs" if name == JOB else "pods"), "the API would know none of this name"
        self.changes.append(changes["spec"])

    def delete_pod(self, name: str, uid: str, grace_s: int) -> None:
        self.deleted.append(name)

    def delete_job(self, name: str, uid: str) -> None:
        self.deleted.append(name)

    def job(self, name: str) -> Json | None:
        return next((one for one in self.now("jobs", "") if one["metadata"]["name"] == name), None)

    def now(self, kind: str, selector: str) -> list[Json]:
        if kind == "pods":
            return self.their_pods
        return [{"metadata": {"uid": uid, "name": name}} for uid, name in self.there]


class Stand:
    """A run, what the API shows of it, and the agent's lease."""

    def __init__(
        self,
        folder: Path,
        places: Placement = PLACES,
        tenant: str | None = None,
        *,
        begins: bool = True,
        **more: Any,
    ) -> None:
        self.notes, self.view, self.lease_s = Notes(), View((), ()), NOW_S + 900.0
        store = CheckpointStore(f"file://{folder}/store")
        options = KubernetesOptions(root=folder, store=store, agent="a", volume={})
        api = cast(Api, self.notes)
        context = RunContext(api, lambda: self.view, options, lambda: self.lease_s)
        run = folder / "runs" / "j" / "1"
        started = StartedRun(1, places, 0, None)
        program = Program(argv=["true"], **more)
        self.attempt = Attempt(context, Work("j", program, started, run, "f", tenant))
        if begins:
            self.attempt.advance(NOW_S, None)

    def shows(
        self, *pods: PodSeen, complete: bool = False, after_s: float = 0.0, **more: Any
    ) -> None:
        """Let the API show the Job so, and take a turn."""
        seen = JobSeen(JOB, "u", "j", 1, "f", False, False, complete, False, **more)
        self.view = View((seen,), pods)
        self.attempt.advance(NOW_S + after_s, None)

    def is_gone(self) -> tuple[bool, str]:
        """Let nothing be left of it; tell how it ended."""
        self.view = View((), ())
        self.attempt.advance(NOW_S, None)
        assert self.attempt.ended is not None
        return self.attempt.ended.is_success, self.attempt.ended.error


def test_kubernetes_itself_ends_a_job_with_the_lease(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.shows()
    assert stand.notes.changes == [{"suspend": False, "activeDeadlineSeconds": 900}]
    stand.shows(began_s=NOW_S + 2.0, deadline_s=900)
    assert len(stand.notes.changes) == 1, "it is never made shorter"
    stand.lease_s += 300.0
    stand.shows(began_s=NOW_S + 2.0, deadline_s=900)
    stand.shows(began_s=NOW_S + 2.0, deadline_s=900)  # the informer lags behind
    stand.shows(began_s=NOW_S + 2.0, deadline_s=1198)
    assert stand.notes.changes[1:] == [{"activeDeadlineSeconds": 1198}]


def test_with_kubernetes_clock_an_hour_behind_no_job_outlives_the_lease(tmp_path: Path) -> None:
    """It ran on for that hour where the agent was gone, while the job ran elsewhere."""
    stand = Stand(tmp_path)
    stand.notes.server_ahead_s = -3600.0
    stand.shows()
    stand.lease_s += 300.0
    stand.shows(began_s=NOW_S + 2.0 - 3600.0, deadline_s=900)
    assert [one["activeDeadlineSeconds"] for one in stand.notes.changes] == [900, 1198]


def test_a_job_that_kubernetes_gave_up_is_told_with_clocks_that_differ(tmp_path: Path) -> None:
    for ahead_s, told in ((3600.0, "3600 s ahead of"), (-3600.0, "3600 s behind"), (9.0, "")):
        stand = Stand(tmp_path / f"{ahead_s}")
        stand.notes.server_ahead_s = ahead_s
        stand.shows()
        stand.view = View((replace(stand.view.jobs[0], failed=True),), ())
        stand.attempt.advance(NOW_S, None)
        _, error = stand.is_gone()
        assert error.startswith("Kubernetes gave the Job up")
        assert told in error
        assert ("clock" in error) == bool(told)


def test_a_deadline_that_did_not_arrive_is_set_again(tmp_path: Path) -> None:
    """Else it runs without one, for ever if the agent dies, while the job runs elsewhere."""
    stand = Stand(tmp_path)
    stand.notes.is_away = True
    stand.shows()
    assert stand.notes.changes == []
    stand.notes.is_away = False
    stand.shows(after_s=2.0)
    assert stand.notes.changes == [{"suspend": False, "activeDeadlineSeconds": 898}]
    stand.lease_s += 300.0
    stand.notes.is_away = True
    stand.shows(began_s=NOW_S + 3.0, deadline_s=898)
    stand.notes.is_away = False
    stand.shows(began_s=NOW_S + 3.0, deadline_s=898)
    assert stand.notes.changes[1:] == [{"activeDeadlineSeconds": 1197}]


def test_a_run_is_not_over_while_its_job_is_there_under_the_name_of_an_earlier_release(
    tmp_path: Path,
) -> None:
    """What the informer does not show may be there all the same, and its Pods may begin."""
    stand = Stand(tmp_path)
    stand.shows()
    stand.notes.there = [("u", "tidegate-j-1-5d55a7")]
    stand.view = View((), ())
    stand.attempt.advance(NOW_S, None)
    assert stand.attempt.ended is None
    stand.notes.there = [("another", "tidegate-j-1-5d55a7")]
    assert stand.is_gone() == (False, "somebody other than the agent deleted its Job")


def test_secrets_that_the_cluster_has_not_fail_the_job_for_good(tmp_path: Path) -> None:
    why = 'CreateContainerConfigError: secret "tidegate-red" not found'
    pod = replace(POD, phase="Pending", waits_for=why)
    for name, secrets in (("with", {"TOKEN": "hub"}), ("without", {})):
        stand = Stand(tmp_path / name, tenant="red", secrets=secrets)
        stand.shows(pod)
        stand.shows(pod, after_s=800.0)
        assert stand.attempt.ended is None, "somebody may be making it"
        stand.shows(pod, after_s=901.0)
        is_success, error = stand.is_gone()
        assert not is_success
        assert why in error
        assert stand.attempt.ended is not None
        assert stand.attempt.ended.retriable == (not secrets)


def test_secrets_of_no_tenant_are_refused_for_good(tmp_path: Path) -> None:
    ended = Stand(tmp_path, secrets={"TOKEN": "hub"}).attempt.ended
    assert ended is not None
    assert (ended.is_success, ended.retriable, ended.ran) == (False, False, False)
    assert ended.error == "secrets: an agent keeps them by tenant, and the job names none"


def test_pods_whose_job_was_deleted_without_them_are_sent_away(tmp_path: Path) -> None:
    """Kubernetes takes their owner from them; nobody else would end them, whatever the lease."""
    stand = Stand(tmp_path)
    stand.shows()
    pods = [
        replace(POD, name=name, uid=name, owner=owner, epoch=epoch)
        for name, owner, epoch in (("orphan", "", 1), ("other", "v", 1), ("earlier", "", 0))
    ]
    stand.view = View((), tuple(pods))
    stand.attempt.advance(NOW_S, None)
    assert stand.notes.deleted == ["orphan"]
    ended = replace(ENDED, name="ended", uid="ended", owner="")
    stand.view = View((), (ended,))
    stand.attempt.advance(NOW_S, None)
    assert stand.notes.deleted == ["orphan", "ended"], "else it is there for ever, and waited for"


def test_what_a_pod_was_between_two_looks_is_not_missed(tmp_path: Path) -> None:
    """It was evicted, its worker ended well, and it is gone: others would wait for it for ever."""
    stand = Stand(tmp_path)
    stand.shows(POD)
    why = "EvictionByEvictionAPI: "
    stand.attempt.hear([replace(POD, leaves=True, disrupted=why), replace(ENDED, leaves=True)])
    stand.shows()
    assert stand.is_gone() == (False, f"Kubernetes ended worker 0 by itself: {why}")


def test_who_was_sent_away_has_not_done_its_work_though_its_job_is_complete(
    tmp_path: Path,
) -> None:
    stand = Stand(tmp_path)
    stand.shows(POD)
    stand.attempt.hear([replace(POD, leaves=True), replace(ENDED, leaves=True)])
    stand.shows(replace(ENDED, leaves=True), complete=True)
    assert stand.attempt.ended is None
    words = "somebody other than the agent deleted the Pod of worker 0"
    assert stand.is_gone() == (False, words)


def test_a_pod_that_nobody_saw_end_and_that_is_gone_was_deleted(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.shows(POD)
    stand.shows()
    words = "somebody other than the agent deleted the Pod of worker 0"
    assert stand.is_gone() == (False, words)


def test_a_pod_that_is_cleared_away_after_its_end_is_nothing_to_worry_about(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.shows(POD)
    stand.shows(replace(ENDED, leaves=True))
    stand.shows()
    stand.shows(complete=True)
    assert stand.attempt.ended is not None
    assert stand.attempt.ended.is_success


def test_a_job_is_not_complete_before_its_pods_are_seen_to_have_ended(tmp_path: Path) -> None:
    """What is shown of Pods may lag behind: that they were sent away is to be heard first."""
    stand = Stand(tmp_path)
    stand.shows(POD)
    stand.shows(POD, complete=True)
    assert stand.attempt.ended is None
    stand.attempt.hear([replace(POD, leaves=True), replace(ENDED, leaves=True)])
    stand.shows(complete=True)
    words = "somebody other than the agent deleted the Pod of worker 0"
    assert stand.is_gone() == (False, words)


def test_what_becomes_of_a_pod_after_its_worker_has_ended_undoes_nothing(tmp_path: Path) -> None:
    """Who empties a node sends away what is left of Pods there, too."""
    stand = Stand(tmp_path)
    stand.shows(POD)
    stand.attempt.hear([ENDED, replace(ENDED, leaves=True, disrupted="EvictionByEvictionAPI: ")])
    stand.shows(complete=True)
    assert stand.attempt.ended is not None
    assert stand.attempt.ended.is_success


def test_a_gang_goes_on_when_the_pod_of_a_worker_that_ended_is_cleared_away(tmp_path: Path) -> None:
    stand = Stand(tmp_path, {"n1": (0,), "n2": (0,)})
    other = replace(POD, name="q", uid="q", rank=1, node="n2")
    stand.shows(replace(POD, phase="Pending"), other)
    stand.shows(replace(POD, phase="Pending"), other)
    stand.shows(ENDED, other, after_s=100.0)
    stand.shows(other, after_s=10_000.0)
    stand.shows(other, after_s=10_001.0)
    assert stand.notes.deleted == []


def test_a_pod_that_is_no_worker_of_the_gang_is_none_of_its(tmp_path: Path) -> None:
    """As one that was copied and changed by hand."""
    stand = Stand(tmp_path)
    stand.shows()
    copy = replace(POD, name="copy", uid="c", owner="", rank=7, phase="Pending", gated=True)
    stand.shows(copy)
    stand.shows(copy)
    assert stand.attempt.ended is None
    assert len(stand.notes.changes) == 1, "it is not placed either"


def test_a_job_says_when_it_began_and_how_long_it_may_run() -> None:
    notes = {"tidegate.io/job": "j", "tidegate.io/epoch": "1"}
    said: Json = {
        "metadata": {"name": "n", "uid": "u", "annotations": notes},
        "spec": {"activeDeadlineSeconds": 7},
        "status": {"startTime": "2023-11-14T22:13:20Z"},
    }
    seen = job_seen(said)
    assert seen is not None
    assert (seen.began_s, seen.deadline_s) == (NOW_S, 7)


class Shown:
    """An informer that shows this."""

    away: str | None = None

    def __init__(self, *jobs: JobSeen, pods: tuple[PodSeen, ...] = ()) -> None:
        self.shown = View(jobs, pods)

    def view(self) -> View:
        return self.shown


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[_Kubernetes]:
    """What an agent sees of a cluster."""
    store = CheckpointStore(f"file://{tmp_path}/store")
    made = _Kubernetes(KubernetesOptions(root=tmp_path, store=store, agent="a", volume={}))
    yield made
    made.close()


def test_an_agent_deletes_nothing_of_another_of_its_name(
    cluster: _Kubernetes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents of two cells may have one name in one namespace, and a folder each."""
    notes = Notes()
    job = JobSeen("mine", "u1", "j", 1, "mine", False, False, False, False)
    others = replace(job, name="others", uid="u2", folder_id="others")
    earlier = replace(job, name="earlier", uid="u3", folder_id="")
    pod = replace(POD, name="pod", owner="", folder_id="mine")
    their_pod = replace(pod, name="their-pod", folder_id="others")
    shown = Shown(job, others, earlier, pods=(pod, their_pod))
    cluster._informer = cast(Informer, shown)
    cluster.look("mine")
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "_api", notes)
        cluster.delete_orphans(set())
    assert notes.deleted == ["mine", "earlier", "pod"], "its own, and those of an earlier release"
    assert "Job others is of another agent of this name" in caplog.text


def test_what_an_agent_recorded_is_its_own_whatever_its_folder_is_called_now(
    cluster: _Kubernetes, tmp_path: Path
) -> None:
    """As after its mark was made anew by hand; to take it for gone would start it twice."""
    run = tmp_path / "runs" / "j" / "1"
    run.mkdir(parents=True)
    Record("u", released=True).write(run)
    program = Program(argv=["true"])
    cluster.attempt(Work("j", program, StartedRun(1, PLACES, 0, None), run, "new"))
    job = JobSeen("n", "u", "j", 1, "old", False, False, False, False)
    pod = replace(POD, folder_id="old")
    cluster._informer = cast(Informer, Shown(job, pods=(pod,)))
    cluster.look("new")
    assert cluster._view == View((job,), (pod,))


def test_a_run_is_over_though_a_pod_of_another_agents_run_is_there(tmp_path: Path) -> None:
    """It has the same name, job and epoch."""
    stand = Stand(tmp_path)
    stand.shows()
    notes = {"tidegate.io/job": "j", "tidegate.io/epoch": "1"}
    owners = [{"controller": True, "uid": "another"}]
    meta = {"name": "p", "uid": "p", "annotations": notes, "ownerReferences": owners}
    stand.notes.their_pods = [{"metadata": meta, "spec": {}}]
    assert stand.is_gone() == (False, "somebody other than the agent deleted its Job")


def test_a_job_that_the_full_folder_has_no_record_of_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was unsuspended; an agent that began then, after its end, ran it once more."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    stand = Stand(tmp_path, begins=False)
    with monkeypatch.context() as patched:
        patched.setattr("cloud_agent.kubernetes.record.write_json", full)
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                stand.shows()
        assert stand.notes.changes == []
    stand.shows()
    stand.shows()
    assert load(stand.attempt.folder) == Record("u", released=True)
    assert stand.notes.changes == [{"suspend": False, "activeDeadlineSeconds": 900}]


def test_a_record_is_read_by_the_release_before_and_by_the_next(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.shows()
    stand.shows(complete=True)
    folder = stand.attempt.folder
    file = folder / "kubernetes.json"
    said = orjson.loads(file.read_bytes())
    assert said["outcome"] == {"is_success": True, "error": "", "retriable": True}
    said["outcome"]["of_a_newer_release"] = said["of_a_newer_release"] = 1
    file.write_bytes(orjson.dumps(said))
    found = load(folder)
    assert found is not None
    assert found.outcome == stand.attempt.ended
    file.write_text("{}")
    with pytest.raises(OSError, match="uid is missing; move it away"):
        load(folder)
