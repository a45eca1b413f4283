"""A real Mosquitto with the settings and certificates of the deployment, and clients for it."""

import datetime as dt
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as mqtt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.patience import PATIENCE_S
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
COMPOSE = ROOT / "compose"


def certs(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run compose/certs."""
    command = [sys.executable, str(COMPOSE / "certs"), *arguments, "--dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def until(what: Callable[[], bool], wait_s: float = PATIENCE_S) -> bool:
    """Wait for a condition; say whether it came."""
    end = time.monotonic() + wait_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def sign(folder: Path, common_name: str, file: str) -> None:
    """Do what compose/certs refuses: sign any name, as a careless authority might."""
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    ca_key: Any = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .sign(ca_key, hashes.SHA256())
    )
    (folder / f"{file}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{file}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


class Client:
    """An MQTT 5 client that is not ours; it remembers all that it is told."""

    def __init__(
        self,
        port: int,
        ca: Path,
        certificate: Path | None = None,
        *,
        client_id: str = "",
        username: str = "",
        will: str = "",
        session_s: int = 0,
    ) -> None:
        self._mqtt = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=mqtt.MQTTv5,
            reconnect_on_failure=False,
        )
        if certificate is None:
            self._mqtt.tls_set(str(ca))
        else:
            self._mqtt.tls_set(str(ca), str(certificate), str(certificate.with_suffix(".key")))
        if username:
            self._mqtt.username_pw_set(username, "secret")
        if will:
            self._mqtt.will_set(will, b"will", 1, retain=True)
        self.heard: list[tuple[str, bytes]] = []
        self.accepted: bool | None = None
        self.gone = threading.Event()
        self._answers: dict[int, str] = {}
        self._granted: dict[int, list[str]] = {}
        self._mqtt.on_connect = self._connected
        self._mqtt.on_disconnect = lambda *_: self.gone.set()
        self._mqtt.on_message = lambda _c, _u, m: self.heard.append((m.topic, bytes(m.payload)))
        self._mqtt.on_publish = lambda _c, _u, mid, code, _p: self._answers.update({mid: str(code)})
        self._mqtt.on_subscribe = lambda _c, _u, mid, codes, _p: self._granted.update(
            {mid: [str(code) for code in codes]}
        )
        wishes: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        wishes.SessionExpiryInterval = session_s
        try:
            self._mqtt.connect("127.0.0.1", port, clean_start=not session_s, properties=wishes)
        except OSError:
            self.accepted = False
            return
        self._mqtt.loop_start()
        until(lambda: self.accepted is not None or self.gone.is_set())
        self.accepted = bool(self.accepted)

    def _connected(self, *arguments: Any) -> None:
        self.accepted = not arguments[3].is_failure

    def publish(self, address: str, value: bytes = b"x", *, retain: bool = False) -> str:
        """Publish with quality 1; give the broker's answer, or that there was none."""
        mid = self._mqtt.publish(address, value, 1, retain).mid
        until(lambda: mid in self._answers or self.gone.is_set())
        return self._answers.get(mid, "disconnected")

    def pour(self, address: str, values: Iterator[bytes]) -> None:
        """Publish with quality 0, as fast as it goes."""
        for value in values:
            self._mqtt.publish(address, value, 0)

    def subscribe(self, *filters: str) -> list[str]:
        """Subscribe with quality 1; give the broker's answers."""
        mid = self._mqtt.subscribe([(name, SubscribeOptions(1)) for name in filters])[1]
        until(lambda: mid in self._granted or self.gone.is_set())
        return self._granted.get(mid or 0, ["disconnected"])

    def hears(self, value: bytes, wait_s: float = PATIENCE_S) -> bool:
        """Whether a message comes."""
        return until(lambda: any(heard == value for _, heard in list(self.heard)), wait_s)

    def vanish(self) -> None:
        """Break the connection without a word, so that the broker publishes the Will."""
        sock: Any = self._mqtt.socket()
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        if not self.gone.is_set():
            self._mqtt.disconnect()
        self._mqtt.loop_stop()


class SecureBroker:
    """The broker of the deployment, on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.certs = folder, folder / "certs"
        self._clients: list[Client] = []
        made = certs(self.certs, "make")
        assert made.returncode == 0, made.stderr
        self.port = free_port()
        shutil.copy(COMPOSE / "mosquitto" / "acl", folder / "acl")
        parts = [
            (COMPOSE / "mosquitto" / name).read_text() for name in ("broker.conf", "secure.conf")
        ]
        assert parts[1].count("listener 8883") == 1
        here = parts[1].replace("listener 8883", f"listener {self.port} 127.0.0.1")
        own = f"user {os.environ.get('USER', 'root')}\npersistence_location {folder}/\n"
        (folder / "mosquitto.conf").write_text(f"{own}{parts[0]}{here}")

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[Self]:
        """Start it, and stop it in the end."""
        broker = cls(folder)
        path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
        program = shutil.which("mosquitto", path=path)
        assert program is not None
        with (folder / "log").open("wb") as log:
            broker.process = subprocess.Popen(
                [program, "-c", "mosquitto.conf"], cwd=folder, stdout=log, stderr=log
            )
        try:
            assert until(broker._answers), (folder / "log").read_text()
            yield broker
        finally:
            broker.process.terminate()
            broker.process.wait(PATIENCE_S)

    process: "subprocess.Popen[bytes]"

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def device(self, name: str, **more: Any) -> Client:
        """Connect a device that has a certificate by compose/certs."""
        if not (self.certs / f"{name}.pem").exists():
            made = certs(self.certs, "device", name)
            assert made.returncode == 0, made.stderr
        return self.client(name, **more)

    def bridge(self, name: str = "bridge-1", **more: Any) -> Client:
        return self.client(name, **more)

    def client(self, file: str | None, folder: Path | None = None, **more: Any) -> Client:
        """Connect with the certificate of that file name; None: with none."""
        where = None if file is None else (folder or self.certs) / f"{file}.pem"
        client = Client(self.port, self.certs / "ca.pem", where, **more)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        """End what a test has opened, so that the next one is alone with the broker."""
        while self._clients:
            self._clients.pop().close()
