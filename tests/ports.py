"""Ports and processes of this machine: which are free, answer, or live; and where programs are."""

import contextlib
import os
import random
import shutil
import signal
import socket
from pathlib import Path

#: Where daemons are, besides.
PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
#: Two workers of one run choose apart, whatever a test has seeded.
_RANDOM = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Find so many."""
    with contextlib.ExitStack() as probes:
        found = [probes.enter_context(socket.socket()) for _ in range(count)]
        return [_bound(one) for one in found]


def _bound(probe: socket.socket) -> int:
    """Bind to a free port; below those that Linux gives out, of which others get one meanwhile."""
    while True:
        port = _RANDOM.randrange(10_000, 32_000)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def free_port() -> int:
    """Find one."""
    return free_ports(1)[0]


def answers(port: int) -> bool:
    """Tell whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def kill(pid: int) -> None:
    """Kill a process, which may have ended since it was found: with another one, say."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


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
