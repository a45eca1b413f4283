"""What is said to Kubernetes, and what is read from it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud_agent.clusters.attempt import Work
from cloud_agent.kubernetes.body import job_body, job_name, label, selector
from cloud_agent.kubernetes.objects import End, job_seen, pod_seen
from cloud_agent.options import KubernetesOptions
from runtime.checkpoints.store import CheckpointStore
from runtime.core import Placement
from runtime.executors.folder import WORK
from runtime.executors.gang_record import StartedRun
from schemas.programs import Program

ROOT = Path("/srv/tidegate")
EVEN = {"n1": (0, 1), "n2": (4, 5)}
MARKS = {
    "tidegate.io/agent": "a",
    "tidegate.io/job": "j",
    "tidegate.io/epoch": "3",
    "tidegate.io/folder": "f",
}


def options(tmp_path: Path, root: Path = ROOT, **more: Any) -> KubernetesOptions:
    store = CheckpointStore(f"file://{tmp_path}")
    said = {"agent": "a", "volume": {"persistentVolumeClaim": {"claimName": "runs"}}, **more}
    return KubernetesOptions(root=root, store=store, **said)


def work(placement: Placement, **more: Any) -> Work:
    job, resume, root = more.pop("job", "j"), more.pop("resume", None), more.pop("root", ROOT)
    folder_id = more.pop("folder_id", "f")
    program = Program(argv=["run", "$HOME", "$$", "$(RANK)"], **more)
    started = StartedRun(3, placement, 0, resume)
    return Work(job, program, started, root / "runs" / "j" / "3", folder_id)


def test_gangs_of_one_name_of_two_agents_meet_at_two_ports() -> None:
    """They may share a host, as those of two cells' agents may, whose jobs have one name."""
    one, other = (work(EVEN, root=Path(f"/srv/{cell}")).port for cell in ("default", "b"))
    assert one != other
    assert one == work(EVEN, root=Path("/srv/default")).port
    assert all(20_000 <= port < 30_000 for port in (one, other))


def test_two_agents_name_their_jobs_apart(tmp_path: Path) -> None:
    """Agents of two cells may share a namespace and a name, and their jobs a name and an epoch."""
    chosen = options(tmp_path, service="s")
    bodies = [job_body(work(EVEN, folder_id=one), chosen) for one in ("mine", "others", "mine")]
    names = [body["metadata"]["name"] for body in bodies]
    assert names[0] == names[2] != names[1]
    for name, body in zip(names, bodies, strict=True):
        said = {one["name"]: one.get("value") for one in container(body)["env"]}
        assert said["MASTER_ADDR"] == f"{name}-0.s"


