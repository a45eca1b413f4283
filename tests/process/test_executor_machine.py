"""What executors ask of the machine: processes by their identity, cgroups, what workers see."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.executors.cgroups import Cgroup, gangs_cgroup, make_cgroup, own_cgroup
from runtime.executors.environment import RunEnvironment, worker_environments
from runtime.executors.logs import RotatingLog
from runtime.executors.processes import Identity, catches, has_in_environment, identity
from runtime.executors.worker_group import WorkerProcess
from schemas.programs import Program
from tests.patience import wait_until
from tests.workers import bench, shell


def test_a_pid_that_is_used_again_is_not_taken_for_the_old_one() -> None:
    me = identity(os.getpid())
    assert me is not None
    assert me.alive()
    former = Identity(me.pid, me.started - 1, me.boot)
    assert not former.alive()
    assert not former.send(9)  # else this test would not end well
    assert not Identity(me.pid, me.started, "an earlier boot").alive()
    assert identity(2**22 + 1) is None
    assert not catches(2**22 + 1, 15)


def test_a_process_that_becomes_another_program_is_not_missed() -> None:
    again = "import os, sys; os.execv(sys.executable, [sys.executable, '-ISc', *[sys.argv[1]] * 2])"
    command = [sys.executable, "-ISc", again, again]
    with subprocess.Popen(command, env={"TIDEGATE_JOB": "j"}) as process:
        missed = sum(not has_in_environment(process.pid, b"TIDEGATE_JOB=j") for _ in range(20_000))
        process.kill()
    assert missed == 0


def test_the_cgroup_is_found_below_its_mount(tmp_path: Path) -> None:
    mounts, mine = tmp_path / "mountinfo", tmp_path / "cgroup"
    mine.write_text("12:cpu:/other\n0::/agents/one\n")
    mounts.write_bytes(
        b"29 1 8:17 / /srv/\xff rw - ext4 /dev/sdb rw\n"
        b"30 1 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
    )
    assert own_cgroup(mounts, mine) == Path("/sys/fs/cgroup/agents/one")
    mounts.write_text("30 1 0:26 /agents /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert own_cgroup(mounts, mine) == Path("/sys/fs/cgroup/one")
    mounts.write_text("30 1 0:26 / /proc rw - proc proc rw\n")
    assert own_cgroup(mounts, mine) is None
    assert own_cgroup(tmp_path / "none", mine) is None


def test_gangs_have_the_cgroup_of_their_service_where_there_is_one(tmp_path: Path) -> None:
    proc = Path("/proc/self")
    assert gangs_cgroup(tmp_path) == tmp_path
    assert gangs_cgroup(tmp_path / "no") == own_cgroup(proc / "mountinfo", proc / "cgroup")


def test_limits_are_written_where_they_can_be_and_noted_where_not(tmp_path: Path) -> None:
    cgroup, notes = make_cgroup(tmp_path, "gang", memory_mib=2, cpus=1.5)
    assert cgroup is not None
    assert (cgroup.path / "memory.max").read_text() == "2097152"
    assert (cgroup.path / "cpu.max").read_text() == "150000 100000"
    assert notes == []
    (cgroup.path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert cgroup.oom_kills() == 2
    assert Cgroup(tmp_path / "none").oom_kills() == 0
    assert make_cgroup(tmp_path, "gang", None, None)[0] is None  # somebody is in there
    (tmp_path / "file").touch()
    cgroup, notes = make_cgroup(tmp_path / "file", "gang", None, None)
    assert cgroup is None
    assert "cannot be made" in notes[0]


def test_ranks_go_over_nodes_in_order_and_gpus_get_their_names(tmp_path: Path) -> None:
    here = RunEnvironment(
        agent="a", job="j", epoch=1, placement={"b": (1,), "a": (0, 3)},
        program=Program(argv=["x"]), progress=tmp_path, checkpoints=tmp_path, resume=None,
        grace_s=1.0, master_port=1,
    )  # fmt: skip
    ranks = worker_environments(here, None)
    assert [(r["TIDEGATE_NODE"], r["LOCAL_RANK"], r["GROUP_RANK"]) for r in ranks] == [
        ("a", "0", "0"),
        ("a", "1", "0"),
        ("b", "0", "1"),
    ]
    assert [r["CUDA_VISIBLE_DEVICES"] for r in ranks] == ["0,3", "0,3", "1"]
    assert {r["CUDA_VISIBLE_DEVICES"] for r in worker_environments(here, {})} == {""}
    with pytest.raises(ValueError, match="gpu_ids: a has 2 GPUs, so none of index 3"):
        worker_environments(here, {"a": ["X", "Y"], "b": ["X", "Y"]})


def test_the_supervisor_is_small(tmp_path: Path) -> None:
    with bench(tmp_path) as jig:
        jig.begins(shell("sleep 1000"))
        pid = jig.shim()["pid"]
        said = Path(f"/proc/{pid}/status").read_text()
        resident = next(line for line in said.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) < 24 * 1024, resident


def test_a_group_whose_leader_is_reaped_is_known_by_its_processes(tmp_path: Path) -> None:
    """Its number may be given to others: here it was."""
    stranger = tmp_path / "pid"
    argv = ["setsid", "--fork", "sh", "-c", f"echo $$ > {stranger}; exec sleep 100"]
    subprocess.run(argv, check=True)
    wait_until(lambda: stranger.exists() and stranger.read_text())
    pid = int(stranger.read_text())
    member = WorkerProcess({"rank": 0, "env": {}}, RotatingLog(tmp_path / "log", 1000, 1))
    member.pid, member.status = pid, 0
    try:
        assert not member.signal_group(signal.SIGKILL)
        assert identity(pid) is not None
    finally:
        os.kill(pid, signal.SIGKILL)
