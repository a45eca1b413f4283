"""Folders of branches: of this gateway alone, and removed by the next one if a kill left them."""

import os
from pathlib import Path

from gateway.branch_folder import BranchFolder


def test_what_a_killed_gateway_left_is_removed_and_a_living_ones_stays(tmp_path: Path) -> None:
    living, killed = BranchFolder(tmp_path), BranchFolder(tmp_path)
    (killed.path / "b1.db").write_text("of all tenants")
    os.close(killed._lock)  # as the kernel does it when a process ends, in whatever way
    just_made = tmp_path / "tidegate-branches-new"
    just_made.mkdir()
    elsewhere = tmp_path / "precious"
    elsewhere.mkdir()
    (tmp_path / "tidegate-branches-link").symlink_to(elsewhere)
    (elsewhere / "lock").touch()
    newest = BranchFolder(tmp_path)
    assert not killed.path.exists()
    assert living.path.stat().st_mode & 0o777 == 0o700
    assert all(one.exists() for one in (living.path, newest.path, just_made, elsewhere / "lock"))
    newest.remove()
    living.remove()
    assert not newest.path.exists()
    assert not living.path.exists()
