"""Checkpoints on their way to the store: which go, which are removed, and what fails."""

import threading
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints.store import Checkpoint, CheckpointError, CheckpointStore
from runtime.executors.options import ExecutorOptions
from runtime.executors.progress import AnnouncedCheckpoint
from runtime.executors.uploading import CheckpointUploader, LocalCheckpoint, Uploaded, UploadFailed
from tests.patience import PATIENCE_S, wait_until


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


def _uploader(
    tmp_path: Path, retention: int = 2, store: CheckpointStore | None = None
) -> CheckpointUploader:
    store = store or CheckpointStore(f"file://{tmp_path}/store")
    options = ExecutorOptions(root=tmp_path, store=store, agent="a", checkpoint_retention=retention)
    return CheckpointUploader(options, "j", 0)


def test_of_the_checkpoints_that_wait_the_newest_is_made_durable(tmp_path: Path) -> None:
    uploader = _uploader(tmp_path)
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
    uploader = _uploader(tmp_path)
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
    uploader = _uploader(tmp_path, retention=1)
    for step in (1, 2, 3):
        uploader.add(_checkpoint(tmp_path, step, "latest"))
        assert isinstance(_outcome(uploader, 5.0), Uploaded)
    assert (tmp_path / "latest").read_text() == "3"
    assert threading.active_count() < 50


def test_a_failure_is_said_once_or_tried_again_where_it_is_the_last_chance(tmp_path: Path) -> None:
    store = _Shaky(f"file://{tmp_path}/store")
    uploader = _uploader(tmp_path, store=store)
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
