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
#: There is one tree of cgroups in a machine, in which $1 is to be our part; some controller stays
#: enabled for it. When its input ends, as it does when a test is killed, all in there is ended.
_KEEP = """
set -eu
mount --make-rprivate /
mount -t cgroup2 cgroup2 /mnt
for one in $(cat /mnt/cgroup.controllers); do
    echo "+$one" > /mnt/cgroup.subtree_control && break
done
leave() {
    echo 1 > "/mnt/$1/cgroup.kill"
    while grep -q "populated 1" "/mnt/$1/cgroup.events"; do sleep 0.1; done
    find "/mnt/$1" -depth -type d -exec rmdir {} \\;
}
mkdir "/mnt/$1"
trap 'leave "$1"' EXIT
test -n "$(cat "/mnt/$1/cgroup.controllers")"
unshare --mount --pid --uts --ipc --fork --kill-child sh -c "$4" sh "$@" > /dev/null &
echo $!
read -r end || true
"""
#: PID 1 of the namespaces moves to that part, and sees nothing above it.
_ENTER = """
echo $$ > "/mnt/$1/cgroup.procs"
umount /mnt
exec unshare --cgroup sh -c "$5" sh "$@"
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


class Systemd:
    """One that runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in there."""
        inside = ["nsenter", f"--target={self.pid}", "--all", "--wd=/", *map(str, words)]
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
    words = ["unshare", "--mount", "sh", "-c", _KEEP, "sh", f"tidegate-test-{os.getpid()}"]
    with subprocess.Popen(
        [*words, folder, INIT, _ENTER, _BOOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # what ends the tests' process group is not to end it halfway
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        outer = keeper.stdout.readline().strip()
        if not outer:
            pytest.skip("no cgroup v2 with a controller may be had here: it takes root")
        children = Path(f"/proc/{outer}/task/{outer}/children")
        try:
            wait_until(lambda: not children.exists() or children.read_text().split())
            assert children.exists(), "it did not begin"
            found = Systemd(int(children.read_text().split()[0]))
            wait_until(lambda: not children.exists() or found.is_active("multi-user.target"))
            assert children.exists(), "it did not boot"
            yield found
        finally:
            keeper.stdin.close()
            assert keeper.wait() == 0
