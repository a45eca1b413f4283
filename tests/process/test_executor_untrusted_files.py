"""Whatever a job writes in place of a file of its run, its agent goes on."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.checkpoints.store import CheckpointStore
from runtime.core import CheckpointDone, GangCompleted, GangStarted
from runtime.durable import write_json
from runtime.executors.folder import read_json
from runtime.executors.options import ExecutorOptions
from runtime.executors.progress import AnnouncedCheckpoint, ProgressFile
from runtime.executors.uploading import CheckpointUploader, LocalCheckpoint, UploadFailed
from runtime.trees import entries_below, remove_tree
from runtime.untrusted_files import RECORD_MAX_BYTES, fits, open_regular_file, read_tail
from tests.patience import wait_until
from tests.workers import IDLE, abyss, bench, deepen, shell


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
def test_a_job_that_swaps_a_file_of_its_run_stops_no_agent(tmp_path: Path, name: str) -> None:
    with bench(tmp_path, quiet_start_s=0.05) as jig:
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


@pytest.mark.parametrize("name", ["x" * 300, "\ud800", "file/below"])
def test_a_checkpoint_whose_name_leads_nowhere_is_not_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    store = CheckpointStore(f"file://{tmp_path}/store")
    uploader = CheckpointUploader(ExecutorOptions(root=tmp_path, store=store, agent="a"), "j", 0)
    announced = AnnouncedCheckpoint(2, tmp_path / name, None)
    uploader.add(LocalCheckpoint(tmp_path, 1, announced, 1.0))
    uploader.retry_until(100.0)
    found: list[object] = []

    def looked() -> bool:
        if (result := uploader.advance(6.0)) is not None:
            found.append(result)
        return bool(found)

    wait_until(looked)
    assert isinstance(found[0], UploadFailed), "another time it is not there, too"
    assert uploader.newest_here() is None
    assert uploader.newest_is_durable
    assert not uploader.busy


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


def test_a_job_that_fills_its_checkpoint_with_folders_without_end_stops_no_agent() -> None:
    with abyss() as place, bench(place) as jig:
        said = '{"step": 1, "checkpoint": "one"}'
        jig.start(
            shell(f"""
            mkdir $TIDEGATE_CHECKPOINT_DIR/one; echo 1 > $TIDEGATE_CHECKPOINT_DIR/one/file
            echo '{said}' >> $TIDEGATE_PROGRESS
            until [ -e $TIDEGATE_CHECKPOINT_DIR/../go ]; do sleep 0.05; done""")
        )
        jig.hears(CheckpointDone)
        wait_until((jig.run() / "kept.json").exists)
        jig.look()
        deepen(jig.run() / "checkpoints" / "one", 1500)
        (jig.run() / "committed.json").unlink()  # so that it looks like a result that is not stored
        (jig.run() / "go").touch()
        jig.hears(GangCompleted)
        jig.look()
        jig.again()
        for epoch in (2, 3):
            jig.start(shell("true"), job="k", epoch=epoch)
            jig.hears(GangCompleted, epoch)


def test_a_run_of_folders_without_end_does_not_keep_others_from_being_removed() -> None:
    with abyss() as place:
        trash = place / "agent" / "trash"
        for name in ("0", "1"):  # before there is anybody who would remove them as they are made
            (trash / name).mkdir(parents=True)
            deepen(trash / name, 1500)
        with bench(place) as jig:
            assert jig.options.root == trash.parent
            wait_until(lambda: list(trash.iterdir()) == [])


def test_a_folder_of_any_depth_is_removed_and_no_link_is_followed() -> None:
    with abyss() as tmp_path:
        other, top = tmp_path / "other", tmp_path / "top"
        other.mkdir()
        (other / "file").write_text("of another")
        (top / "wide").mkdir(parents=True)
        for number in range(100):
            (top / "wide" / f"{number}").mkdir()
            (top / "wide" / f"{number}" / "file").touch()
        deepen(top, 3000)
        (top / "link").symlink_to(other)
        (top / "wide" / "link").symlink_to(other / "file")
        os.mkfifo(top / "pipe")
        Path(os.fsdecode(os.fsencode(top) + b"/\xff")).touch()
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        remove_tree(top)
        assert not top.exists()
        assert (other / "file").read_text() == "of another"
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        (tmp_path / "link").symlink_to(other)
        remove_tree(tmp_path / "link")
        remove_tree(tmp_path / "is-not-there")
        assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount what containers run on")
def test_in_a_container_folders_of_its_image_are_removed_too() -> None:
    """An overlay does not move them, so they cannot be moved up; what a job made there can."""
    layers = "lowerdir=image,upperdir=made,workdir=work"
    code = "from pathlib import Path; from runtime.trees import remove_tree\n"
    code += "from tests.workers import deepen; deepen(Path('seen/top/a/b'), 3000)\n"
    code += "remove_tree(Path('seen/top')); assert not Path('seen/top').exists()"
    mounted = f'mount -t overlay overlay seen -o {layers} && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, "-c", code]
    with abyss() as place:
        for folder in ("image/top/a/b", "image/top/c", "made", "work", "seen"):
            (place / folder).mkdir(parents=True)
        (place / "image" / "top" / "a" / "b" / "file").touch()
        done = subprocess.run(words, cwd=place, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_folders_that_cannot_be_moved_are_left_where_they_are_too_deep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rename(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "cannot be moved")

    with abyss() as tmp_path:
        for name, levels in (("top", 3000), ("low", 10)):
            (tmp_path / name / "more").mkdir(parents=True)
            deepen(tmp_path / name, levels)
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", rename)
            remove_tree(tmp_path / "low")
            remove_tree(tmp_path / "top")
        assert not (tmp_path / "low").exists()
        assert not (tmp_path / "top" / "more").exists()


def test_what_a_job_closed_to_itself_is_removed_too(tmp_path: Path) -> None:
    inner = tmp_path / "top" / "closed" / "more"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    for folder in (inner, inner.parent, inner.parent.parent):
        folder.chmod(0)
    code = "from pathlib import Path; from runtime.trees import remove_tree; import os, sys\n"
    code += "os.chdir(sys.argv[1])\n"  # first: that user may not go through the folders above
    if os.geteuid() == 0:
        for path in (inner / "file", inner, inner.parent, inner.parent.parent, tmp_path):
            os.chown(path, 1_900_000_000, -1)
        code += "os.setuid(1_900_000_000)\n"
    code += "remove_tree(Path('top'))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert list(tmp_path.iterdir()) == []


def test_entries_are_listed_to_any_depth_each_folder_first_and_so_many_at_most() -> None:
    with abyss() as tmp_path:
        deepen(tmp_path, 700)
        (tmp_path / "link").symlink_to(tmp_path)
        found = [entry.path for entry in entries_below(tmp_path)]
        assert len(found) == 702
        assert all(
            str(Path(path).parent) in {str(tmp_path), *found[:n]} for n, path in enumerate(found)
        )
        assert len(list(entries_below(tmp_path, 702))) == 702
        with pytest.raises(OSError, match="more than 701 files"):
            list(entries_below(tmp_path, 701))
