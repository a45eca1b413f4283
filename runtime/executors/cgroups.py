"""A cgroup v2 for the workers of a gang, where that is permitted: limits, OOM, a reliable kill.

What is not permitted is left out and noted; the gang runs without it. The kernel limits nothing
below a cgroup that has processes of its own, and systemd (before 254, at least) starts no service
again in a cgroup that limits others. So gangs of an installed agent are not in the agent's service
but in that of `GANGS`, where there is one; else they are in the supervisor's own cgroup.
Source of the formats: the kernel's admin-guide/cgroup-v2.
"""

import os
from pathlib import Path

from runtime.mounts import mounted

#: The cgroup of the service that holds it for all gangs of this machine's agents.
GANGS = Path("/sys/fs/cgroup/system.slice/tidegate-gangs.service")
_CPU_PERIOD_US = 100_000


class Cgroup:
    """The cgroup of one gang."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def join(self) -> None:
        """Move the calling process into it."""
        (self.path / "cgroup.procs").write_text("0")

    def kill(self) -> None:
        """Kill every process in it, also those just being forked."""
        try:
            (self.path / "cgroup.kill").write_text("1")
        except OSError:
            return  # a kernel before 5.14, or it is gone

    def oom_kills(self) -> int:
        """How many processes the kernel's OOM killer ended here."""
        try:
            events = (self.path / "memory.events").read_text()
        except OSError:
            return 0
        said = dict(line.split() for line in events.splitlines() if len(line.split()) == 2)
        return int(said.get("oom_kill", 0))

    def remove(self) -> None:
        """Remove it; one that still holds a process stays."""
        try:
            self.path.rmdir()
        except OSError:
            return


def own_cgroup(mounts: Path, membership: Path) -> Path | None:
    """Find the folder of a process's cgroup v2.

    Args:
        mounts: Its /proc/PID/mountinfo.
        membership: Its /proc/PID/cgroup.
    """
    try:
        found = mounted(mounts)
        inside = [line[3:] for line in membership.read_text().splitlines() if line[:3] == "0::"]
    except OSError:
        return None
    for one in found:
        if one.kind == "cgroup2" and inside:
            # A container sees its own part mounted, and the path from the root of that.
            root, path = one.root, inside[0]
            relative = os.path.relpath(path, root) if root != "/" else path.lstrip("/")
            return Path(one.point) / relative
    return None


def gangs_cgroup(place: Path = GANGS) -> Path | None:
    """Find where gangs get their cgroups: the service for them, else a process's own cgroup."""
    if os.access(place, os.W_OK):
        return place
    proc = Path("/proc/self")
    return own_cgroup(proc / "mountinfo", proc / "cgroup")


def make_cgroup(
    parent: Path | None, name: str, memory_mib: int | None, cpus: float | None
) -> tuple[Cgroup | None, list[str]]:
    """Make a cgroup with these limits; also give notes on what was not permitted."""
    notes: list[str] = []
    parent = parent or gangs_cgroup()
    if parent is None:
        return None, ["cgroup: there is no cgroup v2 here"]
    path = parent / name
    try:
        if path.exists():
            path.rmdir()  # left behind; one with processes in it cannot be removed
        path.mkdir()
    except OSError as error:
        return None, [f"cgroup: {path} cannot be made: {error.strerror}"]
    limits = {}
    if memory_mib is not None:
        limits["memory.max"] = str(memory_mib * 1024 * 1024)
    if cpus is not None:
        limits["cpu.max"] = f"{max(1000, round(cpus * _CPU_PERIOD_US))} {_CPU_PERIOD_US}"
    for file, value in limits.items():
        try:
            if not (path / file).exists():
                enable = "+" + file.partition(".")[0]
                (parent / "cgroup.subtree_control").write_text(enable)
            (path / file).write_text(value)
        except OSError as error:
            notes.append(f"cgroup: {file} is not limited: {error.strerror}")
    return Cgroup(path), notes
