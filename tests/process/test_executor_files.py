"""What jobs and supervisors write is read with patience and kept within bounds."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints.store import Checkpoint, CheckpointError, CheckpointStore
from runtime.core import Pace
from runtime.durable import write_json
from runtime.executors.cgroups import Cgroup, make_cgroup, own_cgroup
from runtime.executors.environment import RunEnvironment, worker_environments
from runtime.executors.folder import read_json
from runtime.executors.locks import lock_path
from runtime.executors.logs import RotatingLog, last_line
from runtime.executors.options import ExecutorOptions, ProcessOptions
from runtime.executors.processes import Identity, catches, has_in_environment, identity
from runtime.executors.progress import PACE, AnnouncedCheckpoint, ProgressFile
from runtime.executors.uploading import CheckpointUploader, LocalCheckpoint, Uploaded, UploadFailed
from runtime.executors.worker_group import WorkerProcess
from schemas.events import JobProgressed
from schemas.programs import Program
from tests.builders import progressed
from tests.patience import PATIENCE_S, wait_until
from tests.workers import bench, shell


def _follow(tmp_path: Path, text: bytes) -> tuple[ProgressFile, list[AnnouncedCheckpoint]]:
    path = tmp_path / "progress.jsonl"
    path.write_bytes(text)
    file = ProgressFile(path, tmp_path / "checkpoints")
    return file, file.read(1.0)


def _say(tmp_path: Path, text: bytes) -> None:
    with (tmp_path / "progress.jsonl").open("ab") as more:
        more.write(text)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"nonsense", "not_json"),
        (b"[1, 2]", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b"[" * 30_000, "not_json"),
        (b'{"step": ' + b"9" * 5000 + b"}", "not_json"),
        (b'{"step": ' + b"9" * 400 + b"}", "bad_step"),
        (b'{"samples_per_s": 1' + b"0" * 400 + b"}", "bad_rate"),
        (b'{"step": -1}', "bad_step"),
        (b'{"step": NaN}', "bad_step"),
        (b'{"step": 1e400}', "bad_step"),
        (b'{"step": 1.5}', "bad_step"),
        (b'{"step": true}', "bad_step"),
        (b'{"step": "7"}', "bad_step"),
        (b'{"step": 3}', "step_back"),
        (b'{"samples_per_s": -1}', "bad_rate"),
        (b'{"samples_per_s": Infinity}', "bad_rate"),
        (b'{"step": 6, "checkpoint": "../../etc"}', "bad_checkpoint"),
        (b'{"step": 6, "checkpoint": "/etc"}', "bad_checkpoint"),
        (b'{"step": 6, "checkpoint": ""}', "bad_checkpoint"),
        (b'{"step": 6, "checkpoint": 6}', "bad_checkpoint"),
        (b'{"checkpoint": "x"}', "bad_checkpoint"),
        (b"x" * 70_000, "too_long"),
        (b"x" * 3_000_000, "too_long"),
    ],
)
def test_a_bad_line_is_counted_and_the_next_one_counts(
    tmp_path: Path, line: bytes, fault: str
) -> None:
    text = b'{"step": 5}\n' + line + b'\n{"step": 7, "loss": NaN, "checkpoint": "c"}\n'
    file, announced = _follow(tmp_path, text)
    while file.behind:
        announced += file.read(1.0)
    assert dict(file.faults) == {fault: 1}
    assert file.step == 7
    assert announced == [AnnouncedCheckpoint(7, tmp_path / "checkpoints" / "c", None)]


def test_a_line_that_is_being_written_waits_for_its_end(tmp_path: Path) -> None:
    file, _ = _follow(tmp_path, b'{"step": 5}\n{"st')
    assert file.step == 5
    _say(tmp_path, b'ep": 6, "checkpoint": "c", "pause_s": 1.5}\n')
    assert file.read(2.0) == [AnnouncedCheckpoint(6, tmp_path / "checkpoints" / "c", 1.5)]
    assert not file.faults


def test_a_file_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    file, _ = _follow(tmp_path, b'{"step": 5}\n{"step": 6}\n')
    (tmp_path / "progress.jsonl").write_bytes(b'{"step": 8}\n')
    file.read(2.0)
    assert (file.step, file.faults["cut"]) == (8, 1)


def test_the_rate_is_what_the_job_says_or_what_its_steps_show(tmp_path: Path) -> None:
    file, _ = _follow(tmp_path, b'{"step": 10}\n')
    assert file.samples_per_s(8) is None
    _say(tmp_path, b'{"step": 30}\n')
    file.read(11.0)
    assert file.samples_per_s(8) == 16.0
    _say(tmp_path, b'{"samples_per_s": 12.5}\n')
    file.read(12.0)
    assert file.samples_per_s(8) == 12.5


def test_the_pace_is_a_mean_of_what_was_said_since_it_was_asked(tmp_path: Path) -> None:
    def say(*lines: str) -> Pace:
        _say(tmp_path, "".join(f"{line}\n" for line in lines).encode())
        file.read(2.0)
        return file.pace(8)

    file, _ = _follow(tmp_path, b'{"step": 1, "step_s": 99}\n')
    assert file.pace(8) == Pace(), "what was there before was said to somebody else"
    assert say('{"samples_per_s": 4}', '{"samples_per_s": 8}') == Pace(step_s=1.5)
    assert say('{"samples_per_s": 4, "samples_per_step": 16}') == Pace(16.0, 4.0)
    said = say(
        '{"step_s": 1, "pass_s": 0.5, "gradient_noise": 10, "samples_per_s": 1}',
        '{"step_s": 2, "pass_s": 0.7, "gradient_noise": 30}',
    )
    assert said == Pace(None, 1.5, 0.6, 20.0)
    assert say('{"step_s": 7}', '{"generation": 2}', '{"step_s": 3}') == Pace(step_s=3.0)
    assert not file.faults
    bad = ("0", "-1", "NaN", "1e300", '"fast"', "true", "1e400", "null")
    assert say(*(f'{{"step_s": {value}}}' for value in bad)) == Pace()
    assert dict(file.faults) == {"bad_pace": len(bad)}
    assert say('{"samples_per_s": 1e-320}') == Pace()
    for edge in (0, 1):  # what is let through, the schema must let through, or the agent ends
        line = {name: bounds[edge] for name, bounds in PACE.items()}
        word = progressed(1).model_dump()
        JobProgressed.model_validate(word | asdict(say(json.dumps(line))))


def test_figures_of_its_own_are_the_newest_that_can_be_reported(tmp_path: Path) -> None:
    def say(line: str) -> dict[str, float]:
        _say(tmp_path, f"{line}\n".encode())
        file.read(2.0)
        return file.metrics

    file, _ = _follow(tmp_path, b'{"step": 1, "metrics": {"loss": 3}}\n')
    assert file.metrics == {"loss": 3.0}
    assert say('{"step": 2, "metrics": {"loss": 2.5, "val/accuracy": 0.5}}') == {
        "loss": 2.5,
        "val/accuracy": 0.5,
    }
    assert say('{"metrics": {"loss": 2}}') == {"loss": 2.0, "val/accuracy": 0.5}
    assert (file.step, dict(file.faults)) == (2, {})
    bad = ('"a"', "7", "null", '{"loss": NaN}', '{"<b>": 1}', '{"val/accuracy": "high"}')
    for line in bad:
        say(f'{{"step": 3, "metrics": {line}}}')
    assert file.metrics == {}, "what is no number any more is not reported as what it was"
    assert (file.step, dict(file.faults)) == (3, {"bad_metric": len(bad)})
    say(json.dumps({"step": 4, "metrics": {f"m{n}": n for n in range(20)}}))
    assert file.metrics == {f"m{n}": float(n) for n in range(8)}
    assert (file.step, file.faults["bad_metric"]) == (4, len(bad) + 12)
    say('{"metrics": {"m0": 1' + "0" * 400 + ', "m1": 1e300}}')
    assert file.metrics["m1"] == 1e300
    # What is let through, the schema must let through, or the agent ends.
    JobProgressed.model_validate(progressed(1).model_dump() | {"metrics": file.metrics})


def test_logs_keep_the_newest_within_their_bounds(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "x.log", max_bytes=100, files=3)
    for number in range(100):
        log.write(b"line %04d\n" % number)
    assert last_line(log.tail()) == "line 0099"
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["x.log", "x.log.1", "x.log.2", "x.log.dropped"]
    assert all(path.stat().st_size <= 100 for path in files)
    assert (tmp_path / "x.log").read_bytes().endswith(b"line 0099\n")


def test_a_chatty_worker_fills_no_disk(tmp_path: Path) -> None:
    with bench(tmp_path, log_max_mib=1, log_files=2) as jig:
        jig.start(shell("for i in {1..4}; do head -c 1000000 /dev/zero; done; echo end; exit 4"))
        jig.until(lambda: jig.said and "end" in getattr(jig.said[-1], "error", ""))
        logs = [path for path in (jig.run() / "logs").iterdir() if path.suffix != ".dropped"]
        sizes = [path.stat().st_size for path in logs]
        assert len(sizes) == 2
        assert max(sizes) <= 1024 * 1024


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "none" / "x.log", max_bytes=100, files=1)
    log.write(b"out of disk\n")
    assert log.tail() == "out of disk\n"


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_json(path) is None
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]
    path.write_text('{"a": ')
    assert read_json(path) is None
    path.write_text("[]")
    assert read_json(path) is None


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
    mounts.write_text("30 1 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n")
    assert own_cgroup(mounts, mine) == Path("/sys/fs/cgroup/agents/one")
    mounts.write_text("30 1 0:26 /agents /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert own_cgroup(mounts, mine) == Path("/sys/fs/cgroup/one")
    mounts.write_text("30 1 0:26 / /proc rw - proc proc rw\n")
    assert own_cgroup(mounts, mine) is None
    assert own_cgroup(tmp_path / "none", mine) is None


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


class _Shaky(CheckpointStore):
    """Fails as often as it is told to."""

    failures = 0

    def commit(self, *args: Any, **more: Any) -> Checkpoint:
        if self.failures > 0:
            self.failures -= 1
            raise CheckpointError("the store is away")
        return super().commit(*args, **more)


def _checkpoint(tmp_path: Path, step: int, name: str | None = None) -> LocalCheckpoint:
    path = tmp_path / (name or f"c{step}")
    path.write_text(str(step))
    return LocalCheckpoint(tmp_path, 1, AnnouncedCheckpoint(step, path, None), 1.0)


def _outcome(uploader: CheckpointUploader, now_s: float) -> Uploaded | UploadFailed:
    found: list[Uploaded | UploadFailed] = []

    def looked() -> bool:
        if (result := uploader.advance(now_s)) is not None:
            found.append(result)
        return bool(found)

    wait_until(looked)
    return found[0]


def _uploader(tmp_path: Path, store: CheckpointStore, retention: int = 2) -> CheckpointUploader:
    options = ExecutorOptions(root=tmp_path, store=store, agent="a", checkpoint_retention=retention)
    return CheckpointUploader(options, "j", 0)


def test_of_the_checkpoints_that_wait_the_newest_is_made_durable(tmp_path: Path) -> None:
    store = CheckpointStore(f"file://{tmp_path}/store")
    uploader = _uploader(tmp_path, store)
    for step in (1, 2, 3):
        uploader.add(_checkpoint(tmp_path, step))
    done = _outcome(uploader, 5.0)
    assert isinstance(done, Uploaded)
    assert (done.checkpoint.step, uploader.step, uploader.busy) == (3, 3, False)
    uploader.add(_checkpoint(tmp_path, 2))
    assert not uploader.busy
    wait_until(lambda: sorted(p.name for p in tmp_path.glob("c?")) == ["c2", "c3"])


def test_however_many_checkpoints_are_removed_at_once_one_thread_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, goes_on, most = threading.active_count(), threading.Event(), 0
    removed: list[str] = []

    def remove(path: Path) -> None:
        goes_on.wait(PATIENCE_S)
        removed.append(path.name)

    monkeypatch.setattr("runtime.executors.removing.remove_tree", remove)
    uploader = _uploader(tmp_path, CheckpointStore(f"file://{tmp_path}/store"))
    for step in range(1, 501):
        uploader.add(_checkpoint(tmp_path, step))
        most = max(most, threading.active_count())
    _checkpoint(tmp_path, 501, "c17")  # written again before the old one's turn has come
    goes_on.set()
    wait_until(lambda: len(removed) >= 498)
    assert most - before < 10, "one that removes, and one that syncs"
    assert {one.name for one in tmp_path.glob("c*")} == {"c17", "c499", "c500"}
    assert (tmp_path / "c17").read_text() == "501"
    assert all(name.startswith(".removed-") for name in removed)


def test_one_name_written_again_and_again_is_not_removed(tmp_path: Path) -> None:
    uploader = _uploader(tmp_path, CheckpointStore(f"file://{tmp_path}/store"), retention=1)
    for step in (1, 2, 3):
        uploader.add(_checkpoint(tmp_path, step, "latest"))
        assert isinstance(_outcome(uploader, 5.0), Uploaded)
    assert (tmp_path / "latest").read_text() == "3"
    assert threading.active_count() < 50


def test_a_failure_is_said_once_or_tried_again_where_it_is_the_last_chance(tmp_path: Path) -> None:
    store = _Shaky(f"file://{tmp_path}/store")
    uploader = _uploader(tmp_path, store)
    store.failures = 1
    uploader.add(_checkpoint(tmp_path, 1))
    assert _outcome(uploader, 5.0) == UploadFailed("checkpoint of step 1: the store is away")
    assert not uploader.busy
    store.failures = 2
    uploader.retry_until(100.0)
    uploader.add(_checkpoint(tmp_path, 2))
    found: list[object] = []
    for now_s in range(6, 20):
        wait_until(lambda: uploader._upload is None or uploader._upload.future.done())
        found.append(uploader.advance(float(now_s)))
    assert [type(one) for one in found if one is not None] == [Uploaded]


def test_the_supervisor_is_small(tmp_path: Path) -> None:
    with bench(tmp_path) as jig:
        jig.begins(shell("sleep 1000"))
        pid = jig.shim()["pid"]
        said = Path(f"/proc/{pid}/status").read_text()
        resident = next(line for line in said.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) < 24 * 1024, resident


def test_options_say_which_of_them_is_wrong(tmp_path: Path) -> None:
    store = CheckpointStore(f"file://{tmp_path}")
    for name, value in {"log_files": 0, "grace_s": -1.0, "cpus": 0.0, "memory_mib": 0}.items():
        wrong: dict[str, Any] = {name: value}
        with pytest.raises(ValueError, match=name):
            ProcessOptions(root=tmp_path, store=store, agent="a", **wrong)
    with pytest.raises(ValueError, match="root"):
        ProcessOptions(root=Path("here"), store=store, agent="a")


def test_a_gpu_has_one_lock_whatever_its_node_is_called(tmp_path: Path) -> None:
    ids = {"a": ["GPU-1", "GPU-2"], "b": ["GPU-2"], "slots": []}
    assert lock_path(tmp_path, "a", 1, ids) == lock_path(tmp_path, "b", 0, ids)
    assert lock_path(tmp_path, "a", 0, ids) != lock_path(tmp_path, "a", 1, ids)
    assert lock_path(tmp_path, "a", 0, None) == lock_path(tmp_path, "b", 0, None)
    # Slots of processors are nobody else's.
    assert lock_path(tmp_path, "slots", 0, ids) != lock_path(tmp_path, "more", 0, ids)
    assert lock_path(tmp_path, "a", 0, {"a": ["MIG-x/1/0"]}).parent == tmp_path


def test_orders_are_for_their_owner_alone(tmp_path: Path) -> None:
    write_json(tmp_path / "order.json", {"env": {"TOKEN": "secret"}})
    assert (tmp_path / "order.json").stat().st_mode & 0o777 == 0o600


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
