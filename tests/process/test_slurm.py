"""What is handed to Slurm, what is read of its answers, and what is remembered of a gang."""

import contextlib
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cloud_agent.clusters.attempt import Work
from cloud_agent.clusters.gang_record import forget, load, write
from cloud_agent.options import SlurmOptions
from cloud_agent.slurm.attempt import Attempt
from cloud_agent.slurm.commands import Slurm, SlurmError, by_gang
from cloud_agent.slurm.executor import _Cluster
from cloud_agent.slurm.run import Run, write_lease
from cloud_agent.slurm.scripts import (
    batch_script,
    keeper_script,
    sbatch_options,
    write_scripts,
)
from runtime.checkpoints.store import CheckpointStore
from runtime.core import CheckpointDone, GangCompleted, GangFailed, GangStopped, Placement
from runtime.executors.gang_record import GangRecord, StartedRun
from schemas.programs import Program
from tests.gangs import spec
from tests.patience import PATIENCE_S


def options(folder: Path, **more: Any) -> SlurmOptions:
    store = CheckpointStore(f"file://{folder}/store")
    return SlurmOptions(root=folder / "root", store=store, agent="a", **more)


def handed_in(folder: Path, placement: Placement, program: Program, **more: Any) -> list[str]:
    work = Work("j", program, StartedRun(3, placement, 0, None), folder / "run", "f")
    said = sbatch_options(work, Run(folder / "run"), "mark", options(folder, **more))
    return [one for one in said if not one.startswith(("--chdir", "--output", "--open", "--job"))]


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, script: str) -> Slurm:
    """A Slurm whose one command says this."""
    program = folder / "bin" / command
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    return Slurm(options(folder, command_s=20.0))


def test_even_gang_is_one_part_and_names_its_nodes(tmp_path: Path) -> None:
    program = Program(argv=["true"])
    placement = {"n2": (0, 1), "n1": (2, 3)}
    assert handed_in(tmp_path, placement, program, cpus_per_gpu=4, sbatch=["--partition=p"]) == [
        "--comment=mark",
        "--no-requeue",
        "--signal=TERM@60",
        "--nodes=2",
        "--nodelist=n1,n2",
        "--ntasks-per-node=2",
        "--cpus-per-task=4",
        "--gres=gpu:2",
        "--partition=p",
    ]


def test_uneven_gang_has_a_part_for_each_count_of_gpus(tmp_path: Path) -> None:
    program = Program(argv=["true"], workers="per_node")
    placement = {"n1": (0,), "n2": (0, 1), "n3": (0,)}
    assert handed_in(tmp_path, placement, program, gres="")[3:] == [
        *("--nodes=1", "--nodelist=n2", "--ntasks-per-node=1", "--cpus-per-task=2"),
        ":",
        *("--nodes=2", "--nodelist=n1,n3", "--ntasks-per-node=1", "--cpus-per-task=1"),
    ]


def test_scripts_are_shell_whatever_a_program_says(tmp_path: Path) -> None:
    odd = "a 'b' $(c) `d`\n\"e\" \\"
    program = Program(argv=["if", "x=1", odd], env={"ODD": odd}, workdir="/tmp/it's")
    run, started = Run(tmp_path / "a b'c"), StartedRun(1, {"n1": (0,)}, 0, tmp_path / "it's")
    work = Work("j", program, started, run.folder, "f")
    for text in (batch_script(run, options(tmp_path)), keeper_script(work, run, options(tmp_path))):
        done = subprocess.run(["bash", "-n"], input=text, text=True, check=False)
        assert done.returncode == 0
    said = keeper_script(work, run, options(tmp_path))
    exports = said.partition("(trap - INT QUIT; ")[2].partition("exec --")[0]
    shown = subprocess.run(
        ["bash", "-c", exports + '\nprintf %s "$ODD"'], capture_output=True, text=True, check=True
    )
    assert shown.stdout == odd


#: What srun tells a task.
_TASK = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_NODEID": "0",
    "SLURM_NNODES": "1",
    "SLURMD_NODENAME": "n1",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
}


def kept(
    folder: Path, lease: str | None, argv: list[str], workdir: str | None = None
) -> "subprocess.Popen[bytes]":
    """Begin a worker with its keeper, on a node that reads this lease."""
    said, run = options(folder), Run(folder / "root" / "runs" / "j" / "1")
    program = Program(argv=argv, workdir=workdir)
    work = Work("j", program, StartedRun(1, {"n1": (0,)}, 0, None), run.folder, "f")
    write_scripts(work, run, said)
    if lease is not None:
        (said.root / "lease").write_text(lease)
    env = {"PATH": "/bin:/usr/bin", **_TASK}
    return subprocess.Popen(["bash", run.folder / "keeper.sh"], env=env, start_new_session=True)


def test_a_workdir_that_is_not_there_is_named(tmp_path: Path) -> None:
    """It was said to have ended with code 73, and nothing else."""
    with kept(tmp_path, None, ["true"], workdir="/no/such/folder") as keeper:
        assert keeper.wait(PATIENCE_S) == 73
    said, runnable = Run(tmp_path / "root" / "runs" / "j" / "1").failures()
    assert runnable
    assert said.startswith("worker 0 on n1 ended with code 73: ")
    assert said.endswith("cd: /no/such/folder: No such file or directory")


