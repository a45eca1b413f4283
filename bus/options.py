"""Where the brokers are and how to be let in; from addresses, the environment or configuration."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit

from bus.contract import BusError

KAFKA_VARIABLE = "TIDEGATE_KAFKA_BOOTSTRAP"
#: Of each topic: the loss of a broker must not be the loss of what was decided.
COPIES = 3
#: As the configuration has it, for those who have none.
REPLICATION_VARIABLE = "TIDEGATE_KAFKA__REPLICATION"
MQTT_VARIABLE = "TIDEGATE_MQTT_URL"
#: Ends the sentences that say that nobody told where the brokers are.
HINT = 'for brokers on this machine: compose/brokers up; eval "$(compose/brokers env)"'
#: Ends the sentences that say that a broker does not answer.
SILENT_HINT = "brokers of this machine are started by: compose/brokers up"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form. Empty means: the system's authorities, no certificate of our own."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """A Kafka cluster, and which part of it is ours."""

    bootstrap: str
    #: Goes before each topic's name and each transactional id, so that several may share a cluster.
    namespace: str = ""
    #: The cells, in order: each has the partition of its place. New ones go to the end.
    cells: tuple[str, ...] = ("default",)
    #: Copies of each topic that is made: all that a deployment knows is in them.
    replication: int = COPIES
    tls: Tls | None = None
    sasl: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""
    username: str = ""
    password: str = field(default="", repr=False)

    def partition(self, cell: str) -> int:
        """Give the partition of a cell.

        Raises:
            BusError: the cell is not listed.
        """
        if cell not in self.cells:
            raise BusError(
                f"cell {cell!r} is not among kafka.cells ({', '.join(self.cells)}); add it at the "
                "end, everywhere alike (in a terminal that is TIDEGATE_KAFKA__CELLS=NAME,NAME)"
            )
        return self.cells.index(cell)

    @property
    def address(self) -> str:
        """The address that `kafka_options` reads as this cluster and namespace."""
        return f"kafka://{self.bootstrap}/{self.namespace}".removesuffix("/")

    def topic(self, name: str) -> str:
        """Give the name that a topic of ours has there."""
        return f"{self.namespace}.{name}" if self.namespace else name


@dataclass(frozen=True, slots=True)
class MqttOptions:
    """An MQTT broker, and who we are to it."""

    host: str
    port: int = 1883
    #: Goes before each address, so that several fleets may share a broker.
    namespace: str = ""
    tls: Tls | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    keepalive_s: int = 30
    #: The broker keeps what is meant for us this long while we are away.
    session_s: int = 24 * 3600
    #: No message of ours goes so many ahead of the oldest unconfirmed one. Twice what a scheduler
    #: remembers as pieces missing (`scheduler.dedupe.PIECES_MAX`) would be too many: late ones
    #: would look like copies.
    window: int = 100

    def address(self, name: str) -> str:
        """Give the address that one of ours has there."""
        return f"{self.namespace}/{name}" if self.namespace else name


def kafka_options(address: str, environment: Mapping[str, str] = os.environ) -> KafkaOptions:
    """Read `kafka:`, `kafka:/NAMESPACE`, `kafka://HOST:PORT[,HOST:PORT][/NAMESPACE]`.

    Raises:
        BusError: it is no such address, or names no host and the environment does not either.
    """
    rest = address.removeprefix("kafka:")
    if rest == address or (rest and not rest.startswith("/")):
        raise BusError(f"{address}: is no Kafka address; write kafka://HOST:PORT or kafka:")
    hosts, _, namespace = (
        rest[2:].partition("/") if rest.startswith("//") else ("", "", rest.removeprefix("/"))
    )
    hosts = hosts or environment.get(KAFKA_VARIABLE, "")
    if not hosts:
        raise BusError(f"{address} names no host and {KAFKA_VARIABLE} is not set; {HINT}")
    if not all(_is_host_and_port(host) for host in hosts.split(",")):
        raise BusError(f"{address}: {hosts} is not HOST:PORT[,HOST:PORT]")
    copies = environment.get(REPLICATION_VARIABLE, str(COPIES))
    if not copies.isdecimal() or copies == "0":
        raise BusError(f"{REPLICATION_VARIABLE}: {copies!r} is no number of copies; say 3, or 1")
    return KafkaOptions(hosts, _namespace(address, namespace), replication=int(copies))


def mqtt_options(address: str, environment: Mapping[str, str] = os.environ) -> MqttOptions:
    """Read `mqtt:`, `mqtt:/NAMESPACE`, `mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT][/NAMESPACE]`.

    Raises:
        BusError: it is no such address, or names no host and the environment does not either.
    """
    if address == "mqtt:" or (address.startswith("mqtt:/") and not address.startswith("mqtt://")):
        url = environment.get(MQTT_VARIABLE, "")
        if not url.startswith(("mqtt://", "mqtts://")):
            raise BusError(f"{address} names no host and {MQTT_VARIABLE} is not set; {HINT}")
        found = mqtt_options(url, environment)
        namespace = _namespace(address, address.removeprefix("mqtt:").removeprefix("/"))
        return replace(found, namespace=namespace or found.namespace)
    parts = urlsplit(address)
    # Never the password, and so not what stands for a port: one with a / in it ends the host there.
    shown = f"{parts.scheme}://{parts.hostname}" if parts.hostname else "this"
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname:
        raise BusError(f"{shown} is no MQTT address; write mqtt://HOST:PORT")
    try:
        port = parts.port
    except ValueError:
        raise BusError(
            f"{shown} is not followed by a port from 1 to 65535; a password with one of /?# in it "
            "can stand in no address, but in mqtt.password_file"
        ) from None
    encrypted = parts.scheme == "mqtts"
    return MqttOptions(
        parts.hostname,
        port or (8883 if encrypted else 1883),
        _namespace(shown, parts.path.strip("/")),
        Tls() if encrypted else None,
        parts.username or "",
        parts.password or "",
    )


def _is_host_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit() and 0 < int(port) < 65_536


def _namespace(address: str, text: str) -> str:
    if text and not all(char.isascii() and (char.isalnum() or char == "-") for char in text):
        raise BusError(f"{address}: a namespace has letters, digits and - only, not {text!r}")
    return text
