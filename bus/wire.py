"""What the bridge and an agent's link need of an MQTT client; `bus.mqtt_client` is the real one."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
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
    #: Which packet of which connection it was, for the client alone, and its quality.
    token: tuple[int, int, int] = (0, 0, 0)

    @property
    def awaits_answer(self) -> bool:
        """Whether the broker waits for `ack`; of quality 0 it sends on whatever is unanswered."""
        return self.token[2] > 0


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


class Client(Wire, Protocol):
    """What an agent's link needs beside."""

    @property
    def where(self) -> str:
        """The broker's address, without user and password."""
        ...

    @property
    def problem(self) -> str:
        """Why there is no connection, in words; empty while there is one."""
        ...

    @problem.setter
    def problem(self, text: str) -> None: ...

    @property
    def session(self) -> int:
        """The number of the newest connection; the next one's is higher."""
        ...

    @property
    def reconnects(self) -> int:
        """How often the connection had to be made again."""
        ...

    @property
    def received(self) -> int:
        """How many messages came."""
        ...

    @property
    def published(self) -> int:
        """How many messages the broker has confirmed or refused; of quality 0, were written."""
        ...

    def start(self) -> None:
        """Begin to connect, in the background."""
        ...

    def send(self, message: Outgoing) -> "asyncio.Future[bool]":
        """Publish without waiting: the future says what `publish` would.

        It gives False if the broker says that nobody subscribes to it now.

        Raises:
            LinkDown: there is no connection.
        """
        ...

    def renew(self) -> None:
        """Connect anew, so that all that was not acknowledged comes again."""
        ...


class ClientMaker(Protocol):
    """Makes the client of a link, which connects once it is started."""

    def __call__(
        self,
        *,
        subscriptions: Sequence[str],
        hear: Callable[[Incoming], None],
        opened: Callable[[int], None],
        will: Callable[[int], Outgoing],
    ) -> Client:
        """Make it; see `bus.mqtt_client.MqttClient` for what is asked of it."""
        ...
