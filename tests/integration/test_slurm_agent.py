"""A whole agent on a real Slurm cluster, over the bus: started, crashed, resized, reclaimed."""

from pathlib import Path

import pytest

from cloud_agent.slurm import SlurmExecutor
from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import WorkerFailed, WorkerStarted, WorkerStopped
from schemas.values import NodeGpus
from tests.cluster_desk import ClusterDesk
from tests.patience import until
from tests.slurm import NODES, SlurmBench
from tests.workers import TRAINER, python, spec

pytestmark = pytest.mark.slow

EVEN = [NodeGpus(node="n1", gpus=[0, 1]), NodeGpus(node="n2", gpus=[0, 1])]
ONE = [NodeGpus(node="n1", gpus=[0])]


async def test_gang_lives_through_crashes_a_resize_and_a_reclaim(
    bench: SlurmBench, tmp_path: Path
) -> None:
    desk = ClusterDesk(bench.options.agent, NODES, lambda: SlurmExecutor(bench.options), tmp_path)
    await desk.begin()
    await desk.order(
        StartGang(job="j", epoch=1, placement=EVEN, spec=spec(python(TRAINER)), step=0)
    )
    await desk.until(WorkerStarted, 1, "n1", "n2")
    (first,) = bench.cluster.jobs()

    await desk.crash()
    assert bench.cluster.jobs() == [first]
    await desk.begin()
    await desk.order(ScaleGang(job="j", epoch=2, placement=ONE))
    await until(lambda: bench.cluster.jobs() != [first], "the change does not begin")
    await desk.crash()  # in the middle of the change
    await desk.begin()
    await desk.until(WorkerStopped, 1, "n1", "n2")
    await desk.until(WorkerStarted, 2, "n1")
    assert len(bench.cluster.jobs()) == 1

    await desk.order(StopGang(job="j", epoch=2, reason="preempted", checkpoint=True, grace_s=60.0))
    await desk.crash()  # perhaps before it was heard, perhaps after
    await desk.begin()
    await desk.until(WorkerStopped, 2, "n1")
    assert bench.cluster.jobs() == []

    step = max(await desk.saved())
    (stopped,) = await desk.workers(WorkerStopped, 2)
    assert isinstance(stopped, WorkerStopped)
    assert (stopped.reason, stopped.step) == ("preempted", step)
    await desk.order(
        StartGang(job="j", epoch=3, placement=EVEN, spec=spec(python(TRAINER)), step=step)
    )
    await desk.until(WorkerStarted, 3, "n1", "n2")
    await until(lambda: f"rank 0 of 4 goes on from {step}\n" in bench.logs(3))
    await desk.crash()
    assert not [one for one in await desk.said() if isinstance(one, WorkerFailed)]
    for epoch in (1, 2, 3):
        assert bench.logs(epoch).count("rank 0 of") == 1
