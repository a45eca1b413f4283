"""A key with a password: whoever is given one says so, and asks nobody for the password."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.certificates import Authority

_MQTT = """
from bus.mqtt_carrier import tls_context
from bus.options import Tls
act = lambda ca, cert, key: tls_context(Tls(ca, cert, key))
"""
_KAFKA = """
from bus.kafka_client import client_settings
from bus.options import KafkaOptions, Tls
act = lambda ca, cert, key: client_settings(KafkaOptions("one:9092", tls=Tls(ca, cert, key)))
"""
_GATEWAY = """
from gateway.server import _tls
from services.gateway_section import GatewaySection
act = lambda ca, cert, key: _tls(
    GatewaySection(public_url="https://one:8321", cert_file=cert, key_file=key)
)
"""
_SAY = """
import sys
from bus.contract import BusError
try:
    act(*sys.argv[1:])
except BusError as error:
    print(error)
"""


@pytest.mark.parametrize("act", [_MQTT, _KAFKA, _GATEWAY], ids=["mqtt", "kafka", "gateway"])
def test_a_key_with_a_password_is_refused_by_name(act: str, tmp_path: Path) -> None:
    """OpenSSL would ask on the terminal, or wait for standard input."""
    files, closed = Authority(tmp_path / "certs").sign("edge-17"), tmp_path / "closed.key"
    openssl = ["openssl", "pkey", "-in", str(files.key), "-aes256", "-passout", "pass:secret"]
    subprocess.run([*openssl, "-out", str(closed)], check=True)
    unsaid, nobody = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", act + _SAY, *map(str, (files.ca, files.cert, closed))],
            stdin=unsaid,
            capture_output=True,
            text=True,
            timeout=20,
            start_new_session=True,  # without a terminal
        )
    finally:
        os.close(unsaid)
        os.close(nobody)
    assert f"{closed} has a password, which nobody could enter" in done.stdout, done.stderr
    assert "pass phrase" not in done.stdout + done.stderr
