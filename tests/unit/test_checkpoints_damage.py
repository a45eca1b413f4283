"""Stores that lose or change what they were given, and errors that say what to do."""

import errno
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from runtime.checkpoints.errors import explained
from runtime.checkpoints.store import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    Damaged,
    Transfer,
)

DATA = bytes(n * n % 251 for n in range(5000))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> CheckpointStore:
    return CheckpointStore(f"file://{root}", part_bytes=1000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "step-10"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def older(store: CheckpointStore, source: Path) -> Checkpoint:
    return store.commit("job-1", 1, 10, source, 1.0)


@pytest.fixture
def newer(store: CheckpointStore, source: Path, older: Checkpoint) -> Checkpoint:
    return store.commit("job-1", 2, 10, source, 2.0)


def part(root: Path, checkpoint: Checkpoint) -> Path:
    """The third part of its file."""
    name = checkpoint.manifest.files[0].parts[2]
    return root / "job-1" / f"{checkpoint.epoch}-10" / name


def spoil(path: Path) -> None:
    """Change one bit, as a bad disk does."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_changed_part_is_noticed_and_another_epoch_is_found(
    store: CheckpointStore, root: Path, newer: Checkpoint, older: Checkpoint, tmp_path: Path
) -> None:
    spoil(part(root, newer))
    assert store.find("job-1", 10) == newer  # the sizes are right
    with pytest.raises(Damaged, match=f"{part(root, newer)}.*'step-10'"):
        store.fetch(newer, tmp_path / "into")
    assert not (tmp_path / "into" / "2-10").exists()
    assert store.find("job-1", 10) == older
    assert store.fetch(older, tmp_path / "into").read_bytes() == DATA


def test_a_store_that_is_gone_for_a_moment_has_damaged_nothing(
    store: CheckpointStore, root: Path, newer: Checkpoint, tmp_path: Path
) -> None:
    away = root.with_name("away")

    def go_away(_: Transfer) -> None:
        if root.exists():
            root.rename(away)

    with pytest.raises(Damaged, match="is missing"):
        store.fetch(newer, tmp_path / "here", progress=go_away)
    away.rename(root)
    assert store.find("job-1", 10) == newer
    assert store.fetch(newer, tmp_path / "here").read_bytes() == DATA


@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_is_written_where_the_disk_of_the_store_was(
    store: CheckpointStore,
    root: Path,
    older: Checkpoint,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_link: bool,
) -> None:
    """Without it the folder is on the machine's own disk, and hidden once it is back."""
    mounted = {root, Path("/")}
    monkeypatch.setattr(Path, "is_mount", lambda path: path in mounted)
    named = tmp_path / "link" if is_link else root
    if is_link:
        named.symlink_to(root)
    store = CheckpointStore(f"file://{named}", cell="a")
    store.commit("job-2", 1, 10, source, 1.0)
    mounted.remove(root)
    shutil.rmtree(root)
    root.mkdir()
    for call in (
        lambda: store.commit("job-2", 1, 11, source, 1.0),
        lambda: store.commit("job-3", 1, 10, source, 1.0),
        lambda: store.find("job-1", 10),
        lambda: store.keep_log("job-1", 1, 0, b"x"),
        lambda: store.keep_output("job-1", 1, "x", [b"x"]),
        store.probe,
    ):
        with pytest.raises(CheckpointError, match=f"{root} is not mounted any more"):
            call()
    assert list(root.iterdir()) == []
    mounted.add(root)
    store.commit("job-2", 1, 11, source, 1.0)


def test_nor_by_an_agent_that_starts_while_it_is_away(
    root: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted, memory = {Path("/")}, tmp_path / "disk.json"
    monkeypatch.setattr(Path, "is_mount", lambda path: path in mounted)

    def started(url: str = f"file://{root}") -> CheckpointStore:
        return CheckpointStore(url, cell="a", disk_file=memory)

    started().commit("job-1", 1, 1, source, 1.0)
    mounted.add(root)  # a disk comes to where a folder was
    started().commit("job-1", 1, 2, source, 1.0)
    mounted.remove(root)
    with pytest.raises(CheckpointError, match=f"{root} is not mounted any more.*remove {memory}"):
        started().commit("job-1", 1, 3, source, 1.0)
    started(f"file://{tmp_path}/other").commit("job-1", 1, 3, source, 1.0)  # of another store
    for text in ("", "[]", '{"url": 1}'):  # is written anew
        memory.write_text(text)
        started().commit("job-1", 1, 4, source, 1.0)
    mounted.add(root)
    started().commit("job-1", 1, 5, source, 1.0)
    mounted.remove(root)
    memory.unlink()
    started().commit("job-1", 1, 6, source, 1.0)


def test_a_disk_that_comes_while_an_agent_runs_is_remembered(
    root: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may have started before it was mounted."""
    mounted, memory = {Path("/")}, tmp_path / "disk.json"
    monkeypatch.setattr(Path, "is_mount", lambda path: path in mounted)
    stores = [CheckpointStore(f"file://{root}", cell="a", disk_file=memory) for _ in range(2)]
    stores[0].commit("job-1", 1, 1, source, 1.0)
    mounted.add(root)
    stores[0].commit("job-1", 1, 2, source, 1.0)
    mounted.remove(root)
    for store in stores:  # the second one starts only now
        with pytest.raises(CheckpointError, match=f"{root} is not mounted any more"):
            store.commit("job-1", 1, 3, source, 1.0)


def test_another_disk_is_used_once_the_one_before_is_gone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, (first, second) = tmp_path / "link", (tmp_path / name for name in ("first", "second"))
    mounted, memory = {Path("/"), first}, tmp_path / "disk.json"
    monkeypatch.setattr(Path, "is_mount", lambda path: path in mounted)

    def commit() -> None:
        store = CheckpointStore(f"file://{link}/store", cell="a", disk_file=memory)
        store.commit("job-1", 1, 1, source, 1.0)

    first.mkdir()
    second.mkdir()
    link.symlink_to(first)
    commit()
    link.unlink()
    link.symlink_to(second)
    mounted ^= {first, second}
    commit()
    mounted ^= {second, second / "store"}  # as in a container, which is given the folder alone
    commit()
    mounted.remove(second / "store")
    with pytest.raises(CheckpointError, match=f"{second}/store is not mounted any more"):
        commit()


def test_a_disk_that_cannot_be_noted_hinders_nobody(
    root: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fills a disk could not be removed else."""
    mounted, memory = {Path("/"), root}, tmp_path / "later" / "disk.json"
    monkeypatch.setattr(Path, "is_mount", lambda path: path in mounted)
    store = CheckpointStore(f"file://{root}", cell="a", disk_file=memory)
    store.commit("job-1", 1, 1, source, 1.0)
    memory.parent.mkdir()
    assert store.find("job-1", 1) is not None
    assert str(root) in memory.read_text()
    mounted.remove(root)
    with pytest.raises(CheckpointError, match=f"{root} is not mounted any more"):
        CheckpointStore(f"file://{root}", cell="a", disk_file=memory).probe()
    memory.unlink()
    memory.mkdir()
    with pytest.raises(CheckpointError, match=f"{memory}: could not read on which disk"):
        CheckpointStore(f"file://{root}", cell="a", disk_file=memory).probe()


@pytest.mark.parametrize("harm", ["missing", "shorter", "longer", "manifest", "no manifest"])
def test_what_is_visibly_broken_is_not_found(
    harm: str, store: CheckpointStore, root: Path, newer: Checkpoint, older: Checkpoint
) -> None:
    manifest = root / "job-1" / "2-10" / "manifest.json"
    match harm:
        case "missing":
            part(root, newer).unlink()
        case "shorter":
            os.truncate(part(root, newer), 999)
        case "longer":
            os.truncate(part(root, newer), 1001)
        case "manifest":
            spoil(manifest)
        case _:
            manifest.unlink()
    assert store.find("job-1", 10) == older
    assert store.committed("job-1") == [older]


def test_a_manifest_of_another_checkpoint_is_not_found(
    store: CheckpointStore, root: Path, newer: Checkpoint, older: Checkpoint
) -> None:
    (root / "job-1" / "1-10").rename(root / "job-1" / "3-10")
    assert store.find("job-1", 10) == newer


def test_what_else_lies_there_is_left_alone(
    store: CheckpointStore, root: Path, older: Checkpoint
) -> None:
    strange = ["9999999999999999-10", "01-10", "2-10-old", "lost+found", "-1-10", "\u0663-10"]
    for name in strange:
        shutil.copytree(root / "job-1" / "1-10", root / "job-1" / name)
    (root / "job-1" / "3-10").write_bytes(b"a file")
    assert store.committed("job-1") == [older]
    assert store.find("job-1", 10) == older
    assert store.retain("job-1", 1) == []
    assert len(list((root / "job-1").iterdir())) == len(strange) + 2


@pytest.mark.parametrize("harm", ["changed", "missing", "manifest"])
def test_a_commit_again_heals_it(
    harm: str, store: CheckpointStore, root: Path, older: Checkpoint, source: Path, tmp_path: Path
) -> None:
    match harm:
        case "changed":
            spoil(part(root, older))
            with pytest.raises(Damaged):
                store.fetch(older, tmp_path / "into")
        case "missing":
            part(root, older).unlink()
        case _:
            spoil(root / "job-1" / "1-10" / "manifest.json")
    assert store.find("job-1", 10) is None
    assert store.commit("job-1", 1, 10, source, 1.0) == older
    assert store.find("job-1", 10) == older
    assert store.fetch(older, tmp_path / "into").read_bytes() == DATA


def test_a_disk_that_keeps_other_bytes_is_noticed(
    store: CheckpointStore, root: Path, source: Path
) -> None:
    # What one commit finds already there counts only if it is read back right.
    with pytest.raises(CheckpointError, match="changed"):
        store.commit("job-1", 1, 10, source, 1.0, lambda _: os.utime(source, ns=(1, 1)))
    kept = [path for path in (root / "job-1" / "1-10").iterdir() if path.name != "manifest.json"]
    assert len(kept) == 5
    for path in kept:
        spoil(path)
    checkpoint = store.commit("job-1", 1, 10, source, 1.0)
    assert store.fetch(checkpoint, root.parent / "into").read_bytes() == DATA


def test_remains_of_writes_are_removed(store: CheckpointStore, root: Path, source: Path) -> None:
    folder = root / "job-1" / "1-10"
    folder.mkdir(parents=True)
    (folder / ".abc.1-2.draft").write_bytes(b"abc")
    (folder / ("0" * 64)).write_bytes(b"a part of what the job wrote before")
    store.commit("job-1", 1, 10, source, 1.0)
    assert len(list(folder.iterdir())) == 6


def test_what_lies_in_the_way_of_a_fetch_is_put_right(
    store: CheckpointStore, older: Checkpoint, tmp_path: Path
) -> None:
    begun = tmp_path / "into" / ".fetching-1-10"
    begun.mkdir(parents=True)
    (begun / "step-10").write_bytes(DATA[:2000] + b"x" * 9000)
    (begun / "other").mkdir()
    (begun / "other" / "file").write_bytes(b"")
    fetched = store.fetch(older, tmp_path / "into")
    assert fetched.read_bytes() == DATA
    assert list(fetched.parent.iterdir()) == [fetched]
    # A link would have the checkpoint written where it leads.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(tmp_path / "into" / "1-10")
    begun.symlink_to(elsewhere)
    assert store.fetch(older, tmp_path / "into").read_bytes() == DATA
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("", "give one"),
        ("nothing://x", "use file:///folder"),
        ("sftp://user:secret@host/x", "paramiko"),
        ("sftp://user:top@secret@host/x", "sftp://host/x: .*paramiko"),
        ("gs://bucket/x", "install gcsfs"),
    ],
)
def test_a_url_that_cannot_be_used_says_what_to_do(url: str, advice: str) -> None:
    with pytest.raises(CheckpointError, match=advice) as caught:
        CheckpointStore(url)
    assert "secret" not in str(caught.value)


def test_a_store_that_is_no_folder_says_where(root: Path, source: Path) -> None:
    root.write_bytes(b"")
    store = CheckpointStore(f"file://{root}")
    for deed in (partial(store.commit, "job-1", 1, 10, source, 1.0), store.probe):
        with pytest.raises(CheckpointError, match="a file where a folder should be"):
            deed()


def test_a_folder_to_fetch_into_that_is_none_says_where(
    store: CheckpointStore, older: Checkpoint, source: Path
) -> None:
    with pytest.raises(CheckpointError, match="write the checkpoint"):
        store.fetch(older, source / "below a file")


@pytest.mark.process
def test_a_write_that_fails_in_the_middle_leaves_what_was_there(root: Path) -> None:
    root.mkdir()
    (root / "object").write_bytes(b"old")
    code = f"""
import resource
from runtime.checkpoints.filesystem import Filesystem
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
Filesystem("file://{root}").write("object", bytes(5000))
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "CheckpointError" in child.stderr
    assert [path.read_bytes() for path in root.iterdir()] == [b"old"]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, "full"), "no room"),
        (OSError(errno.EDQUOT, "full"), "no room"),
        (OSError(errno.EROFS, "fixed"), "mount it writable"),
        (PermissionError(errno.EACCES, "no"), "not permitted"),
        (FileNotFoundError(errno.ENOENT, "no"), "correct the URL"),
        (ConnectionResetError("gone"), "try again"),
    ],
)
def test_errors_of_backends_say_what_to_do(error: Exception, advice: str) -> None:
    assert advice in str(explained(error, "write", "s3://bucket/x"))
    assert str(explained(error, "write", "s3://bucket/x")).startswith("s3://bucket/x: could not")
