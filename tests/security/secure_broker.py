"""A real Mosquitto with the settings and certificates of the deployment, and clients for it."""

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
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.certificates import Authority
from tests.mosquitto import Mosquitto
from tests.patience import PATIENCE_S

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
    Authority.of(folder).sign(common_name, file=file)


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


class SecureBroker(Mosquitto):
    """The broker of the deployment, on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.certs = folder, folder / "certs"
        self._clients: list[Client] = []
        made = certs(self.certs, "make")
        assert made.returncode == 0, made.stderr
        shutil.copy(COMPOSE / "mosquitto" / "acl", folder / "acl")
        before, after = (COMPOSE / "mosquitto" / "secure.conf").read_text().split("listener 8883")
        super().__init__(folder, before + after)  # here it listens elsewhere

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[Self]:
        """Start it, and stop it in the end."""
        broker = cls(folder)
        try:
            yield broker
        finally:
            broker.stop()

    def reload(self) -> None:
        self.signal(signal.SIGHUP)

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
