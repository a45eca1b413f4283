"""Files that executors and supervisors keep: logs within bounds, whole files, locks of GPUs."""

from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints.store import CheckpointStore
from runtime.durable import write_json
from runtime.executors.folder import read_json
from runtime.executors.locks import lock_path
from runtime.executors.logs import RotatingLog, last_line
from runtime.executors.options import ProcessOptions
from tests.workers import bench, shell


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


def test_options_say_which_of_them_is_wrong(tmp_path: Path) -> None:
    store = CheckpointStore(f"file://{tmp_path}")
    for name, value in {"log_files": 0, "grace_s": -1.0, "cpus": 0.0, "memory_mib": 0}.items():
        wrong: dict[str, Any] = {name: value}
        with pytest.raises(ValueError, match=name):
            ProcessOptions(root=tmp_path, store=store, agent="a", **wrong)
    with pytest.raises(ValueError, match="root"):
        ProcessOptions(root=Path("here"), store=store, agent="a")


def test_orders_are_for_their_owner_alone(tmp_path: Path) -> None:
    write_json(tmp_path / "order.json", {"env": {"TOKEN": "secret"}})
    assert (tmp_path / "order.json").stat().st_mode & 0o777 == 0o600


def test_a_gpu_has_one_lock_whatever_its_node_is_called(tmp_path: Path) -> None:
    ids = {"a": ["GPU-1", "GPU-2"], "b": ["GPU-2"], "slots": []}
    assert lock_path(tmp_path, "a", 1, ids) == lock_path(tmp_path, "b", 0, ids)
    assert lock_path(tmp_path, "a", 0, ids) != lock_path(tmp_path, "a", 1, ids)
    assert lock_path(tmp_path, "a", 0, None) == lock_path(tmp_path, "b", 0, None)
    # Slots of processors are nobody else's.
    assert lock_path(tmp_path, "slots", 0, ids) != lock_path(tmp_path, "more", 0, ids)
    assert lock_path(tmp_path, "a", 0, {"a": ["MIG-x/1/0"]}).parent == tmp_path
