"""Whether the doctor reaches servers: odd addresses, and keys that it cannot use."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bus.clock import SystemClock
from bus.options import Tls
from services.doctor import kafka
from services.doctor.finding import Finding, Reporter
from services.doctor.reach import Server, reach
from tests.certificates import Authority
from tests.process.ward import Ward, ward

__all__ = ["ward"]  # the fixture

_REACH = """
import sys
from bus.options import Tls
from services.doctor.finding import Reporter
from services.doctor.reach import Server, reach
server = Server("127.0.0.1", int(sys.argv[1]), Tls(*sys.argv[2:]), "it", "mqtt.url", "mqtt")
print([one.found for one in reach(server, Reporter("bus"), 0.0)])
"""


def test_nobody_is_asked_for_the_password_of_a_key(tmp_path: Path) -> None:
    """OpenSSL would ask on the terminal, or wait for standard input."""
    files, closed = Authority(tmp_path / "certs").sign("edge-17"), tmp_path / "closed.key"
    openssl = ["openssl", "pkey", "-in", str(files.key), "-aes256", "-passout", "pass:secret"]
    subprocess.run([*openssl, "-out", str(closed)], check=True)
    unsaid, nobody = os.pipe()
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            words = [sys.executable, "-c", _REACH, port, *map(str, (files.ca, files.cert, closed))]
            done = subprocess.run(
                words,
                stdin=unsaid,
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
                start_new_session=True,  # without a terminal
            )
    finally:
        os.close(unsaid)
        os.close(nobody)
    assert "the files of [mqtt] cannot be used" in done.stdout
    assert "pass phrase" not in done.stdout + done.stderr


@pytest.mark.parametrize("host", ["broker..example", "x" * 64])
def test_a_name_that_none_can_be_does_not_resolve(host: str) -> None:
    server = Server(host, 8883, Tls(), "the MQTT broker", "mqtt.url", "mqtt")
    (found,) = reach(server, Reporter("bus"), 0.0)
    assert found.found.startswith(f"the name {host} does not resolve: ")
    assert "correct the host in mqtt.url" in found.fix


async def _nothing(*_: object) -> list[Finding]:
    return []


def test_addresses_of_kafka_are_read_as_its_client_reads_them(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("NOT TESTED here: takes IPv6")
    monkeypatch.setattr(kafka, "_asked", _nothing)
    del ward.settings["bus"]
    ward.settings["agent.nodes"] = "a"
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        ward.settings["kafka.bootstrap"] = f"k:99999, [::1]:{port}"
        wrong, good = kafka.check(ward.context(clock=SystemClock()))
    assert wrong.found == "kafka.bootstrap: k:99999 is not HOST:PORT"
    assert (good.verdict, good.found) == ("ok", f"::1:{port} answers, without TLS")