def test_a_keeper_ends_its_worker_when_the_lease_ends(tmp_path: Path) -> None:
    write_lease(tmp_path, 100.2, 0.5)
    assert (tmp_path / "lease").read_text() == "101 1\n", "never shorter than it was given"
    deaf = ["python3", "-c", "import signal, time; signal.signal(15, 1); time.sleep(1000)"]
    keeper = kept(tmp_path, f"{time.time():.0f} 1\n", deaf)
    try:
        assert keeper.wait(PATIENCE_S) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(keeper.pid, signal.SIGKILL)
    assert Run(tmp_path / "root" / "runs" / "j" / "1").told(), "so that it is no success"


def test_a_lease_that_lasts_or_says_nothing_ends_nothing(tmp_path: Path) -> None:
    leases = (None, "", "garbage", "99999999999 60\n")
    waits = ["sh", "-c", "sleep 4; exit 7"]  # side by side
    keepers = [kept(tmp_path / str(n), lease, waits) for n, lease in enumerate(leases)]
    assert [keeper.wait(PATIENCE_S) for keeper in keepers] == [7] * len(leases)


def test_what_slurm_begins_after_the_lease_never_runs(tmp_path: Path) -> None:
    said, run = options(tmp_path), Run(tmp_path / "root" / "runs" / "j" / "1")
    run.folder.mkdir(parents=True)
    (said.root / "lease").write_text("1000 60\n")
    done = subprocess.run(["bash", "-c", batch_script(run, said)], check=False)
    assert done.returncode == 75
    assert run.claim() is None


def test_listing_is_read_with_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = "0123456789abcdef"
    rows = [
        f"7|RUNNING|None|tidegate agent=a job=j epoch=3|tidegate-j-3.{mine}",
        f"8+0|COMPLETED|None|tidegate agent=a job=k epoch=1|tidegate-j-3.{mine}",
        f"8+1|COMPLETING|None|tidegate agent=a job=k epoch=1|tidegate-j-3.{mine}",
        f"9+0|COMPLETED|None|tidegate agent=a job=l epoch=1|tidegate-j-3.{mine}",
        f"9+1|NODE_FAIL|None|tidegate agent=a job=l epoch=1|tidegate-j-3.{mine}",
        f"10|RUNNING|None|tidegate agent=b job=j epoch=3|tidegate-j-3.{mine}",
        f"11|RUNNING|a|b|tidegate agent=a job=j epoch=3|tidegate-j-3.{mine}",
        "13|RUNNING|None|tidegate agent=a job=m epoch=3|tidegate-m-3",
        "12_[1-4]|PENDING|Priority|(null)|my-job",
        "",
        "garbage",
    ]
    listed = "\n".join(rows)
    slurm = answering(tmp_path, monkeypatch, "squeue", f"cat <<'END'\n{listed}\nEND")
    jobs = slurm.jobs()
    assert [one.folder_id for one in jobs] == [mine, mine, mine, ""]
    found = {one.id: (one.job, one.epoch, one.state, one.ended) for one in jobs}
    assert found == {
        7: ("j", 3, "RUNNING", False),
        8: ("k", 1, "COMPLETING", False),
        9: ("l", 1, "NODE_FAIL", True),
        13: ("m", 3, "RUNNING", False),
    }
    assert list(by_gang(jobs)) == [("j", 3), ("k", 1), ("l", 1), ("m", 3)]


def test_an_agent_cancels_nothing_of_another_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another cell, which has the same user and a folder of its own."""
    mine, others = "0123456789abcdef", "fedcba9876543210"
    rows = [
        f"{number}|RUNNING|None|tidegate agent=a job={job} epoch=3|tidegate-{job}-3{folder}"
        for number, job, folder in (
            (1, "j", f".{mine}"),
            (2, "k", f".{others}"),
            (3, "earlier", ""),
            (4, "claimed", f".{others}"),
        )
    ]
    listed = "\n".join(rows)
    answering(tmp_path, monkeypatch, "squeue", f"cat <<'END'\n{listed}\nEND")
    scancel, asked = tmp_path / "bin" / "scancel", tmp_path / "asked"
    scancel.write_text(f'#!/bin/sh\necho "$1" >> {asked}\n')
    scancel.chmod(0o755)
    run = Run(tmp_path / "root" / "runs" / "claimed" / "3")
    run.folder.mkdir(parents=True)
    (run.folder / "claim").symlink_to("4")
    cluster = _Cluster(options(tmp_path, poll_s=PATIENCE_S))
    cluster.look(mine)
    cluster.delete_orphans({("claimed", 3)})
    assert asked.read_text().split() == ["1", "3"]
    assert list(cluster._listing or {}) == [("j", 3), ("earlier", 3), ("claimed", 3)]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo nonsense", "answered 'nonsense\\\\n', not a job's id"),
        ("echo 12; exit 1", "ended with 1"),
        ("echo no such partition >&2; exit 1", "no such partition"),
    ],
)
def test_answer_that_is_none_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    slurm = answering(tmp_path, monkeypatch, "sbatch", script)
    with pytest.raises(SlurmError, match=said):
        slurm.submit([], tmp_path / "batch.sh")


def test_command_that_is_missing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="install slurm-client"):
        Slurm(options(tmp_path)).jobs()


@pytest.mark.parametrize(("mode", "text"), [(0o644, "#!/bin/sh\n"), (0o755, "echo a wrapper\n")])
def test_command_that_cannot_be_run_is_slurm_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, text: str
) -> None:
    """The agent took it for a shared folder that does not answer, and looked after no gang."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "squeue").write_text(text)
    (tmp_path / "squeue").chmod(mode)
    cluster = _Cluster(options(tmp_path, poll_s=PATIENCE_S))
    cluster.look("0123456789abcdef")
    assert "squeue: cannot be run: " in (cluster.away or "")


