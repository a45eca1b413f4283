"""Ports of this machine that are free, for whoever is about to listen there."""

import contextlib
import socket


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
