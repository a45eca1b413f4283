"""What gangs do alike on every kind of cluster: real Slurm and a real Kubernetes."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.core import (
    CheckpointDone,
    GangCompleted,
    GangFailed,
    GangStarted,
    GangStopped,
    WorkersLeft,
)
from schemas.commands import ScaleGang, StartGang, StopGang
from schemas.events import WorkerFailed, WorkerStarted, WorkerStopped
from schemas.values import NodeGpus
from tests.cluster_desk import ClusterDesk
from tests.driven import ClusterBench, spec
from tests.patience import until, wait_until
from tests.slurm import SlurmBench
from tests.workers import TRAINER, python, shell

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EVEN, ONE = {"n1": (0, 1), "n2": (0, 1)}, {"n1": (0,)}
#: An agent as a process of its own: starts a gang and looks after it, until it is killed.
AGENT = """
import time
from pathlib import Path
from tests.workers import TRAINER, python
{made}
bench.start(python(TRAINER), {placement})
while True:
    for report in bench.executor.advance(time.time()):
        print(type(report).__name__, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(params=["bench", "kube"], ids=["slurm", "kubernetes"])
def on(request: pytest.FixtureRequest) -> ClusterBench:
    """A bench on each kind of cluster."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, ClusterBench)
    return found


def test_sent_away_it_saves_and_goes_on_elsewhere(on: ClusterBench) -> None:
    on.start(python(TRAINER), EVEN)
    on.hears(GangStarted)
    on.until(lambda: on.step() >= 20)
    on.stop()
    stopped, saved = on.hears(GangStopped), on.hears(CheckpointDone)
    assert stopped.step == saved.step >= 20
    # A Job whose workers all ended well may be complete before it is deleted.
    on.until(lambda: on.jobs() == [], "its Job stays")

    on.start(python(TRAINER), {"n2": (0,)}, epoch=2, step=stopped.step)
    assert on.hears(GangStarted, 2).step >= stopped.step
    on.until(lambda: on.step() > stopped.step)
    assert f"rank 0 of 1 goes on from {stopped.step}\n" in on.logs(2)


def test_change_of_size_keeps_the_steps(on: ClusterBench) -> None:
    on.start(python(TRAINER), EVEN)
    on.hears(GangStarted)
    on.until(lambda: on.step() >= 20)
    on.scale(ONE, epoch=2)
    left, started = on.hears(WorkersLeft), on.hears(GangStarted, 2)
    assert (left.epoch, started.epoch) == (1, 2)
    assert started.step >= left.step >= 20
    on.until(lambda: on.step() > left.step)
    assert f"rank 0 of 1 goes on from {left.step}\n" in on.logs(2)
    on.scale(EVEN, epoch=3)
    assert on.hears(GangStarted, 3).step >= started.step
    assert on.hears(CheckpointDone).epoch >= 2
    assert len(on.all(WorkersLeft)) == 1  # growing gives nothing up
    assert len(on.jobs()) == 1


def test_checkpoint_on_a_wish_and_training_goes_on(on: ClusterBench) -> None:
    on.start(python(TRAINER, saves="on_signal"), ONE)
    on.until(lambda: on.step() >= 5)
    on.save()
    saved = on.hears(CheckpointDone)
    assert Path(saved.uri.removeprefix("file://")).is_dir()
    on.until(lambda: on.step() > saved.step)
    on.stop()
    assert on.hears(GangStopped).step > saved.step


def test_failure_names_worker_code_and_last_words_and_ends_the_others(on: ClusterBench) -> None:
    code = 'if [ $RANK = 2 ]; then echo "no such file: data"; exit 3; fi; sleep 3600'
    on.start(shell(code), EVEN)
    failed = on.hears(GangFailed)
    assert failed.retriable
    said = r"worker 2 on n2 ended with (exit )?code 3: no such file: data"
    assert re.fullmatch(said, failed.error), failed.error
    assert on.jobs() == []


def test_one_worker_for_each_node_has_all_its_gpus(on: ClusterBench) -> None:
    is_slurm = isinstance(on, SlurmBench)
    named = "CUDA" if is_slurm else "NVIDIA"
    code = f'echo "$RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $TIDEGATE_GPUS ${named}_VISIBLE_DEVICES"'
    on.start(shell(code, workers="per_node"), EVEN)
    on.hears(GangCompleted)
    devices = ["0,1"] * 2 if is_slurm else [f"GPU-{n}-0,GPU-{n}-1" for n in EVEN]
    said = [f"{rank} 2 1 2 {names}" for rank, names in enumerate(devices)]
    assert sorted(on.logs().splitlines()) == said


def test_what_does_not_leave_is_ended_after_the_grace(on: ClusterBench) -> None:
    deaf = "import signal, time\nsignal.signal(15, lambda *_: print('heard', flush=True))\n"
    on.start(python(deaf + "while True: time.sleep(1)"), EVEN)
    on.hears(GangStarted)
    on.stop(grace_s=3600.0)
    on.until(lambda: on.logs().count("heard") == 4)
    on.stop(grace_s=1.0)  # hurried
    assert on.hears(GangStopped).step == 0
    assert on.logs().count("heard") == 4, "each worker once"


def test_newer_start_replaces_what_ran(on: ClusterBench) -> None:
    on.start(python(TRAINER), EVEN)
    on.until(lambda: on.step() >= 5)
    (first,) = on.jobs()
    on.start(python(TRAINER), ONE, epoch=4)
    on.until(lambda: any(one.epoch == 4 for one in on.all(GangStarted)))
    assert first not in on.jobs()
    assert not on.all(GangFailed)


def test_silent_cluster_proves_nothing_and_the_gang_trains_on(on: ClusterBench) -> None:
    on.start(python(TRAINER), EVEN)
    on.until(lambda: on.step() >= 5)
    with on.silent():
        before = on.step()
        on.until(lambda: on.step() > before + 20)
        on.stop(grace_s=60.0)
        until_s = time.monotonic() + 5.0
        on.until(lambda: time.monotonic() > until_s)
        assert not on.all(GangStopped)  # nobody has said that the GPUs are free
    assert on.hears(GangStopped).step > before
    assert not on.all(GangFailed)
    assert on.logs().count("rank 0 of 4 goes on from") == 1


def test_ordered_while_the_cluster_is_away_it_starts_once_it_is_back(on: ClusterBench) -> None:
    with on.away():
        on.start(python(TRAINER), EVEN)
        on.until(lambda: on.executor.away is not None)
        wait_until(lambda: (on.options.root / "held" / "j.json").exists())
        on.again()  # the agent is restarted too
        assert on.executor.running() == ("j",)
        on.until(lambda: on.executor.away is not None)
        assert not on.said
    on.until(lambda: on.step() >= 5)
    assert len(on.jobs()) == 1
    assert on.logs().count("rank 0 of 4 goes on from") == 1


def test_killed_agents_gang_trains_on_and_is_found_again(on: ClusterBench) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", AGENT.format(made=on.agent_code, placement=EVEN)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "GangStarted\n"
        agent.kill()
    (job,) = on.jobs()
    assert on.again() == ("j",)
    on.hears(GangStarted)  # said again: it may never have been stored
    before = on.step()
    on.until(lambda: on.step() > before)
    assert on.jobs() == [job]
    on.stop()
    assert on.hears(GangStopped).step > before
    assert on.logs().count("rank 0 of 4 goes on from") == 1
    on.until(lambda: on.executor.next_due_s() is None)
    assert on.again() == ()


async def test_whole_agents_gang_lives_through_crashes_a_resize_a_reclaim_and_a_move(
    on: ClusterBench, tmp_path: Path
) -> None:
    def placed(**gpus: list[int]) -> list[NodeGpus]:
        return [NodeGpus(node=node, gpus=some) for node, some in gpus.items()]

    desk = ClusterDesk(on.agent, ("n1", "n2"), on.make, tmp_path)
    trains, both = spec(python(TRAINER)), placed(n1=[0, 1], n2=[0, 1])
    await desk.begin()
    await desk.tell(StartGang(job="j", epoch=1, placement=both, spec=trains, step=0))
    await desk.until(WorkerStarted, 1, "n1", "n2")
    first = on.jobs()

    await desk.crash()
    assert on.jobs() == first
    await desk.begin()
    await desk.tell(ScaleGang(job="j", epoch=2, placement=placed(n1=[0])))
    await until(lambda: on.jobs() != first, "the change does not begin")
    await desk.crash()  # in the middle of the change
    await desk.begin()
    await desk.until(WorkerStopped, 1, "n1", "n2")
    await desk.until(WorkerStarted, 2, "n1")
    assert len(on.jobs()) == 1

    await desk.tell(StopGang(job="j", epoch=2, reason="preempted", checkpoint=True, grace_s=60.0))
    await desk.crash()  # perhaps before it was heard, perhaps after
    await desk.begin()
    await desk.until(WorkerStopped, 2, "n1")
    await until(lambda: on.jobs() == [], "its Job stays")

    step = max(await desk.saved())
    (stopped,) = await desk.workers(WorkerStopped, 2)
    assert isinstance(stopped, WorkerStopped)
    assert (stopped.reason, stopped.step) == ("preempted", step)
    await desk.tell(StartGang(job="j", epoch=3, placement=placed(n2=[1]), spec=trains, step=step))
    await desk.until(WorkerStarted, 3, "n2")
    await until(lambda: f"rank 0 of 1 goes on from {step}\n" in on.logs(3))
    await desk.crash()
    assert await desk.said(WorkerFailed) == []
    for epoch in (1, 2, 3):
        assert on.logs(epoch).count("rank 0 of") == 1
