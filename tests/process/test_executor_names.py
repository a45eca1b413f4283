"""What a job stored stays its own when another job has its name later."""

import threading
import time
from pathlib import Path

import pytest

from runtime.checkpoints.store import CheckpointError, CheckpointStore
from runtime.core import GangCompleted, GangFailed, StartWorkers
from runtime.durable import write_json
from runtime.executors.fetching import fetched
from runtime.executors.folder import COMMITTED
from tests.driven import spec
from tests.unit.test_clusters_folder import Agent
from tests.workers import TRAINER, Bench, bench, python, shell

WRITES = "import os, pathlib; pathlib.Path('result').write_text(os.environ['TIDEGATE_EPOCH'])\n"


def completes(jig: Bench, steps: int, epoch: int, jobs: int) -> None:
    """Let the name's next job end, which leaves a checkpoint and an output."""
    code = WRITES + TRAINER.replace("1000000", str(steps))
    program = python(code, outputs=["result"])
    jig.start(program, total_steps=steps, epoch=epoch, first_epoch=epoch)
    jig.hears(GangCompleted, jobs)


def test_the_next_job_of_a_name_leaves_the_result_of_the_last_one_where_it_is(
    tmp_path: Path,
) -> None:
    with bench(tmp_path, checkpoint_retention=1) as jig:
        completes(jig, 20, 1, 1)
        completes(jig, 10, 5, 2)
        assert [(one.epoch, one.step) for one in jig.store.committed("j")] == [(5, 10), (1, 20)]
        kept = sorted((tmp_path / "store" / "j" / "outputs").glob("*/result"))
        assert [path.read_text() for path in kept] == ["1", "5"]


def test_a_job_goes_on_from_no_checkpoint_of_an_earlier_one_of_its_name(tmp_path: Path) -> None:
    store = CheckpointStore(f"file://{tmp_path}/store")
    run = tmp_path / "runs" / "j" / "1"
    run.mkdir(parents=True)
    (run / "here").touch()
    write_json(run / COMMITTED, {"step": 30, "path": str(run / "here"), "uri": ""})
    store.commit("j", 1, 20, run / "here", 1.0)
    for step in (30, 20, 10):  # one that this machine has, one of the store, a newer one there
        assert fetched(store, tmp_path, "j", step, threading.Event(), 1).name == "here"
        with pytest.raises(CheckpointError, match=f"no checkpoint of j at step {step}"):
            fetched(store, tmp_path, "j", step, threading.Event(), 5)


def test_nor_does_one_on_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "weights").touch()
    agent = Agent(tmp_path)
    agent.store.commit("j", 1, 20, tmp_path / "weights", 1.0)
    executor, _ = agent.begin()
    try:
        said = spec(shell("true")).model_copy(update={"first_epoch": 5})
        executor.start(StartWorkers("j", 5, {"n1": (0,)}, said, 20, 0.0), time.time())
        agent.until(executor, lambda: agent.said)
    finally:
        executor.close()
    (failed,) = agent.said
    assert isinstance(failed, GangFailed)
    assert "no checkpoint of j at step 20" in failed.error
