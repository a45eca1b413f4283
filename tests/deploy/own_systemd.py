"""A systemd of our own: booted in namespaces, over a copy of this machine's files.

What it and its services write to /etc, /run, /srv and /var goes to memory and is gone with it;
everything else is this machine's. It shares the network.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import wait_until

INIT = Path("/lib/systemd/systemd")
#: There is one tree of cgroups in a machine; $1 is to be our part of it. $2 is a folder.
_TREE = """
set -eu
mount --make-rprivate /
mount -t cgroup2 cgroup2 /mnt
"""
#: The part gets some controller. PID 1 of the namespaces moves there, and sees nothing above it.
_ENTER = """
for one in $(cat /mnt/cgroup.controllers); do
    echo "+$one" > /mnt/cgroup.subtree_control && break
done
mkdir "/mnt/$1"
echo $$ > "/mnt/$1/cgroup.procs"
umount /mnt
"""
#: Nothing that would touch the machine is started: no kernel settings, modules or devices.
_BOOT = """
set -eu
mount -t tmpfs tmpfs "$2"
for folder in etc srv var; do
    mkdir "$2/$folder" "$2/$folder/upper" "$2/$folder/work"
    mount -t overlay overlay "/$folder" \\
        -o "lowerdir=/$folder,upperdir=$2/$folder/upper,workdir=$2/$folder/work"
done
mount -t tmpfs tmpfs /run
mount -t proc proc /proc
umount -R /sys/fs/cgroup 2> /dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for wants in /usr/lib/systemd/system/*.wants /etc/systemd/system/*.wants; do
    mount -t tmpfs tmpfs "$wants"
done
export container=docker
exec "$3" --system --log-target=null --show-status=0 --unit=multi-user.target
"""
_LEAVE = """
echo 1 > "/mnt/$1/cgroup.kill"
while grep -q "populated 1" "/mnt/$1/cgroup.events"; do sleep 0.1; done
find "/mnt/$1" -depth -type d -exec rmdir {} \\;
"""
_NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")


class Systemd:
    """One that runs."""

    def __init__(self, init: int) -> None:
        self._init = init

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in there."""
        inside = ["nsenter", f"--target={self._init}", "--all", "--wd=/", *map(str, words)]
        return subprocess.run(inside, capture_output=True, text=True, check=False, timeout=120)

    def did(self, *words: str | Path) -> str:
        """Run what must succeed; give what it says."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def is_active(self, unit: str) -> bool:
        """Whether a unit runs."""
        return self.run("systemctl", "is-active", unit).stdout.strip() == "active"

    def controller(self) -> str:
        """Name a controller of cgroups: any, since kernel and systemd treat all alike."""
        return self.did("cat", "/sys/fs/cgroup/cgroup.controllers").split()[0]


@contextmanager
def own_systemd(folder: Path) -> Iterator[Systemd]:
    """Boot one; end it, and all that it started, in the end."""
    if not INIT.exists():
        pytest.skip(f"{INIT} is not here: apt-get install systemd")
    if os.geteuid() or _in_tree('test -n "$(cat /mnt/cgroup.controllers)"').returncode:
        pytest.skip("no cgroup v2 with a controller may be had here: it takes root")
    part = f"tidegate-test-{os.getpid()}"
    boot = f'{_TREE}{_ENTER}exec unshare --cgroup sh -c "$4" sh "$@"'
    words = ["unshare", *_NAMESPACES, "sh", "-c", boot, "sh", part, str(folder), str(INIT), _BOOT]
    with subprocess.Popen(words) as outer:
        try:
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            wait_until(lambda: outer.poll() is not None or children.read_text().split())
            found = Systemd(int(children.read_text().split()[0]))
            wait_until(lambda: outer.poll() is not None or found.is_active("multi-user.target"))
            assert outer.poll() is None, "it did not boot"
            yield found
        finally:
            outer.kill()  # and the namespace's PID 1 with it, which takes all others along
            assert _in_tree(_LEAVE, part).returncode == 0


def _in_tree(script: str, part: str = "") -> subprocess.CompletedProcess[bytes]:
    words = ["unshare", "--mount", "sh", "-c", f"{_TREE}{script}", "sh", part]
    return subprocess.run(words, capture_output=True, check=False)
