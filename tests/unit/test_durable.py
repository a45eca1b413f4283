"""Files are replaced whole or not at all."""

import os
from pathlib import Path

import pytest

from runtime.durable import write_file, write_json


@pytest.mark.parametrize("synced", [True, False])
def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path, synced: bool) -> None:
    path = tmp_path / "x"
    write_file(path, b"old", synced=synced)

    def full(descriptor: int) -> None:
        assert os.fstat(descriptor).st_size == len(b"new")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        write_file(path, b"new", synced=synced, prepare=full)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_has_its_mode_before_it_has_its_name(tmp_path: Path) -> None:
    seen = []

    def look(descriptor: int) -> None:
        seen.append((os.fstat(descriptor).st_mode & 0o777, (tmp_path / "x").exists()))
        os.fchmod(descriptor, 0o640)

    write_file(tmp_path / "x", b"secret", mode=0o600, prepare=look)
    assert seen == [(0o600, False)]
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_draft_of_a_record_is_no_record(tmp_path: Path) -> None:
    """Agents read all `*.json` of a folder, also after one that was killed while it wrote."""

    def killed(descriptor: int) -> None:
        found.extend(tmp_path.glob("*.json"))

    found: list[Path] = []
    write_file(tmp_path / "j0.json", b"{}", prepare=killed)
    assert found == []


def test_json_is_for_its_owner_alone_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    write_json(tmp_path / "a", [1])
    write_json(tmp_path / "b", {"x": None}, mode=0o644, synced=False)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "b")]
    assert modes == [0o600, 0o644]
    assert (tmp_path / "b").read_text() == '{"x": null}'
