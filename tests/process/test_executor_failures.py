"""What goes wrong with real workers is named, and says whether another try makes sense."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.core import CheckpointDone, GangCompleted, GangFailed, GangStarted
from runtime.executors.failures import failure
from runtime.executors.locks import Locked, lock_path, take
from runtime.executors.processes import descendants, identity, workers_of
from runtime.executors.worker_group import Refused, secret
from schemas.programs import Program
from tests.patience import wait_until
from tests.workers import NODE, TRAINER, Bench, bench, python, shell

ONE_FAILS = "[ $RANK = 1 ] || sleep 1000; sleep 0.5; echo cannot read shard 7; exit 3"
NO_MEMORY = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
LOST, MISSING = shell("exit 0", workdir="/no/such/folder"), Program(argv=["no-such-command", "x"])


@pytest.mark.parametrize(
    ("program", "gpus", "retriable", "error"),
    [
        (None, (0,), False, r"the job names no program; this agent runs real workers$"),
        (MISSING, (0, 1), False, r".*rank 0: the command was not found \(exit code 127, no-such-c"),
        (Program(argv=["/etc/passwd"]), (0,), False, r".*cannot be executed \(exit code 126"),
        (LOST, (0,), False, r"workdir: /no/such/folder is no folder on this machine"),
        (shell(ONE_FAILS), (0, 1, 2), True, r"rank 1 ended with exit code 3: cannot read shard 7$"),
        (
            shell("echo loading; kill -9 $$"),
            (0,),
            True,
            r"rank 0 was killed by signal 9, perhaps out of memory; it wrote last: loading$",
        ),
        (shell("kill -SEGV $$"), (0,), True, r"rank 0 was killed by signal 11"),
        (
            shell("true", secrets={"TOKEN": "hub"}),
            (0,),
            False,
            r"secrets: this agent has none; its operator gives it a folder of them in agent",
        ),
        (
            shell(f"echo '{NO_MEMORY}'; echo bye; exit 1"),
            (0,),
            True,
            r"rank 0 ended with exit code 1, out of GPU memory: bye$",
        ),
    ],
)
def test_what_ends_a_gang_is_named_and_whether_another_try_is_of_use(
    jig: Bench, program: Program | None, gpus: tuple[int, ...], retriable: bool, error: str
) -> None:
    jig.start(program, *gpus)
    said = jig.fails(retriable=retriable)
    assert re.match(error, said.error)
    assert said.ran is bool(re.search(r"\brank \d", said.error)), "only a worker has a rank"
    assert jig.pids() == set()


@pytest.mark.parametrize(
    ("value", "why"),
    [(b"to\0ken", "is no text"), (b"\xff", "is no text"), (b"x" * 65_537, "has more than 64 KiB")],
)
def test_a_secret_that_no_variable_can_hold_is_named(
    tmp_path: Path, value: bytes, why: str
) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"x" * 65_535 + b"\n")
    assert len(secret(file)) == 65_535
    file.write_bytes(value)
    with pytest.raises(Refused, match=f"/token: {why}; ask the operator"):
        secret(file)


def test_a_cgroup_without_memory_is_recognised(tmp_path: Path) -> None:
    worker = {"rank": 0, "code": None, "signal": 9, "line": "", "gpu_memory": False}
    record = {"refused": None, "failed": 0, "oom_kills": 1, "workers": [worker]}
    why = failure(record, tmp_path, "x")
    assert why is not None
    assert why.error == "rank 0 ran out of memory (the limit of the gang's cgroup)"


def test_what_a_failed_job_had_saved_is_made_durable_first(jig: Bench) -> None:
    jig.start(python(TRAINER.replace("save()\n", "save(); os._exit(5)\n"), env={"STEPS": "3"}))
    failed = jig.hears(GangFailed)
    assert "exit code 5" in failed.error
    kinds = [type(report) for report in jig.said]
    assert kinds == [GangStarted, CheckpointDone, GangFailed]


def test_children_that_outlive_their_worker_are_ended(jig: Bench) -> None:
    # One stays in the group of the worker, one leaves it, and one disowns its parent too.
    code = "sleep 1000 & setsid sleep 1000 & (setsid setsid sleep 1000 &) ; sleep 0.3; exit 0"
    jig.start(shell(code))
    jig.hears(GangCompleted)
    assert jig.pids() == set()


def test_a_killed_supervisor_takes_the_workers_with_it(jig: Bench) -> None:
    jig.start(python(TRAINER + "\n"), 0, 1)
    jig.until(lambda: jig.step() > 0)
    assert len(jig.pids()) == 3
    jig.hurt(signal.SIGKILL)
    jig.fails("supervisor died")
    assert jig.pids() == set()
    os.close(
        take(lock_path(jig.options.lock_folder, NODE, 0, jig.options.gpu_ids), {})
    )  # free again


def test_children_of_killed_workers_are_ended_too(jig: Bench) -> None:
    jig.begins(shell("setsid sleep 1000 & sleep 1000"))
    jig.until(lambda: len(jig.pids()) == 4)
    jig.hurt(signal.SIGKILL)
    jig.hears(GangFailed)
    assert jig.pids() == set()


def test_a_gang_that_is_killed_leaves_nobody_who_hides_whose_it_is(tmp_path: Path) -> None:
    hides = f"{tmp_path}/hides"
    say = f"""(env -i setsid sh -c 'echo $$ > {hides}; exec sleep 1000' &)
    until [ -s {hides} ]; do sleep 0.05; done; echo '{{"step": 4}}' >> $TIDEGATE_PROGRESS
    exec sleep 1000"""
    # Where there can be no cgroup, nothing else would find it.
    with bench(tmp_path, stuck_after_s=0.3, end_stuck=True, cgroup=tmp_path / "none") as jig:
        jig.start(shell(say))
        jig.fails("stuck")
        pid = int(Path(hides).read_text())
        try:
            wait_until(lambda: identity(pid) is None)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_processes_without_an_environment_are_waited_for_together() -> None:
    script = "for i in $(seq 100); do env -i sleep 1000 & done; echo up; wait"
    with subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, process_group=0
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"up\n"
            wait_until(
                lambda: all(
                    Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
                    for pid in descendants(process.pid)
                )
            )
            begun_s = time.monotonic() - time.process_time()
            list(workers_of("nobody"))
            waited_s = time.monotonic() - time.process_time() - begun_s
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert waited_s < 2.0, "not 50 ms for each"


def test_a_gpu_in_strange_hands_is_refused_and_the_holder_named(jig: Bench) -> None:
    path = lock_path(jig.options.lock_folder, NODE, 1, jig.options.gpu_ids)
    held = take(path, {"job": "other", "epoch": 7, "pid": 4711})
    with pytest.raises(Locked, match="job other, epoch 7, process 4711"):
        take(path, {})
    jig.start(shell("sleep 1000"), 0, 1)
    failed = jig.hears(GangFailed)
    assert failed.error == (
        "gpu-1.lock is held by job other, epoch 7, process 4711; it is free when that has ended"
    )
    assert failed.retriable
    os.close(held)
    jig.begins(shell("sleep 1000"), 0, 1, epoch=2)


def test_two_gangs_are_never_on_one_gpu(jig: Bench) -> None:
    jig.begins(shell("sleep 1000"), 0, job="first")
    jig.start(shell("sleep 1000"), 0, job="second")
    failed = jig.hears(GangFailed)
    assert failed.job == "second"
    assert "held by job first, epoch 1" in failed.error


def test_two_agents_of_one_machine_do_not_touch_each_others_workers(
    jig: Bench, tmp_path: Path
) -> None:
    with bench(tmp_path / "other") as other:  # the same job at the same epoch
        for one in (jig, other):
            one.begins(shell("sleep 1000"))
        other.ends(1, saves=False)
        jig.look()
        jig.ends()
    assert jig.all(GangFailed) == []


def test_a_supervisor_that_others_end_lets_the_workers_save(jig: Bench) -> None:
    jig.trains(python(TRAINER))
    jig.hurt(signal.SIGTERM)
    assert "somebody other than the agent" in jig.hears(GangFailed).error
    assert jig.all(CheckpointDone)[-1].step > 2


def test_a_gang_that_stands_still_is_noticed(tmp_path: Path) -> None:
    say = """echo '{"step": 4}' >> $TIDEGATE_PROGRESS; sleep 1000"""
    with bench(tmp_path, stuck_after_s=0.3) as jig:
        jig.start(shell(say))
        jig.until(lambda: jig.executor.stuck(time.time()))
        assert [job for job, _ in jig.executor.stuck(time.time())] == ["j"]
        assert jig.all(GangFailed) == []
    with bench(tmp_path / "again", stuck_after_s=0.3, end_stuck=True) as jig:
        jig.start(shell(say))
        assert jig.fails().error == "stuck: alive, but no step after 4"


def test_a_start_right_after_one_that_failed_at_once_is_carried_out(jig: Bench) -> None:
    jig.start(None)
    jig.start(None)  # the same again is answered once
    jig.start(python(TRAINER), epoch=2)
    assert jig.hears(GangStarted).epoch == 2
    assert [one.epoch for one in jig.all(GangFailed)] == [1]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose agent has a disk of 4 MiB."""
    disk = tmp_path / "agent"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=711", "small", disk], check=True)
    try:
        with bench(tmp_path) as made:
            yield made
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_job_that_is_done_is_done_also_on_a_full_disk(small: Bench) -> None:
    small.start(shell("cat /dev/zero > all; true"))
    small.hears(GangCompleted)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_why_a_job_failed_is_known_also_on_a_full_disk(small: Bench) -> None:
    small.start(shell("cat /dev/zero > all; echo no room for shard 7; exit 3"))
    assert "rank 0 ended with exit code 3: no room for shard 7" in small.fails(retriable=True).error
