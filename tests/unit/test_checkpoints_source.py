"""What a job wrote: read as it was looked at, or refused."""

import os
from pathlib import Path

import pytest

from runtime.checkpoints.source import look
from runtime.checkpoints.store import CheckpointError, CheckpointStore


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(f"file://{tmp_path}/store", part_bytes=1000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "step-10"
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(5000))
    return folder


def test_files_and_empty_folders_are_listed_in_order(source: Path) -> None:
    (source / "b").mkdir()
    (source / "c" / "d").mkdir(parents=True)
    (source / "a").write_bytes(b"")
    found = look(source)
    assert [file.path for file in found.files] == ["step-10/a", "step-10/model.bin"]
    assert found.empty_folders == ("step-10/b", "step-10/c/d")
    assert found.size_bytes == 5000


@pytest.mark.parametrize("kind", ["absent", "empty", "link", "pipe", "dangling", "linked folder"])
def test_what_is_no_plain_tree_is_refused(kind: str, source: Path, tmp_path: Path) -> None:
    one = source / "one"
    match kind:
        case "absent":
            source = tmp_path / "step-11"
        case "empty":
            (source / "model.bin").unlink()
            one.mkdir()
        case "link":
            one.symlink_to("model.bin")
        case "pipe":
            os.mkfifo(one)
        case "dangling":
            one.symlink_to("nowhere")
        case _:
            (tmp_path / "latest").symlink_to(source)
            source = tmp_path / "latest"
    with pytest.raises(CheckpointError, match=r"no such checkpoint|holds no file|is a link"):
        look(source)


def test_a_name_that_json_cannot_hold_is_refused(source: Path) -> None:
    Path(os.fsdecode(os.fsencode(source) + b"/\xff")).write_bytes(b"")
    with pytest.raises(CheckpointError, match="not UTF-8") as caught:
        look(source)
    str(caught.value).encode()


def test_a_checkpoint_of_too_many_files_and_folders_is_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.checkpoints.source.ENTRIES_MAX", 4)
    for number in range(3):
        (source / f"more-{number}").mkdir()
    assert len(look(source).empty_folders) == 3
    (source / "one-more").touch()
    with pytest.raises(CheckpointError, match="more than 4 files and folders; pack them"):
        look(source)


def test_a_path_without_a_name_is_refused(source: Path) -> None:
    for path in (Path("/"), source / ".."):
        with pytest.raises(CheckpointError, match="own path"):
            look(path)


@pytest.mark.parametrize("change", ["written", "longer", "shorter", "replaced", "linked", "gone"])
def test_a_file_that_changes_while_it_is_sent_is_noticed(
    change: str, store: CheckpointStore, source: Path, tmp_path: Path
) -> None:
    file = source / "model.bin"

    def meddle(_: object) -> None:
        match change:
            case "written":
                file.write_bytes(b"x" * 5000)
            case "longer":
                with file.open("ab") as stream:
                    stream.write(b"x")
            case "shorter":
                os.truncate(file, 4000)
            case "replaced":
                (tmp_path / "other").write_bytes(file.read_bytes())
                (tmp_path / "other").replace(file)
            case "linked":
                if not file.is_symlink():
                    file.rename(tmp_path / "other")
                    file.symlink_to(tmp_path / "other")
            case _:
                file.unlink(missing_ok=True)

    with pytest.raises(CheckpointError, match=r"changed|vanished|no such|no file|is a link"):
        store.commit("job-1", 1, 10, source, 1.0, meddle)
    assert store.find("job-1", 10) is None


def test_a_file_that_is_swapped_for_another_is_not_read(source: Path, tmp_path: Path) -> None:
    (looked,) = look(source).files
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(5000))
    looked.where.unlink()
    looked.where.symlink_to(secret)
    with pytest.raises(CheckpointError), looked.opened() as stream:
        stream.read()
    looked.where.unlink()
    os.mkfifo(looked.where)
    with pytest.raises(CheckpointError, match="changed"), looked.opened() as stream:
        stream.read()


def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may swap it at any moment, and back: between any two looks at it."""
    inner, secret = source / "inner", tmp_path / "secret"
    for folder in (inner, secret):
        folder.mkdir()
        (folder / "key").write_bytes(folder.name.encode())
    listed, scandir = [], os.scandir

    def swaps(folder: Path | int) -> object:
        listed.append(folder)
        if len(listed) == 2:
            inner.rename(tmp_path / "aside")
            inner.symlink_to(secret)
        return scandir(folder)

    monkeypatch.setattr("runtime.checkpoints.source.os.scandir", swaps)
    found = look(source)
    assert len(listed) == 2
    for file in found.files:
        if file.path.endswith("key"):
            with pytest.raises(CheckpointError), file.opened() as stream:
                pytest.fail(f"read {stream.read()!r}")


def test_files_that_come_while_others_are_sent_are_noticed(
    store: CheckpointStore, source: Path
) -> None:
    with pytest.raises(CheckpointError, match="came, went"):
        store.commit("job-1", 1, 10, source, 1.0, lambda _: (source / "late").touch())
    assert store.find("job-1", 10) is None


def test_a_file_that_became_a_folder_costs_no_descriptor(tmp_path: Path) -> None:
    top = tmp_path / "step-10"
    top.write_bytes(b"weights")
    (file,) = look(top).files
    top.unlink()
    top.mkdir()
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(5):
        with pytest.raises(CheckpointError), file.opened():
            pass
    assert len([*Path("/proc/self/fd").iterdir()]) == before
