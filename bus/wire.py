"""What the bridge and an agent's link need of an MQTT client; `bus.mqtt_client` is the real one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bus.contract import BusError


class LinkDown(BusError):
    """The connection broke before the broker confirmed; send again when it is back."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish. The address is without namespace; the client puts it before."""

    address: str
    value: bytes
    qos: int = 1
    retain: bool = False
    #: The broker drops it when it could not deliver it for this long.
    expiry_s: int | None = None
    #: MQTT 5 user properties.
    properties: Mapping[str, str] = field(default_factory=dict)
    #: MQTT 5 correlation data: the id of the command, on commands.
    correlation: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """A message that came; of quality 1, it comes again until `ack`."""

    address: str  #: Without the namespace.
    value: bytes
    retain: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    #: Which packet of which connection it was, for the client alone.
    token: tuple[int, int, int] = (0, 0, 0)


class Wire(Protocol):
    """A connection to an MQTT broker that comes back by itself.

    The client is made with the subscriptions, a callback that is shown each `Incoming` (on the
    loop, must not block), one that is told of each new connection, and the Will.
    """

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted us, now."""
        ...

    async def publish(self, message: Outgoing) -> None:
        """Return when the broker has confirmed; of quality 0, when it is written.

        Messages leave in the order of the calls.

        Raises:
            LinkDown: there is no connection, or it broke before the broker confirmed.
        """
        ...

    def ack(self, message: Incoming) -> None:
        """Tell the broker that it need not send it again; nothing if its connection is gone.

        Call in the order in which messages came.
        """
        ...

    def hold(self, held: bool) -> None:
        """Read nothing more from this connection while `held`; the broker has to wait.

        The only limit that brokers keep: some send more than they were told to.
        """
        ...

    async def close(self) -> None:
        """Disconnect in good order (the Will is not published) and end."""
        ...
