"""What is mounted, as the kernel lists it."""

import os
from pathlib import Path

import pytest

from runtime.mounts import Mount, mounted

NAMES = [
    "with a blank",
    "tab\there",
    "back\\slash",
    "\u2028line",
    "one\u00a0blank",
    "re\rturn",
    "\udcff",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_disk_of_any_name_is_seen(tmp_path: Path, name: str) -> None:
    """Source: proc(5)."""
    written = name.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
    listed = tmp_path / "mountinfo"
    listed.write_bytes(
        b"30 1 0:26 / /proc rw,relatime shared:5 - proc proc rw\n"
        + os.fsencode(f"31 1 8:17 /part /srv/{written} rw - ext4 /dev/sdb rw\n")
    )
    assert mounted(listed) == [Mount("/", "/proc", "proc"), Mount("/part", f"/srv/{name}", "ext4")]


def test_the_kernel_of_this_machine_is_understood() -> None:
    assert "/" in [one.point for one in mounted()]