def test_a_job_whose_reservation_was_deleted_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to run, and no limit of waiting ended it."""
    row = "7|RESV_DEL_HOLD|ReservationDeleted|tidegate agent=a job=j epoch=3|tidegate-j-3"
    slurm = answering(tmp_path, monkeypatch, "squeue", f"echo '{row}'")
    assert [one.waits for one in slurm.jobs()] == [True]


def test_a_full_folder_leaves_the_keeper_of_what_was_handed_in_before(tmp_path: Path) -> None:
    """A submission whose answer was lost is tried again, and Slurm may begin the job meanwhile.

    A keeper that was cut off ended with 0, and the job counted as completed.
    """
    said, run = options(tmp_path), Run(tmp_path / "root" / "runs" / "j" / "1")
    work = Work("j", Program(argv=["true"]), StartedRun(1, {"n1": (0,)}, 0, None), run.folder, "f")
    write_scripts(work, run, said)
    keeper = run.folder / "keeper.sh"
    before, limit = keeper.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limit[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_scripts(work, run, said)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert keeper.read_bytes() == before


@pytest.mark.parametrize(
    "final",
    [None, GangStopped("j", 4, 7), GangCompleted("j", 4, 9), GangFailed("j", 4, "why", False)],
)
def test_what_is_held_is_read_as_it_was_written(
    tmp_path: Path, final: GangStopped | GangCompleted | GangFailed | None
) -> None:
    started = StartedRun(3, {"n1": (0, 1)}, 5, tmp_path / "step-5")
    saved = CheckpointDone("j", 3, 5, "file:///s/j/3-5", 7, 0.5)
    held = GangRecord(
        "j",
        4,
        {"n2": (1,)},
        spec(program=Program(argv=["true"])),
        5,
        started,
        6,
        [3],
        [(2, 4)],
        saved,
        final,
    )
    write(held, tmp_path / "held")
    assert list(load(tmp_path / "held")) == [held]
    forget(tmp_path / "held", "j")
    assert list(load(tmp_path / "held")) == []


@pytest.mark.parametrize("text", ["", "[]", '{"job": "j"}', '{"job'])
def test_held_file_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "j.json").write_text(text)
    with pytest.raises(ValueError, match=r"j\.json.*end what the cluster runs of the job"):
        list(load(tmp_path))


def test_an_exit_that_a_job_made_up_is_named_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "exits").mkdir()
    for said in ("² n1", "", "-1 n1", "9" * 400 + " n1", "\x00"):
        (tmp_path / "exits" / "0").write_text(said)
        words, can_be_run = Run(tmp_path).failures()
        assert words.startswith("worker 0 on"), said
        assert can_be_run


def test_fence_is_taken_once(tmp_path: Path) -> None:
    closed, taken = Run(tmp_path / "1"), Run(tmp_path / "2")
    assert closed.close()
    assert closed.close()
    assert closed.claim() is None
    taken.folder.mkdir()
    (taken.folder / "claim").symlink_to("17")
    assert not taken.close()
    assert taken.claim() == 17


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("poll_s", 0.0),
        ("grace_s", -1.0),
        ("checkpoint_retention", 0),
        ("sbatch", ["-p x"]),
        ("agent", ""),
    ],
)
def test_option_out_of_range_is_named(tmp_path: Path, field: str, value: object) -> None:
    chosen: dict[str, Any] = {"root": tmp_path, "agent": "a", field: value}
    with pytest.raises(ValidationError) as error:
        SlurmOptions(store=CheckpointStore(f"file://{tmp_path}"), **chosen)
    assert [one["loc"] for one in error.value.errors()] == [(field,)]


def test_a_job_with_secrets_is_refused_for_good(tmp_path: Path) -> None:
    program = Program(argv=["true"], secrets={"TOKEN": "hub"})
    work = Work("j", program, StartedRun(1, {"n1": (0,)}, 0, None), tmp_path / "run", "f")
    said = options(tmp_path)
    attempt = Attempt(said, Slurm(said), dict, work)
    attempt.advance(0.0, None)
    assert attempt.ended is not None
    assert not attempt.ended.ran
    assert "secrets" in attempt.ended.error
    assert not attempt.ended.retriable
    assert not work.folder.exists()
