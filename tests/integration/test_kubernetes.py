"""Gangs on a real Kubernetes control plane: begun, finished, sent away, resized, moved."""

import re
from pathlib import Path

import pytest

from runtime.core import (
    GangCompleted,
    GangFailed,
    GangStarted,
    GangStopped,
)
from schemas.programs import Program
from tests.kubernetes_bed import KubernetesBench
from tests.workers import TRAINER, python, shell

pytestmark = pytest.mark.slow

EVEN = {"n1": (0, 1), "n2": (0, 1)}


def test_gang_runs_with_torchruns_environment_and_completes(kube: KubernetesBench) -> None:
    shown = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE '
    shown += '$TIDEGATE_NODE"; printenv'
    kube.start(
        shell(shown, env={"MINE": "$(RANK) $$ a 'b'", "TIDEGATE_JOB": "x"}), EVEN, total_steps=7
    )
    assert kube.hears(GangCompleted) == GangCompleted("j", 1, 7)
    assert [type(one) for one in kube.said] == [GangStarted, GangCompleted]
    logs = [kube.log(rank=rank) for rank in range(4)]
    words = [log.splitlines()[0].split() for log in logs]
    assert [said[:6] for said in words] == [[str(n), "0", "4", "1", str(n), "4"] for n in range(4)]
    assert [said[6] for said in words] == ["n1", "n1", "n2", "n2"]
    for rank, log in enumerate(logs):
        assert f"TIDEGATE_PROGRESS={kube.run()}/said/progress-{rank}.jsonl\n" in log
        assert "MINE=$(RANK) $$ a 'b'\n" in log
        assert "TIDEGATE_JOB=j\n" in log
    kube.until(lambda: not kube.plane.jobs(), "its Job stays")


def test_uneven_gang_gets_exactly_the_nodes_that_were_chosen(kube: KubernetesBench) -> None:
    kube.start(shell('echo "$NVIDIA_VISIBLE_DEVICES"; sleep 3600'), {"n1": (1,), "n2": (0, 1)})
    kube.hears(GangStarted)
    devices = "".join(kube.log(rank=rank) for rank in range(3)).split()
    assert sorted(devices) == ["GPU-n1-0", "GPU-n2-0", "GPU-n2-1"]
    index = "batch.kubernetes.io/job-completion-index"
    found = {p["metadata"]["annotations"][index]: p["spec"]["nodeName"] for p in kube.plane.pods()}
    assert found == {"0": "n1", "1": "n2", "2": "n2"}
    kube.stop(saves=False)
    kube.hears(GangStopped)
    assert kube.plane.pods() == kube.plane.jobs() == []


def test_pods_of_unlike_sizes_are_refused_in_words(kube: KubernetesBench) -> None:
    kube.start(shell("true", workers="per_node"), {"n1": (0,), "n2": (0, 1)})
    assert "Pods of one Job have equally many GPUs" in kube.hears(GangFailed).error
    assert kube.plane.jobs() == []


def test_command_that_does_not_exist_is_not_tried_again(kube: KubernetesBench) -> None:
    kube.start(Program(argv=["/no/such/command"]), {"n1": (0,)})
    kube.fails("No such file", retriable=False)


@pytest.mark.parametrize("agents", ["of two names", "of one name"])
def test_gangs_of_two_agents_may_have_one_name_in_one_namespace(
    kube: KubernetesBench, tmp_path: Path, agents: str
) -> None:
    """As in two cells; neither agent takes the other's gang for its own, or ends it."""
    name = {"agent": kube.options.agent} if agents == "of one name" else {}
    other = KubernetesBench(kube.plane, tmp_path / "other", **name)
    try:
        kube.start(shell("sleep 3600"), {"n1": (0,)})
        other.start(shell("sleep 3600"), {"n2": (0,)})
        kube.hears(GangStarted)
        other.hears(GangStarted)
        other.stop(saves=False)
        other.hears(GangStopped)
        assert [pod["spec"]["nodeName"] for pod in kube.plane.pods()] == ["n1"]
        assert [type(one) for one in kube.said] == [GangStarted]
    finally:
        other.executor.close()


def test_what_waits_too_long_fails_with_the_schedulers_reason(
    kube: KubernetesBench, tmp_path: Path
) -> None:
    kube.start(shell("sleep 3600"), {"n1": (0, 1)})
    kube.hears(GangStarted)
    other = KubernetesBench(kube.plane, tmp_path / "other", pending_timeout_s=3.0)
    try:
        other.start(shell("true"), {"n1": (0,)}, job="second")
        failed = other.hears(GangFailed)
    finally:
        other.executor.close()
    assert failed.retriable
    assert re.search(r"Unschedulable: .*Insufficient nvidia.com/gpu", failed.error)
    assert [one["metadata"]["labels"]["tidegate.io/job"] for one in kube.plane.jobs()] == ["j"]


def test_odd_names_are_told_apart(kube: KubernetesBench) -> None:
    names = ["A_b:c." + "x" * 90, "A_b:c." + "x" * 89]
    for number, name in enumerate(names):
        kube.start(python(TRAINER, env={"STEPS": "3"}), {"n1": (number,)}, job=name, total_steps=3)
    kube.hears(GangCompleted, 2)
    assert sorted(one.job for one in kube.all(GangCompleted)) == sorted(names)
