"""Ports and processes of this machine: which are free, answer, or live; and where programs are."""

import contextlib
import os
import random
import shutil
import signal
import socket
from pathlib import Path

from tests.patience import wait_until

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
    return _state(Path(f"/proc/{pid}/stat")) not in "ZX"


def stopped(pid: int) -> bool:
    """Tell whether each thread stands still: SIGSTOP reaches one, which tells the others."""
    return all(_state(stat) in "TtZX" for stat in Path(f"/proc/{pid}/task").glob("*/stat"))


def _state(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def send(pid: int, number: int) -> None:
    """Send a signal; after SIGSTOP and SIGKILL, return when the process does nothing any more."""
    os.kill(pid, number)
    if number == signal.SIGKILL:
        wait_until(lambda: not alive(pid), f"process {pid} outlives SIGKILL")
    elif number == signal.SIGSTOP:
        wait_until(lambda: stopped(pid), f"process {pid} goes on after SIGSTOP")


def lacking(*programs: str) -> list[str]:
    """Name those that are not installed."""
    return [name for name in programs if shutil.which(name, path=PATH) is None]
