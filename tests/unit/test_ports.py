"""Which ports tests give to what they start, and how they end it."""

import subprocess
from pathlib import Path

import pytest

from tests.ports import free_ports, kill

LINUX = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_no_other_program_is_given_a_port_before_it_is_used() -> None:
    """Linux gives those of a range to whoever asks for any, and to connections."""
    first = int(LINUX.read_text().split()[0]) if LINUX.exists() else 32_768
    found = free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < first


@pytest.mark.process
def test_who_has_ended_since_it_was_found_is_killed_without_complaint() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        kill(process.pid)
    assert process.returncode == -9
    kill(process.pid)
