"""The checkpoint store on real backends: a disk, objects in memory, and remote folders.

`dir::` stands for the many whose folders must be made and whose writes are no renames; for it the
path in the URL leads on from itself.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from runtime.checkpoints.store import (
    LOG_BYTES,
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    Transfer,
)

PART = 1000


@pytest.fixture(params=["file", "memory", "folders"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    if request.param == "folders":
        folder = tmp_path / "store"
        (folder / folder.relative_to("/")).mkdir(parents=True)
        return f"dir::file://{folder}"
    return f"memory://{uuid4()}/store"


@pytest.fixture
def store(url: str) -> CheckpointStore:
    return CheckpointStore(url, part_bytes=PART)


def saved(tmp_path: Path, name: str = "step-10", fill: bytes = b"weights ") -> Path:
    """A checkpoint as a job writes it: a folder with large, small, empty and nested things."""
    source = tmp_path / "job" / name
    (source / "optimiser" / "empty").mkdir(parents=True)
    (source / "model.bin").write_bytes(b"".join(fill + b"%04d" % n for n in range(300)))
    (source / "optimiser" / "state #1?.json").write_bytes(b"{}" + fill)
    (source / "optimiser" / "none").write_bytes(b"")
    return source


def tree(path: Path) -> dict[str, bytes | None]:
    """Everything under a path, itself included: folders as None."""
    inside = sorted([path, *path.rglob("*")])
    return {
        each.relative_to(path.parent).as_posix(): each.read_bytes() if each.is_file() else None
        for each in inside
    }


def committed(store: CheckpointStore) -> list[tuple[int, int]]:
    return [(each.epoch, each.step) for each in store.committed("job-1")]


def test_a_folder_comes_back_as_it_was(store: CheckpointStore, url: str, tmp_path: Path) -> None:
    source = saved(tmp_path)
    committed = store.commit("job-1", 3, 10, source, 1.5)
    assert committed.uri == f"{url}/job-1/3-10"
    assert committed.size_bytes == sum(len(data or b"") for data in tree(source).values())
    again = CheckpointStore(url, part_bytes=7)
    found = again.find("job-1", 10)
    assert found == committed
    fetched = again.fetch(found, tmp_path / "into")
    assert fetched == tmp_path / "into" / "3-10" / "step-10"
    assert tree(fetched) == tree(source)


def test_a_file_comes_back_as_it_was(store: CheckpointStore, tmp_path: Path) -> None:
    source = tmp_path / "step-10.pt"
    source.write_bytes(bytes(range(256)) * 50)
    fetched = store.fetch(store.commit("job-1", 0, 10, source, 0.0), tmp_path / "into")
    assert fetched.name == "step-10.pt"
    assert fetched.read_bytes() == source.read_bytes()


def test_a_repeated_commit_moves_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    source = saved(tmp_path)
    first = store.commit("job-1", 3, 10, source, 1.0)
    told: list[Transfer] = []
    assert store.commit("job-1", 3, 10, source, 2.0, progress=told.append) == first
    assert told[-1].done_bytes == told[-1].total_bytes == first.size_bytes
    assert told[-1].moved_bytes == 0


def test_what_is_committed_never_changes(store: CheckpointStore, tmp_path: Path) -> None:
    first = store.commit("job-1", 3, 10, saved(tmp_path), 1.0)
    told: list[Transfer] = []
    with pytest.raises(CheckpointError, match="higher epoch"):
        store.commit("job-1", 3, 10, saved(tmp_path / "other", fill=b"others  "), 2.0, told.append)
    assert told == []  # nothing of it was sent
    renamed = saved(tmp_path / "again", name="step-11")
    with pytest.raises(CheckpointError, match="higher epoch"):
        store.commit("job-1", 3, 10, renamed, 2.0)
    assert store.find("job-1", 10) == first


def test_the_newest_epoch_of_a_step_is_found(store: CheckpointStore, tmp_path: Path) -> None:
    source = saved(tmp_path)
    new = store.commit("job-1", 12, 10, source, 1.0)
    store.commit("job-1", 9, 10, source, 2.0)  # a late one of an old epoch
    store.commit("job-1", 9, 20, source, 3.0)
    store.commit("job-10", 13, 10, source, 4.0)
    assert store.find("job-1", 10) == new
    assert store.find("job-1", 11) is None
    assert store.find("job-2", 10) is None
    assert committed(store) == [(12, 10), (9, 20), (9, 10)]


def test_epochs_committed_at_once_do_not_disturb_each_other(
    store: CheckpointStore, url: str, tmp_path: Path
) -> None:
    sources = [saved(tmp_path / str(n), fill=b"%8d" % n) for n in range(4)]
    done: list[Checkpoint] = []
    threads = [
        threading.Thread(
            target=lambda n=n: done.append(store.commit("job-1", n, 10, sources[n], 1.0))
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4
    for checkpoint in done:
        fetched = store.fetch(checkpoint, tmp_path / "into")
        assert tree(fetched) == tree(sources[checkpoint.epoch])


def test_a_fetch_is_repeated_and_repaired(store: CheckpointStore, tmp_path: Path) -> None:
    source = saved(tmp_path)
    checkpoint = store.commit("job-1", 3, 10, source, 1.0)
    fetched = store.fetch(checkpoint, tmp_path / "into")
    told: list[Transfer] = []
    assert store.fetch(checkpoint, tmp_path / "into", told.append) == fetched
    assert told[-1].moved_bytes == 0
    # A job went on in its own checkpoint.
    with (fetched / "model.bin").open("r+b") as stream:
        stream.seek(PART)
        stream.write(b"x")
    (fetched / "more").write_bytes(b"")
    (fetched / "optimiser" / "none").unlink()
    (fetched / "optimiser" / "none").symlink_to("/dev/null")
    assert store.fetch(checkpoint, tmp_path / "into", told.append) == fetched
    assert told[-1].moved_bytes == PART
    assert tree(fetched) == tree(source)
    assert not (fetched / "optimiser" / "none").is_symlink()
    assert [each.name for each in (tmp_path / "into").iterdir()] == ["3-10"]


def test_retention_keeps_the_newest_and_the_needed(store: CheckpointStore, tmp_path: Path) -> None:
    source = saved(tmp_path)
    for epoch, step in ((1, 10), (1, 20), (2, 20), (2, 30), (3, 25), (3, 40)):
        store.commit("job-1", epoch, step, source, 1.0)
    deleted = store.retain("job-1", 2, needed=[20, 99])
    assert [uri.rpartition("/")[2] for uri in deleted] == ["2-30", "1-20", "1-10"]
    assert committed(store) == [(3, 40), (3, 25), (2, 20)]
    store.retain("job-1", 0)
    assert committed(store) == [(3, 40)]
    assert store.retain("job-1", 1) == []
    assert store.retain("job-2", 1) == []


def test_what_an_earlier_job_of_the_name_stored_is_neither_found_nor_removed(
    store: CheckpointStore, tmp_path: Path
) -> None:
    source = saved(tmp_path)
    for epoch, step in ((1, 30), (2, 40), (7, 10), (9, 20)):
        store.commit("job-1", epoch, step, source, 1.0)
    assert store.find("job-1", 40, first_epoch=7) is None
    assert [one.step for one in store.committed("job-1", first_epoch=7)] == [20, 10]
    assert [uri.rpartition("/")[2] for uri in store.retain("job-1", 1, [30], 7)] == ["7-10"]
    assert committed(store) == [(9, 20), (2, 40), (1, 30)]
    for epoch in (2, 7, 9):
        store.keep_output("job-1", epoch, "log.txt", [b"x"])
    store.outputs_kept("job-1", 9, first_epoch=7)
    assert sorted(store._filesystem.entries("job-1/outputs")) == ["2", "9"]


def test_remains_older_than_the_newest_are_swept(store: CheckpointStore, tmp_path: Path) -> None:
    source = saved(tmp_path)
    stop = threading.Event()
    for epoch, step in ((1, 10), (2, 50)):
        stop.clear()
        with pytest.raises(CheckpointError, match="stopped"):
            store.commit("job-1", epoch, step, source, 1.0, lambda _: stop.set(), stop)
    assert store.retain("job-1", 1) == []  # nothing is committed: these may be all there is
    store.commit("job-1", 2, 20, source, 1.0)
    assert [uri.rpartition("/")[2] for uri in store.retain("job-1", 1)] == ["1-10"]
    told: list[Transfer] = []
    store.commit("job-1", 2, 50, source, 1.0, told.append)
    assert told[0].moved_bytes == 0, "it was there, and not swept"
    assert 0 < told[-1].moved_bytes <= told[-1].total_bytes - told[0].done_bytes


def test_retention_spares_a_commit_under_way(store: CheckpointStore, tmp_path: Path) -> None:
    store.commit("job-1", 2, 20, saved(tmp_path / "new"), 1.0)
    deleted: list[str] = []
    late = store.commit(
        "job-1", 1, 10, saved(tmp_path), 1.0, lambda _: deleted.extend(store.retain("job-1", 1))
    )
    assert deleted == []
    assert store.find("job-1", 10) == late


def test_too_many_files_are_refused(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.checkpoints.store.MAX_MANIFEST_BYTES", 500)
    with pytest.raises(CheckpointError, match="pack them"):
        store.commit("job-1", 1, 10, saved(tmp_path), 1.0)
    assert store.find("job-1", 10) is None


def test_names_that_lead_elsewhere_are_refused(store: CheckpointStore, tmp_path: Path) -> None:
    source = saved(tmp_path)
    for job, epoch, step in (("../job", 1, 1), ("", 1, 1), ("a/b", 1, 1), ("a", -1, 1)):
        with pytest.raises(CheckpointError, match=r"job is|epoch is"):
            store.commit(job, epoch, step, source, 1.0)
    with pytest.raises(CheckpointError, match="job is"):
        store.find("..", 1)


def test_a_probe_leaves_nothing_behind(store: CheckpointStore, tmp_path: Path) -> None:
    written_s = store.probe()
    assert written_s is None or abs(written_s - time.time()) < 120, "by the store's clock"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_probes_of_a_whole_fleet_do_not_disturb_each_other(
    store: CheckpointStore, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = [one.result(60) for one in [pool.submit(store.probe) for _ in range(80)]]
    assert len(found) == 80
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_probe_that_fails_half_way_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> bytes:
        raise CheckpointError("cannot be read")

    monkeypatch.setattr("runtime.checkpoints.filesystem.Filesystem.read", unreadable)
    with pytest.raises(CheckpointError, match="cannot be read"):
        CheckpointStore(f"file://{tmp_path}").probe()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file://x/y", "FILE://x", "file://", "local://y"])
def test_a_file_of_another_machine_is_no_folder_here(url: str) -> None:
    with pytest.raises(CheckpointError, match="file:///folder"):
        CheckpointStore(url)


def test_of_failed_gangs_the_end_of_the_last_ones_log_is_kept(store: CheckpointStore) -> None:
    assert store.kept_log("j", 0) is None
    store.keep_log("j", 7, 0, b"first")
    store.keep_log("j", 8, 3, b"x" * LOG_BYTES + b"second")
    assert store.kept_log("j", 0) is None
    end, uri = store.kept_log("j", 3) or (b"", "")
    assert (len(end), end[-6:]) == (LOG_BYTES, b"second")
    assert uri.endswith("/j/failed-8-rank-3.log")
    assert store.committed("j") == []
    assert store.retain("j", 1) == []


def test_of_an_earlier_job_of_the_name_no_log_is_given_nor_removed(store: CheckpointStore) -> None:
    store._filesystem.write("j/failed-rank-0.log", b"of an earlier release")
    assert store.kept_log("j", 0) is not None
    store.keep_log("j", 7, 0, b"others'")
    assert store.kept_log("j", 0, first_epoch=20) is None
    store.keep_log("j", 25, 0, b"ours", first_epoch=20)
    assert (store.kept_log("j", 0, first_epoch=20) or (b"", ""))[0] == b"ours"
    assert "failed-7-rank-0.log" in store._filesystem.entries("j")
