"""A whole fleet of real processes: brokers of its own, schedulers, bridges, agents on bad links.

Times are shortened so that what takes minutes in production takes seconds here: an agent is
silent after 6 s, its lease ends after 30 s.
"""

import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from bus.options import MqttOptions, mqtt_options
from bus.signing import Signer
from tests.chaos.processes import NAMESPACE, Broker, Deployment
from tests.chaos.proxy import Proxy
from tests.ports import free_port

SCHEDULERS = ("scheduler-a", "scheduler-b")
BRIDGES = ("bridge-a", "bridge-b")
TRAINING, SERVING = "cloud-train", "cloud-serve"
LEASE_S, LEASE_MARGIN_S = 30.0, 5.0

SETTINGS = {
    "cycle_s": 2.0,
    "cycle_gap_s": 0.2,
    "silence_s": 6.0,
    "lease_s": LEASE_S,
    "lease_margin_s": LEASE_MARGIN_S,
    "grace_s": 2.0,
    "resend_s": 3.0,
    "command_ttl_s": 20.0,
    "start_timeout_s": 15.0,
    "unheard_s": 30.0,
    "claim_ttl_s": 20.0,
    "backoff_s": 1.0,
    "failures_max": 1000.0,
}
SCHEDULE = {
    "telemetry_every_s": 2.0,
    "load_every_s": 2.0,
    "progress_every_s": 2.0,
    "retry_s": 1.0,
    "drain_s": 5.0,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What there is besides two schedulers, two bridges and two clusters."""

    edges: int = 3
    training_nodes: int = 2
    serving_nodes: int = 2
    gpus_per_node: int = 4
    settings: Mapping[str, float] = field(default_factory=lambda: SETTINGS)
    schedule: Mapping[str, float] = field(default_factory=lambda: SCHEDULE)
    #: So that restarts read snapshots as well as the journal's tail.
    snapshot_entries: int = 300


class Fleet(Deployment):
    """Starts and ends everything, in a folder."""

    def __init__(self, folder: Path, shape: Shape | None = None) -> None:
        super().__init__(folder)
        self.shape = shape or Shape()
        self.edges = tuple(f"edge-{number}" for number in range(1, self.shape.edges + 1))
        self.agents: tuple[str, ...] = (TRAINING, SERVING, *self.edges)
        self.proxies: dict[str, Proxy] = {}
        self._http: dict[str, int] = {}
        self._starting, self._ending = threading.Lock(), threading.Event()

    # --- life ---

    def start(self) -> None:
        """Start everything; whatever happens then, `end` must be called."""
        with self._starting:
            self._start()

    def _start(self) -> None:
        self.begin_brokers()
        mqtt_port = urlsplit(self.brokers.mqtt_url).port
        assert mqtt_port is not None
        for name in self.edges:
            self.proxies[name] = Proxy(mqtt_port).start()
        self._key()
        for name, role in self.roles().items():
            self.add(name, role, _toml(self._config(name)))
        for process in self.processes.values():
            if not self._ending.is_set():
                process.start()

    def end(self) -> None:
        """End everything, in good order as far as that goes; also while it is being started."""
        self._ending.set()
        with self._starting:
            self._end()

    def _end(self) -> None:
        for names in (self.agents, BRIDGES, SCHEDULERS):
            self.end_processes(names)
        for proxy in self.proxies.values():
            proxy.close()
        self.proxies.clear()
        if self._brokers is not None:
            self._brokers.up()  # one that is frozen cannot be ended
            self._brokers.down()
            self._brokers = None

    def roles(self) -> dict[str, str]:
        """Give the role of each process, in the order in which they are started."""
        return {
            **dict.fromkeys(SCHEDULERS, "scheduler"),
            **dict.fromkeys(BRIDGES, "bridge"),
            **dict.fromkeys((TRAINING, SERVING), "cloud-agent"),
            **dict.fromkeys(self.edges, "edge-agent"),
        }

    # --- what the harness needs of it ---

    @property
    def mqtt(self) -> MqttOptions:
        return mqtt_options(f"{self.brokers.mqtt_url}/{NAMESPACE}")

    def broker(self, name: str) -> Broker:
        """Give `kafka` or `mosquitto`."""
        return Broker(name, self.brokers, self._ending)

    def broker_pid(self, name: str) -> int:
        return int((self.folder / "brokers" / f"{name}.pid").read_text().split()[0])

    def state_file(self, agent: str) -> Path:
        return self.folder / f"{agent}.db"

    def deaths(self) -> dict[str, list[float]]:
        """Give when each agent's process ceased to run."""
        return {name: self.processes[name].deaths_s for name in self.agents}

    def metrics(self, name: str) -> dict[str, float]:
        """Scrape a process: by metric, its labels' values added up; empty if it does not answer."""
        found: dict[str, float] = {}
        for line in _get(self._http[name], "/metrics").splitlines():
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                metric = series.partition("{")[0]
                if not metric.endswith("_bucket"):
                    found[metric] = found.get(metric, 0.0) + float(value)
        return found

    # --- configuration ---

    def _key(self) -> None:
        key = Ed25519PrivateKey.generate()
        file = self.folder / "signing.pem"
        file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self._public_key = Signer("k1", key).public()

    def _config(self, name: str) -> dict[str, Any]:
        self._http[name] = free_port()
        proxy = self.proxies.get(name)
        url = self.brokers.mqtt_url if proxy is None else f"mqtt://127.0.0.1:{proxy.port}"
        config: dict[str, Any] = {
            "kafka": {
                "bootstrap": self.brokers.kafka_bootstrap,
                "namespace": NAMESPACE,
                "replication": 1,
            },
            "mqtt": {"url": url, "namespace": NAMESPACE, "keepalive_s": 5},
            "http": {"port": self._http[name]},
        }
        if name in SCHEDULERS:
            config["scheduler"] = {
                "name": name,
                "births": "any",
                "signing_key_file": str(self.folder / "signing.pem"),
                "heartbeat_s": 5.0,
                "snapshot_entries": self.shape.snapshot_entries,
                "validate_ticks": 10,
                "settings": dict(self.shape.settings),
            }
        elif name in BRIDGES:
            config["bridge"] = {"name": name}
        else:
            config["agent"] = self._agent(name)
        return config

    def _agent(self, name: str) -> dict[str, Any]:
        shape = self.shape
        agent: dict[str, Any] = {
            "name": name,
            "runs": "simulated",
            "state_file": str(self.state_file(name)),
            "effects_file": str(self.effects_file(name)),
            "trusted_keys": {"k1": self._public_key},
            "schedule": dict(shape.schedule),
            "simulated": {"drain_s": 1.0, "warm_up_s": 1.0, "seed": len(name)},
        }
        if name in self.edges:
            return {**agent, "gpus": 1, "transfer_mib_per_s": 1000.0, "speed_factor": 1.0}
        agent["gpus_per_node"] = shape.gpus_per_node
        if name == TRAINING:
            nodes = [f"train-{number}" for number in range(shape.training_nodes)]
            return {**agent, "pool": "training", "pool_kind": "training", "nodes": nodes}
        nodes = [f"serve-{number}" for number in range(shape.serving_nodes)]
        # A tide of a minute: lent at ebb, taken back at flood.
        low, high = 1.0, float(shape.gpus_per_node * shape.serving_nodes)
        agent["simulated"] |= {"demand_gpus": [[0.0, low], [35.0, high]], "day_s": 60.0}
        return {**agent, "pool": "serving", "pool_kind": "inference", "nodes": nodes}


def _get(port: int, path: str) -> str:
    """Ask one page; nothing if nobody answers within a second."""
    request = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode()
    pieces = []
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            connection.sendall(request)
            while piece := connection.recv(65536):
                pieces.append(piece)
    except OSError:
        return ""
    return b"".join(pieces).decode().partition("\r\n\r\n")[2]


def _toml(tree: Mapping[str, Any], above: str = "") -> str:
    """Write a configuration; JSON's plain values are TOML's too."""
    plain = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    text = "\n".join(lines) + "\n"
    for name, value in tree.items():
        if isinstance(value, dict):
            text += f"\n[{above}{name}]\n" + _toml(value, f"{above}{name}.")
    return text
