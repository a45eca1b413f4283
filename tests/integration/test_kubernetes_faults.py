"""A gang on Kubernetes runs once, whatever breaks: agent, API server, node, somebody's hand."""

import signal
import time

import pytest

from cloud_agent.clusters.attempt import Work
from cloud_agent.clusters.folder import SharedFolder
from runtime.core import GangCompleted, GangFailed, GangStarted, GangStopped
from runtime.executors.gang_record import StartedRun
from tests.kubernetes_bed import KubernetesBench
from tests.patience import wait_until
from tests.workers import TRAINER, python, shell

pytestmark = pytest.mark.slow

EVEN = {"n1": (0, 1), "n2": (0, 1)}


def begun(kube: KubernetesBench) -> str:
    """Have a gang that trains; give the name of its Job."""
    kube.start(python(TRAINER), EVEN)
    kube.until(lambda: kube.step() >= 5)
    (job,) = kube.plane.jobs()
    return str(job["metadata"]["name"])


def times_begun(kube: KubernetesBench, epoch: int = 1) -> int:
    return kube.log(epoch).count("goes on from")


def is_alive(kube: KubernetesBench, name: str) -> bool:
    pods = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in kube.plane.pods()}
    return pods.get(name) in ("Pending", "Running")


def created(kube: KubernetesBench, job: str = "j") -> str:
    """Have the Job of epoch 1 created, as by an agent that dies at that moment; give its uid."""
    from cloud_agent.kubernetes.body import job_body

    folder_id = kube.executor._folder.id
    work = Work(job, python(TRAINER), StartedRun(1, EVEN, 0, None), kube.run(1, job), folder_id)
    return str(kube.plane.create_job(job_body(work, kube.options))["metadata"]["uid"])


def test_agent_dies_before_it_writes_down_what_it_created(kube: KubernetesBench) -> None:
    uid, stray = created(kube), created(kube, "stray")
    kube.start(python(TRAINER), EVEN)
    kube.until(lambda: kube.step() >= 5)
    kube.until(lambda: [one["metadata"]["uid"] for one in kube.plane.jobs()] == [uid])
    assert stray != uid
    assert times_begun(kube) == 1


def test_agent_dies_at_any_moment_of_the_start(kube: KubernetesBench) -> None:
    kube.start(python(TRAINER), EVEN)
    record = kube.run() / "kubernetes.json"
    for moment in (
        record.exists,
        lambda: '"released": true' in record.read_text(),
        kube.plane.pods,
    ):
        kube.until(moment)
        kube.again()
    kube.until(lambda: kube.step() >= 5)
    assert len(kube.plane.jobs()) == 1
    assert times_begun(kube) == 1


@pytest.mark.parametrize("again", [True, False])
def test_agent_is_restarted_while_the_workers_leave(kube: KubernetesBench, again: bool) -> None:
    slow = "trap 'sleep 3; exit 0' TERM; while :; do sleep 0.1; done"
    kube.start(shell(slow), {"n1": (0,)})
    kube.hears(GangStarted)
    kube.stop()
    kube.until(lambda: any("deletionTimestamp" in one["metadata"] for one in kube.plane.pods()))
    kube.again()
    kube.until(lambda: kube.executor.away is None)
    until_s = time.monotonic() + 1.0
    kube.until(lambda: time.monotonic() > until_s)
    if again:  # as an agent says what it wished before
        kube.stop()
        assert kube.hears(GangStopped).step == 0
        assert not kube.all(GangFailed)
    else:
        assert "restarted while it deleted the workers" in kube.hears(GangFailed).error
    assert kube.plane.pods() == kube.plane.jobs() == []


def test_evicted_it_fails_with_kubernetes_words(kube: KubernetesBench) -> None:
    begun(kube)
    kube.plane.evict(kube.plane.pods()[0]["metadata"]["name"])
    kube.fails("by itself: EvictionByEvictionAPI")
    assert kube.plane.pods() == kube.plane.jobs() == []