def container(said: dict[str, Any]) -> dict[str, Any]:
    (found,) = said["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_job_is_suspended_gated_and_never_restarted(tmp_path: Path) -> None:
    said = job_body(work(EVEN), options(tmp_path))
    assert said["spec"]["suspend"] is True
    assert said["spec"]["completions"] == said["spec"]["parallelism"] == 4
    assert said["spec"]["backoffLimit"] == 0
    pod = said["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["schedulingGates"]) == (
        "Never",
        [{"name": "tidegate.io/place"}],
    )
    assert said["metadata"]["labels"] == MARKS
    assert container(said)["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_dollars_stay_the_programs(tmp_path: Path) -> None:
    said = container(job_body(work(EVEN, env={"A": "$(B)"}), options(tmp_path)))
    assert said["command"] == ["run", "$$HOME", "$$$$", "$$(RANK)"]
    assert {"name": "A", "value": "$$(B)"} in said["env"]
    names = [one["name"] for one in said["env"]]
    assert names.index("RANK") < names.index("TIDEGATE_PROGRESS")


def test_a_program_cannot_say_which_worker_a_pod_is(tmp_path: Path) -> None:
    """All of them were that one, and waited for the others for ever."""
    said = container(job_body(work(EVEN, env={"RANK": "7", "WORLD_SIZE": "9"}), options(tmp_path)))
    ranks = [one for one in said["env"] if one["name"] == "RANK"]
    assert [list(one) for one in ranks] == [["name", "valueFrom"]]
    assert [one["value"] for one in said["env"] if one["name"] == "WORLD_SIZE"] == ["4"]


def test_paths_are_those_of_the_pods(tmp_path: Path) -> None:
    there = options(tmp_path, mount=Path("/mnt"))
    said = container(job_body(work(EVEN, resume=ROOT / "runs/j/2/checkpoints/9"), there))
    env = {one["name"]: one.get("value") for one in said["env"]}
    assert env["TIDEGATE_RESUME"] == "/mnt/runs/j/2/checkpoints/9"
    assert env["TIDEGATE_CHECKPOINT_DIR"] == "/mnt/runs/j/3/checkpoints"
    assert said["workingDir"] == "/mnt/runs/j/3/work"
    mounts = {one["mountPath"]: (one["subPath"], one["readOnly"]) for one in said["volumeMounts"]}
    run = "runs/j/3"
    assert mounts == {
        f"/mnt/{run}/checkpoints": (f"{run}/checkpoints", False),
        f"/mnt/{run}/{WORK}": (f"{run}/{WORK}", False),
        f"/mnt/{run}/said": (f"{run}/said", False),
        f"/mnt/{run}/told": (f"{run}/told", True),
        "/mnt/runs/j/2/checkpoints/9": ("runs/j/2/checkpoints/9", True),
    }
    assert env["TIDEGATE_PROGRESS"] == f"/mnt/{run}/said/progress-$(RANK).jsonl"
    assert env["TIDEGATE_WISH"] == f"/mnt/{run}/told/wish"


def test_a_pod_is_not_given_what_lies_behind_a_link_of_its_job(tmp_path: Path) -> None:
    """Kubernetes follows it, to wherever in the volume it leads."""
    saved, others = tmp_path / "runs/j/2/checkpoints", tmp_path / "runs/other/1/checkpoints"
    for folder in (saved, others):
        folder.mkdir(parents=True)
        (folder / "5").write_text("weights")
    (saved / "link").symlink_to("../../../other/1/checkpoints")
    chosen = options(tmp_path, tmp_path)
    plain = work(EVEN, resume=saved / "5", root=tmp_path)
    mounts = container(job_body(plain, chosen))["volumeMounts"]
    assert mounts[-1]["subPath"] == "runs/j/2/checkpoints/5"
    with pytest.raises(ValueError, match="lies behind a link"):
        job_body(work(EVEN, resume=saved / "link" / "5", root=tmp_path), chosen)


def test_links_that_lead_in_a_circle_are_the_jobs_fault(tmp_path: Path) -> None:
    """They ended the agent, with all its jobs, and each start of it."""
    saved = tmp_path / "runs/j/2/checkpoints"
    saved.mkdir(parents=True)
    (saved / "5").symlink_to("6")
    (saved / "6").symlink_to("5")
    with pytest.raises(ValueError, match="lies behind a link"):
        job_body(work(EVEN, resume=saved / "5", root=tmp_path), options(tmp_path, tmp_path))


def test_a_pod_sees_nothing_of_the_cluster_and_secrets_as_references(tmp_path: Path) -> None:
    mine = replace(work(EVEN, secrets={"TOKEN": "hub"}), tenant="vision")
    said = job_body(mine, options(tmp_path))
    assert said["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    found = {one["name"]: one.get("valueFrom") for one in container(said)["env"]}
    assert found["TOKEN"] == {"secretKeyRef": {"name": "tidegate-vision", "key": "hub"}}
    with pytest.raises(ValueError, match="automountServiceAccountToken"):
        options(tmp_path, pod={"automountServiceAccountToken": True})


def test_a_pod_for_each_node_has_that_many_gpus(tmp_path: Path) -> None:
    chosen = options(tmp_path, resources_per_gpu={"cpu": "500m", "memory": "1.5Gi"})
    said = container(job_body(work(EVEN, workers="per_node"), chosen))
    assert said["resources"]["limits"] == {"nvidia.com/gpu": "2", "cpu": "1000m", "memory": "3Gi"}
    with pytest.raises(ValueError, match="equally many GPUs"):
        job_body(work({"n1": (0,), "n2": (0, 1)}, workers="per_node"), chosen)


@pytest.mark.parametrize(
    ("amount", "asked"),
    [
        ("16777216Ki", "33554432Ki"),
        ("34359738368", "68719476736"),
        ("0.25", "0.5"),
        ("1e3", "2e3"),
        (".5Gi", "1Gi"),
    ],
)
def test_an_amount_of_many_digits_is_asked_for_to_the_last(
    tmp_path: Path, amount: str, asked: str
) -> None:
    """Kubernetes refuses `3.35544e+07Ki`, and with it every Job."""
    chosen = options(tmp_path, resources_per_gpu={"memory": amount})
    limits = container(job_body(work(EVEN, workers="per_node"), chosen))["resources"]["limits"]
    assert limits["memory"] == asked


def test_names_fit_whatever_the_job_is_called(tmp_path: Path) -> None:
    jobs = ["j", "J", "a:b", "a.b", "x" * 128, "x" * 127, "a--", "-"]
    names = {job_name(work(EVEN, job=job)) for job in jobs}
    assert len(names) == len(jobs)
    for name in names:
        assert len(name) <= 52
        assert name == name.lower()
        assert name.replace("-", "").isalnum()
    labels = {label(job) for job in jobs}
    assert len(labels) == len(jobs)
    assert all(len(one) <= 63 for one in labels)
    assert selector("a b") == f"tidegate.io/agent={label('a b')}"


@pytest.mark.parametrize(
    ("end", "words", "runnable"),
    [
        (End(3, "Error", "first\nno such file\n\n"), "ended with exit code 3: no such file", True),
        (End(137, "OOMKilled", ""), "ran out of memory (the limit of its container)", True),
        (End(139, "Error", ""), "was killed by signal 11", True),
        (
            End(127, "Error", "sh: x: not found"),
            "ended with exit code 127: sh: x: not found",
            False,
        ),
        (End(128, "StartError", "no x"), "ended with exit code 128: no x", False),
    ],
)
def test_ends_are_told_in_words(end: End, words: str, runnable: bool) -> None:
    assert (end.words(), end.runnable) == (words, runnable)


def test_pod_is_read(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "metadata": {
            "name": "p",
            "uid": "1",
            "annotations": {**MARKS, "batch.kubernetes.io/job-completion-index": "2"},
            "ownerReferences": [
                {"uid": "x", "controller": False},
                {"uid": "7", "controller": True},
            ],
        },
        "spec": {"schedulingGates": [{"name": "tidegate.io/place"}]},
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Full", "message": "no GPU"}
            ],
        },
    }
    pod = pod_seen(said)
    assert pod is not None
    assert (pod.job, pod.epoch, pod.rank, pod.owner, pod.node) == ("j", 3, 2, "7", None)
    assert (pod.gated, pod.leaves, pod.is_over, pod.waits_for) == (
        True,
        False,
        False,
        "Full: no GPU",
    )
    said["status"] = {"phase": "Failed", "reason": "Evicted", "message": "no disk"}
    pod = pod_seen(said)
    assert pod is not None
    assert (pod.is_over, pod.disrupted) == (True, "Evicted: no disk")


def test_how_a_worker_ended_is_not_how_another_container_of_its_pod_did() -> None:
    """As one that a service mesh adds; they come sorted by name."""
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    mesh = {"name": "mesh", "state": ended}
    said: dict[str, Any] = {
        "metadata": {"name": "p", "uid": "1", "annotations": MARKS},
        "spec": {},
        "status": {"containerStatuses": [mesh, {"name": "worker", "state": {"running": {}}}]},
    }
    pod = pod_seen(said)
    assert pod is not None
    assert pod.end is None
    failed = {"terminated": {"exitCode": 3, "reason": "Error"}}
    said["status"]["containerStatuses"][1]["state"] = failed
    pod = pod_seen(said)
    assert pod is not None
    assert pod.end == End(3, "Error", "")


def test_what_does_not_say_whose_it_is_is_none_of_ours() -> None:
    bare: dict[str, Any] = {"metadata": {"name": "p", "uid": "1"}, "spec": {}, "status": {}}
    assert pod_seen(bare) is None
    assert job_seen(bare) is None
    for epoch in ("three", "9" * 5000):
        bare["metadata"]["annotations"] = {**MARKS, "tidegate.io/epoch": epoch}
        assert job_seen(bare) is None


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"mount": Path("here")}, "mount"),
        ({"pod": {"restartPolicy": "Always"}}, "restartPolicy cannot be set"),
        ({"poll_s": 0.0}, "poll_s"),
        ({"grace_s": float("inf")}, "grace_s"),
        ({"checkpoint_retention": 0}, "checkpoint_retention"),
    ],
)
def test_options_out_of_range_are_named(tmp_path: Path, said: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        options(tmp_path, **said)
