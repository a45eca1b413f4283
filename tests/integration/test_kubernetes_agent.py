"""A whole agent on Kubernetes, over the bus: started, crashed, resized, reclaimed, moved."""

from pathlib import Path

import pytest

from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import WorkerFailed, WorkerStarted, WorkerStopped
from schemas.values import NodeGpus
from tests.cluster_desk import ClusterDesk
from tests.kubernetes_bed import NODES, KubernetesBench
from tests.patience import until
from tests.workers import TRAINER, python, spec

pytestmark = pytest.mark.slow

EVEN = [NodeGpus(node="n1", gpus=[0, 1]), NodeGpus(node="n2", gpus=[0, 1])]
ONE, OTHER = [NodeGpus(node="n1", gpus=[0])], [NodeGpus(node="n2", gpus=[1])]


async def test_gang_lives_through_crashes_a_resize_a_reclaim_and_a_move(
    kube: KubernetesBench, tmp_path: Path
) -> None:
    from cloud_agent.kubernetes import KubernetesExecutor

    def jobs() -> list[str]:
        return [one["metadata"]["uid"] for one in kube.plane.jobs()]

    desk = ClusterDesk(
        kube.options.agent, NODES, lambda: KubernetesExecutor(kube.options), tmp_path
    )
    trains = spec(python(TRAINER))
    await desk.begin()
    await desk.order(StartGang(job="j", epoch=1, placement=EVEN, spec=trains, step=0))
    await desk.until(WorkerStarted, 1, "n1", "n2")
    first = jobs()

    await desk.crash()
    assert jobs() == first
    await desk.begin()
    await desk.order(ScaleGang(job="j", epoch=2, placement=ONE))
    await until(lambda: jobs() != first, "the change does not begin")
    await desk.crash()  # in the middle of the change
    await desk.begin()
    await desk.until(WorkerStopped, 1, "n1", "n2")
    await desk.until(WorkerStarted, 2, "n1")
    assert len(jobs()) == 1

    await desk.order(StopGang(job="j", epoch=2, reason="preempted", checkpoint=True, grace_s=60.0))
    await desk.crash()  # perhaps before it was heard, perhaps after
    await desk.begin()
    await desk.until(WorkerStopped, 2, "n1")
    assert not jobs()
    assert not kube.plane.pods()

    step = max(await desk.saved())
    (stopped,) = await desk.workers(WorkerStopped, 2)
    assert isinstance(stopped, WorkerStopped)
    assert (stopped.reason, stopped.step) == ("preempted", step)
    await desk.order(StartGang(job="j", epoch=3, placement=OTHER, spec=trains, step=step))
    await desk.until(WorkerStarted, 3, "n2")
    await until(lambda: f"rank 0 of 1 goes on from {step}\n" in kube.log(3))
    await desk.crash()
    assert not [one for one in await desk.said() if isinstance(one, WorkerFailed)]
    for epoch in (1, 2, 3):
        assert kube.log(epoch).count("rank 0 of") == 1
