"""A gang on Slurm runs once, whatever breaks: the agent, slurmctld, an answer, a node."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloud_agent.slurm.executor import SlurmExecutor
from runtime.core import GangCompleted, GangFailed, GangStarted, GangStopped
from tests.distant import Distant
from tests.patience import wait_until
from tests.slurm import Cluster, SlurmBench
from tests.workers import TRAINER, python, shell

pytestmark = pytest.mark.slow

EVEN = {"n1": (0, 1), "n2": (0, 1)}


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    """See that the next test finds the cluster whole."""
    yield
    cluster.compose("up")


def begun(bench: SlurmBench) -> int:
    """Have a gang that trains; give its Slurm job."""
    bench.start(python(TRAINER), EVEN)
    bench.hears(GangStarted)
    bench.until(lambda: bench.step() >= 5)
    (job,) = bench.cluster.jobs()
    return job


def times_begun(bench: SlurmBench, epoch: int = 1) -> int:
    return bench.logs(epoch).count("rank 0 of 4 goes on from")


def test_gang_trains_on_while_the_folder_of_runs_is_not_mounted(bench: SlurmBench) -> None:
    job, root = begun(bench), bench.options.root
    # What the agent sees of it: the nodes have it mounted all the time.
    view, empty = root.with_name("view"), root.with_name("empty")
    empty.mkdir()
    view.symlink_to(empty)
    bench.executor.close()
    bench.executor = SlurmExecutor(bench.options.model_copy(update={"root": view}), {"j": 1})
    assert bench.executor.running() == ("j",)
    looks = iter(range(60))
    bench.until(lambda: next(looks, None) is None)
    assert bench.cluster.jobs() == [job]
    assert "mount the folder" in str(bench.executor.away)
    assert not any(empty.iterdir())
    view.unlink()
    view.symlink_to(root)
    bench.hears(GangStarted, 2)
    before = bench.step()
    bench.until(lambda: bench.step() > before)
    assert bench.cluster.jobs() == [job]
    assert bench.all(GangFailed) == []


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_answer_of_sbatch_is_lost(
    bench: SlurmBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The agent cannot tell whether Slurm took the job; one runs, once."""
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    real, lost = "/usr/bin/sbatch", tmp_path / "lost"
    act = {"before": ":", "during": f'{real} "$@"', "after": f'(sleep 2; {real} "$@") &'}[moment]
    program.write_text(
        f'#!/bin/bash\n[ -e {lost} ] && exec {real} "$@"\n: > {lost}\n{act}\nexit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    bench.again()
    bench.start(python(TRAINER), EVEN)
    bench.hears(GangStarted)
    if moment == "after":  # the one that came late ends by itself, or is cancelled as it waits
        bench.until(lambda: bench.cluster.ask("squeue", "-htall", "-o%i").count("\n") >= 2)
    bench.until(lambda: len(bench.cluster.jobs()) == 1)
    bench.until(lambda: bench.step() >= 5)
    assert times_begun(bench) == 1
    assert not bench.all(GangFailed)


def test_job_submitted_twice_runs_once(bench: SlurmBench) -> None:
    bench.start(python(TRAINER), {"n1": (0,)})
    bench.hears(GangStarted)
    script = str(bench.run() / "batch.sh")
    said = bench.cluster.ask("sbatch", "--parsable", "-wn2", f"-o{bench.root}/second", script)
    second = int(said)
    wait_until(lambda: second not in bench.cluster.jobs(), "the second job does not end")
    assert "this epoch is taken" in (bench.root / "second").read_text()
    assert bench.logs().count("goes on from") == 1


def test_job_cancelled_behind_our_back_fails_retriably(bench: SlurmBench) -> None:
    job = begun(bench)
    bench.cluster.ask("scancel", str(job))
    assert bench.fails().error == "somebody other than the agent cancelled its Slurm job"


def test_requeued_by_an_operator_it_fails_and_runs_no_second_time(bench: SlurmBench) -> None:
    job = begun(bench)
    bench.cluster.ask("scontrol", "update", f"jobid={job}", "requeue=1")
    bench.cluster.ask("scontrol", "requeue", str(job))
    assert "back into its queue" in bench.hears(GangFailed).error
    wait_until(lambda: not bench.cluster.jobs(), "the requeued job stays")
    assert times_begun(bench) == 1


def test_node_goes_down_and_the_gang_fails(bench: SlurmBench) -> None:
    begun(bench)
    bench.cluster.ask("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    failed = bench.hears(GangFailed)
    assert (failed.retriable, failed.error) == (True, "a node failed")


def test_ended_while_nobody_looked_and_forgotten_by_slurm(bench: SlurmBench) -> None:
    bench.start(shell("sleep 1"), {"n1": (0,)}, job="good", total_steps=3)
    bench.start(shell("sleep 1; exit 5"), {"n2": (0,)}, job="bad")
    bench.hears(GangStarted, 2)
    bench.executor.close()
    wait_until(lambda: not bench.cluster.jobs(), "the jobs do not end")
    # MinJobAge of the test cluster; nothing tells when it is over but the listing itself.
    wait_until(lambda: not bench.cluster.ask("squeue", "-htall"), "Slurm does not forget")
    assert bench.again() == ("bad", "good")
    assert bench.hears(GangCompleted) == GangCompleted("good", 1, 3)
    assert "worker 0 on n2 ended with code 5" in bench.hears(GangFailed).error


def test_strays_are_cancelled_and_others_left_alone(bench: SlurmBench, cluster: Cluster) -> None:
    begun(bench)
    mark = f"--comment=tidegate agent={bench.options.agent} job=j epoch=0"
    stray = int(bench.cluster.ask("sbatch", "--parsable", mark, "-o/dev/null", "--wrap=sleep 3600"))
    bench.until(lambda: stray not in bench.cluster.jobs())
    other = int(
        bench.cluster.ask("sbatch", "--parsable", "-wn2", "-o/dev/null", "--wrap=sleep 3600")
    )
    before = time.monotonic()
    bench.until(lambda: time.monotonic() > before + 1.0)
    assert other in bench.cluster.jobs()


def test_a_result_waits_for_the_store_until_the_gang_is_told_to_stop(bench: SlurmBench) -> None:
    store = Distant(f"file://{bench.root}/store")
    bench.options = bench.options.model_copy(update={"store": store})
    bench.again()
    ends = python(TRAINER.replace("1000000", "20"))
    for job in ("kept", "given-up"):
        bench.start(ends, {"n1": (0,)}, job=job, total_steps=20)
        bench.hears(GangStarted)
        bench.until(lambda: not bench.cluster.jobs(), "it does not end")
        bench.said.clear()
    tried = store.tries

    def a_day_later(condition: Callable[[], object]) -> None:
        def driven() -> object:
            bench.said += bench.executor.advance(time.time() + 86_400.0)
            return condition()

        wait_until(driven)

    a_day_later(lambda: store.tries > tried + 2)
    assert not bench.all(GangCompleted)
    bench.scale(EVEN, epoch=2, job="kept")
    a_day_later(lambda: bench.all(GangStarted))
    assert bench.all(GangStarted)[0].step == 20, "all of its steps are taken on any GPUs"
    bench.stop(job="given-up", saves=False)
    a_day_later(lambda: bench.all(GangStopped))
    assert [(one.job, one.step) for one in bench.all(GangStopped)] == [("given-up", 0)]
    store.away = False
    a_day_later(lambda: bench.all(GangCompleted))
    assert [(one.job, one.epoch) for one in bench.all(GangCompleted)] == [("kept", 2)]
    assert [one.step for one in store.committed("kept")] == [20]
