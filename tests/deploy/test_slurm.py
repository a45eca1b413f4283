"""`compose/slurm`, as a contributor types it: real daemons, in a folder of the test's own."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.composed import ROOT
from tests.patience import PATIENCE_S, wait_until
from tests.ports import alive
from tests.slurm import need_slurm

DAEMONS = ("munged", "slurmctld", "slurmd-n1", "slurmd-n2")


class Folder:
    """One folder with a cluster, and the command for it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["compose/slurm", *arguments],
            cwd=ROOT,
            env={**os.environ, "TIDEGATE_SLURM_DIR": str(self.path), **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def say(self, command: str) -> str:
        """Give what a shell says that has read the settings."""
        line = f'eval "$(compose/slurm env)"; {command}'
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=ROOT,
            env={**os.environ, "TIDEGATE_SLURM_DIR": str(self.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pids(self) -> list[int]:
        return [int((self.path / f"{name}.pid").read_text().split()[0]) for name in DAEMONS]


def mentioning(text: str) -> list[str]:
    """Give the command lines of living processes whose environment names this folder."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and text.encode() in (folder / "environ").read_bytes():
                if alive(int(folder.name)):
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture
def folder() -> Iterator[Folder]:
    need_slurm()
    with tempfile.TemporaryDirectory(prefix="tidegate-slurm-") as path:
        made = Folder(Path(path))
        yield made
        made.run("down", "--wipe")


def test_up_runs_a_job_with_gpus_and_down_leaves_no_process(folder: Folder) -> None:
    assert folder.run("status").returncode == 1
    up = folder.run("up")
    assert up.returncode == 0, up.stderr
    assert "compose/slurm env" in up.stdout
    pids = folder.pids()
    assert folder.run("up").returncode == 0
    assert folder.pids() == pids
    assert folder.run("status").returncode == 0

    said = folder.say("srun -N2 --gres=gpu:2 sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'")
    assert sorted(said.splitlines()) == ["n1 0,1", "n2 0,1"]
    folder.say(
        "sbatch -N2 -o /dev/null --wrap 'srun sh -c \"trap : TERM; sleep 3600; sleep 3600\"'"
    )
    wait_until(lambda: "RUNNING" in folder.say("squeue -ho %T"), "the job does not begin")

    down = folder.run("down", "--wipe")
    assert down.returncode == 0, down.stderr
    assert not any(map(alive, pids))
    assert mentioning(f"SLURM_CONF={folder.path}") == []
    assert [path.name for path in folder.path.iterdir()] == ["lock"]
    assert folder.run("down").returncode == 0


def test_a_folder_of_one_node_with_gpus_has_two_pretended_ones_then(folder: Folder) -> None:
    own = {"TIDEGATE_SLURM_GPUS": "/dev/null"}
    assert folder.run("up", **own).returncode == 0
    assert folder.run("down", **own).returncode == 0
    up = folder.run("up")
    assert up.returncode == 0, up.stderr
    assert folder.say("sinfo --noheader --format=%D").split() == ["2"]


def test_paused_and_killed_daemons_come_up_again(folder: Folder) -> None:
    assert folder.run("up").returncode == 0
    munged, slurmctld, first, second = folder.pids()
    os.kill(slurmctld, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not alive(first))
    assert folder.run("up").returncode == 0
    assert folder.pids()[0:2] + folder.pids()[3:] == [munged, slurmctld, second]
    assert folder.say("sinfo -hNo '%N %T'").split() == ["n1", "idle", "n2", "idle"]


def test_devices_that_are_named_are_one_nodes_gpus(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_SLURM_GPUS", "/dev/null,/dev/zero,/dev/full")
    assert folder.run("up").returncode == 0
    assert folder.say("sinfo -hNo '%N %G'").split() == ["n1", "gpu:3"]
    assert folder.run("down", "--wipe").returncode == 0


def test_folder_that_daemons_cannot_use_is_refused(tmp_path: Path) -> None:
    done = Folder(tmp_path / "a b").run("up")
    assert done.returncode == 2
    assert "TIDEGATE_SLURM_DIR" in done.stderr
    assert not (tmp_path / "a b").exists()


def test_missing_programs_are_named_with_what_installs_them(folder: Folder, tmp_path: Path) -> None:
    for name in ("slurm", "daemons.py"):
        text = (ROOT / "compose" / name).read_text()
        (tmp_path / name).write_text(text.replace(":/usr/local/sbin:/usr/sbin:/sbin", ""))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "slurm"), "up"],
        env={"PATH": str(tmp_path), "TIDEGATE_SLURM_DIR": str(folder.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "apt-get install munge slurmctld slurmd slurm-client" in done.stderr
