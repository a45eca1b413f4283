"""Which ports tests give to what they start."""

from pathlib import Path

from tests.ports import free_ports

LINUX = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_no_other_program_is_given_a_port_before_it_is_used() -> None:
    """Linux gives those of a range to whoever asks for any, and to connections."""
    first = int(LINUX.read_text().split()[0]) if LINUX.exists() else 32_768
    found = free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < first
