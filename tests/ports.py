"""Ports and processes of this machine: which are free, answer, or live; and where programs are."""

import contextlib
import os
import shutil
import socket
from pathlib import Path

#: Where daemons are, besides.
PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def free_ports(count: int) -> list[int]:
    """Find so many."""
    with contextlib.ExitStack() as probes:
        found = [probes.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in found]


def free_port() -> int:
    """Find one."""
    return free_ports(1)[0]


def answers(port: int) -> bool:
    """Tell whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def alive(pid: int) -> bool:
    """Tell whether a process is there, and not only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def lacking(*programs: str) -> list[str]:
    """Name those that are not installed."""
    return [name for name in programs if shutil.which(name, path=PATH) is None]
