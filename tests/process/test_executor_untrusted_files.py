"""Whatever a job writes in place of a file of its run, its agent goes on."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.core import GangStarted
from runtime.durable import write_json
from runtime.executors.folder import read_json
from runtime.executors.progress import ProgressFile
from runtime.untrusted_files import RECORD_MAX_BYTES, fits, open_regular_file, read_tail
from tests.workers import IDLE, Bench


def _text(said: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(said)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "nothing": _text(""),
    "{}": _text("{}"),
    "of other types": _text(
        json.dumps(
            {
                "pid": "x",
                "started": [],
                "boot": 1,
                "workers": 7,
                "resize": [],
                "begun": "y",
                "job": 5,
                "epoch": "1",
                "placement": [1],
                "step": {},
                "path": 1,
                "name": [],
                "grace_s": "x",
                "kill": 1,
                "why": [],
                "launch": 3,
                "cgroup": 3,
                "failed": "x",
            }
        )
    ),
    "deep": _text("[" * 100_000),
    "no text": lambda path: path.write_bytes(b"\\xff\\x00" * 100),
    "too large": _text(json.dumps({"a": "x" * RECORD_MAX_BYTES})),
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
}
RECORDS = (
    *("shim.json", "order.json", "exit.json", "stop.json", "resize.json", "committed.json"),
    *("kept.json", "progress.jsonl", "shim.log"),
)


@pytest.mark.parametrize("name", RECORDS)
def test_a_job_that_swaps_a_file_of_its_run_stops_no_agent(jig: Bench, name: str) -> None:
    for epoch, (what, swap) in enumerate(HOSTILE.items(), 1):
        jig.start(IDLE, epoch=epoch)
        jig.hears(GangStarted, epoch)
        path = jig.run(epoch) / name
        path.unlink(missing_ok=True)
        swap(path)
        jig.look()
        jig.again()
        for _ in range(3):
            jig.look()
        jig.stop(epoch, saves=False, grace_s=0.0)
        jig.look()
        assert what


def test_what_is_no_plain_file_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "shim.json"
    for what, swap in HOSTILE.items():
        swap(path)
        assert read_json(path) is None, what
        if what in ("a link", "a pipe", "a folder"):
            assert read_tail(path, 10) == b""
            with pytest.raises(OSError, match="shim"):
                open_regular_file(path)
            assert ProgressFile(path, tmp_path).read(1.0) == []
        if what == "a folder":
            path.rmdir()
        else:
            path.unlink()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "note.json"
    draft = f".note.json.{os.getpid()}-{threading.get_ident()}.draft"
    (tmp_path / draft).symlink_to(other)
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    assert not other.exists()


def test_shapes_are_exact() -> None:
    shape = {"a": int, "b": [(int, str)], "c": float}
    assert fits({"a": 1, "b": [1, "x"], "c": 2, "more": None}, shape)
    for wrong in ({"a": True}, {"b": [None]}, {"b": 1}, {"c": "1"}, {"a": 1.0}):
        assert not fits({"a": 1, "b": [], "c": 2.5, **wrong}, shape)
    assert not fits({"a": 1, "b": []}, shape)


def test_the_record_of_a_supervisor_that_an_earlier_release_began_is_read(tmp_path: Path) -> None:
    said: dict[str, object] = {"refused": None, "stopped": True, "failed": None}
    said |= {"oom_kills": 0, "workers": []}
    write_json(tmp_path / "exit.json", {**said, "notes": []})
    assert read_json(tmp_path / "exit.json") == {**said, "notes": []}
