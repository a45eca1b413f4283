"""The scripts that run a gang on Slurm's nodes, run by bash without Slurm."""

import os
import subprocess
import time
from pathlib import Path

from cloud_agent.clusters.attempt import Work
from cloud_agent.options import SlurmOptions
from cloud_agent.slurm.run import Run, write_lease
from cloud_agent.slurm.scripts import write_scripts
from runtime.checkpoints.store import CheckpointStore
from runtime.executors.folder import WORK
from runtime.executors.gang_record import StartedRun
from schemas.programs import Program
from tests.patience import wait_until

_ENV = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_NODEID": "0",
    "SLURM_NNODES": "1",
    "SLURMD_NODENAME": "n1",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
}
_BLAMED = "by the clock of n1; set that right if it is wrong"


def written(folder: Path) -> Run:
    """Write the scripts of a gang of one worker, which sleeps."""
    run = Run(folder / "runs" / "j" / "1")
    store = CheckpointStore(f"file://{folder}/store")
    options = SlurmOptions(root=folder, store=store, agent="a")
    started = StartedRun(1, {"n1": (0,)}, 0, None)
    program = Program(argv=["sh", "-c", "touch begun; exec sleep 60"])
    work = Work("j", program, started, run.folder, "f", None)
    write_scripts(work, run, options)
    return run


def bash(run: Run, script: str) -> "subprocess.Popen[str]":
    """Run one of them as Slurm would on a node."""
    return subprocess.Popen(
        ["/bin/bash", str(run.folder / script)],
        env={**os.environ, **_ENV},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_node_that_takes_the_lease_for_over_blames_its_clock(tmp_path: Path) -> None:
    """Each gang on a node with a clock far ahead failed, and nothing said where to look."""
    run = written(tmp_path)
    write_lease(tmp_path, time.time() - 5.0, 10.0)
    batch = bash(run, "batch.sh")
    said, _ = batch.communicate(timeout=30.0)
    assert batch.returncode == 75
    assert _BLAMED in said
    assert run.claim() is None


def test_workers_that_leave_since_the_lease_is_over_by_their_clock_say_so(tmp_path: Path) -> None:
    run = written(tmp_path)
    write_lease(tmp_path, time.time() + 1.0, 10.0)
    keeper = bash(run, "keeper.sh")
    keeper.communicate(timeout=30.0)
    assert keeper.returncode == 0
    told = run.told()
    assert told is not None
    assert _BLAMED in told


def test_workers_that_slurm_asks_to_leave_say_that(tmp_path: Path) -> None:
    run = written(tmp_path)
    assert run.told() is None
    keeper = bash(run, "keeper.sh")
    wait_until((run.folder / WORK / "begun").exists)
    keeper.terminate()
    keeper.communicate(timeout=30.0)
    told = run.told()
    assert told is not None
    assert told.startswith("Slurm asked the workers to leave")