def test_evicted_while_its_folder_does_not_answer_it_fails_in_the_same_words(
    kube: KubernetesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(kube)
    with monkeypatch.context() as silent:
        silent.setattr(SharedFolder, "look", lambda _: False)
        name = kube.plane.pods()[0]["metadata"]["name"]
        kube.plane.evict(name)
        wait_until(lambda: not is_alive(kube, name), "it does not leave")
    kube.fails("by itself: EvictionByEvictionAPI")
    assert kube.plane.pods() == kube.plane.jobs() == []


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_job_deleted_behind_our_back_fails_retriably_when_all_is_gone(
    kube: KubernetesBench, policy: str
) -> None:
    kube.plane.delete_job(begun(kube), policy)
    assert kube.fails().error == "somebody other than the agent deleted its Job"
    assert kube.plane.pods() == kube.plane.jobs() == []
    assert times_begun(kube) == 1


def test_pod_deleted_behind_our_back_fails_retriably_when_all_is_gone(
    kube: KubernetesBench,
) -> None:
    begun(kube)
    (pod,) = (one for one in kube.plane.pods() if one["metadata"]["name"].split("-")[-2] == "1")
    kube.plane.delete_pod(pod["metadata"]["name"])
    assert kube.fails().error == "somebody other than the agent deleted the Pod of worker 1"
    assert kube.plane.pods() == kube.plane.jobs() == []


def test_job_deleted_while_the_agent_is_away(kube: KubernetesBench) -> None:
    name = begun(kube)
    kube.executor.close()
    kube.plane.delete_job(name)
    wait_until(lambda: not kube.plane.pods(), "its Pods stay")
    assert kube.again() == ("j",)
    assert kube.hears(GangFailed).error == "somebody other than the agent deleted its Job"
    assert kube.plane.jobs() == []  # it did not get another


def test_suspended_by_somebody_it_fails_and_runs_no_second_time(kube: KubernetesBench) -> None:
    kube.plane.change_job(begun(kube), {"spec": {"suspend": True}})
    assert kube.hears(GangFailed).error.startswith("somebody other than the agent ")
    assert kube.plane.pods() == kube.plane.jobs() == []
    assert times_begun(kube) == 1


def test_finished_while_the_agent_is_away(kube: KubernetesBench) -> None:
    kube.start(shell("sleep 1"), {"n1": (0,)}, job="good", total_steps=3)
    kube.start(shell("sleep 1; echo broken; exit 5"), {"n2": (0,)}, job="bad")
    kube.hears(GangStarted, 2)
    kube.executor.close()

    def over() -> bool:
        found = [one["status"].get("conditions") or [] for one in kube.plane.jobs()]
        return sum(len(conditions) for conditions in found) >= 2

    wait_until(over, "the Jobs do not end")
    assert kube.again() == ("bad", "good")
    assert kube.hears(GangCompleted) == GangCompleted("good", 1, 3)
    assert kube.hears(GangFailed).error == "worker 0 on n2 ended with exit code 5: broken"


def test_api_server_away_proves_nothing_and_the_gang_trains_on(kube: KubernetesBench) -> None:
    begun(kube)
    kube.plane.signal("kube-apiserver", signal.SIGKILL)
    kube.until(lambda: kube.executor.away is not None)
    before = kube.step()
    kube.until(lambda: kube.step() > before + 20)
    kube.stop(grace_s=5.0)
    until_s = time.monotonic() + 8.0
    kube.until(lambda: time.monotonic() > until_s)
    assert not kube.all(GangStopped)
    # Nothing can be followed from where the executor was: it has to list anew.
    kube.plane.forget_history()
    kube.plane.compose("up")
    assert kube.hears(GangStopped).step > before
    assert not kube.all(GangFailed)
    assert times_begun(kube) == 1
    assert kube.plane.pods() == kube.plane.jobs() == []


def test_older_epoch_is_found_and_gone_before_the_newer_begins(kube: KubernetesBench) -> None:
    begun(kube)
    kube.executor.close()
    (kube.options.root / "held" / "j.json").unlink()  # as if its agent had never been ours
    assert kube.again() == ()
    kube.start(python(TRAINER), {"n1": (0,)}, epoch=4)
    kube.until(lambda: any(one.epoch == 4 for one in kube.all(GangStarted)))
    assert [one["metadata"]["labels"]["tidegate.io/epoch"] for one in kube.plane.jobs()] == ["4"]


def test_what_kubernetes_refuses_fails_with_its_words(kube: KubernetesBench) -> None:
    kube.options = kube.options.model_copy(update={"resources_per_gpu": {"cpu": "1x"}})
    kube.again()
    kube.start(shell("true"), {"n1": (0,)})
    failed = kube.hears(GangFailed)
    assert "Kubernetes does not take the Job: " in failed.error
    assert "quantities must match" in failed.error


def test_name_that_a_job_of_somebody_else_has_is_left_alone(kube: KubernetesBench) -> None:
    uid = created(kube)
    (job,) = kube.plane.jobs()
    theirs = {"tidegate.io/agent": "another"}
    changes = {"metadata": {"labels": theirs, "annotations": theirs}}
    kube.plane.change_job(job["metadata"]["name"], changes)
    kube.start(python(TRAINER), EVEN)
    assert "that is not this agent's: delete it" in kube.hears(GangFailed).error
    assert [one["metadata"]["uid"] for one in kube.plane.jobs()] == [uid]


def test_api_that_forbids_says_so(kube: KubernetesBench) -> None:
    kube.options = kube.options.model_copy(update={"namespace": "kube-system"})
    kube.again()
    kube.start(shell("true"), {"n1": (0,)})
    kube.until(lambda: "forbidden" in (kube.executor.away or ""))
    assert not kube.said
