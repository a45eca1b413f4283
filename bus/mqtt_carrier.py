"""What carries one connection to an MQTT broker, with any library behind it, and how it ends."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bus.contract import BusError, Unfit
from bus.options import MqttOptions, Tls
from bus.tls import show_certificate
from bus.wire import Incoming, LinkDown, Outgoing

#: For the connection to open, and again for each answer of the broker before it is in use.
CONNECT_S = 5.0
#: Messages that may wait for the broker's confirmation, if it does not ask for fewer.
IN_FLIGHT_MAX = 1000
#: The broker publishes the Will this long after it lost us; coming back before, it does not.
WILL_DELAY_S = 5
#: Messages that the broker may send ahead of our `ack`. Some brokers send more.
RECEIVE_MAX = 500
#: What a packet for us may have: the broker keeps larger ones to itself. Nothing that may be said
#: is nearly as large, and whoever reads 256 MiB, as the standard allows, does nothing else then.
TAKEN_MAX = 2**20
#: What a packet may have, if the broker does not say.
PACKET_MAX = 2**28
#: Reason codes from here on are refusals.
REFUSAL = 0x80
#: The refusal of what is too large. By the standard a broker cuts the connection for that; some
#: (Mosquitto above its `message_size_limit`) answer the message with it, which libraries do not
#: know how to read.
TOO_LARGE = 0x95
#: The broker took it, and nobody subscribes to it now.
_NOBODY = 0x10
#: An upper bound of what a packet is longer than its texts.
_FRAME_BYTES = 64


class Refused(BusError):
    """The broker does not take this message and never will; it says why."""


class TooLarge(Refused, Unfit):
    """The broker takes no message so large."""


class Broke(BusError):
    """The connection broke, and not by our own doing.

    `accepted`: the broker had taken us before.
    """

    def __init__(self, why: str, *, accepted: bool = False) -> None:
        super().__init__(why)
        self.accepted = accepted


class Refusal(BusError):
    """The broker answered, and does not want us: no use in asking often."""


def taken_over(client_id: str) -> Refusal:
    """Say that another client has our name."""
    return Refusal(f"another client connected under the name {client_id}; give each its own")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a connection is made with."""

    number: int  #: Of the connection; what came over another one is not acknowledged here.
    options: MqttOptions
    client_id: str
    subscriptions: Sequence[str]  #: Without namespace.
    will: Outgoing | None
    context: ssl.SSLContext | None
    #: Is shown what comes; if it raises, the connection ends.
    hear: Callable[[Incoming], None]

    def filters(self) -> list[str]:
        """Give the subscriptions as the broker is to know them."""
        found = []
        for name in self.subscriptions:
            share, group = "", ""
            if name.startswith("$share/"):
                share, group, name = name.split("/", 2)
            before = f"{share}/{group}/" if share else ""
            found.append(before + self.options.address(name))
        return found


class Carrier(Protocol):
    """One connection, used once."""

    @property
    def published(self) -> int:
        """How many messages the broker has confirmed or refused; of quality 0, were written."""
        ...

    async def open(self) -> None:
        """Connect and subscribe; what comes meanwhile is heard already.

        Raises:
            Refusal: the broker does not want us.
            BusError: there is no connection; it says why.
        """
        ...

    def send(self, message: Outgoing) -> "asyncio.Future[bool]":
        """Send it when its turn comes; False comes of it if the broker says that nobody hears.

        Raises:
            Refused: no broker could take it.
        """
        ...

    def ack(self, packet: int, quality: int) -> None:
        """Tell the broker that it need not send it again."""
        ...

    def hold(self, held: bool) -> None:
        """Read nothing while `held`; the system's buffers fill, and the broker waits."""
        ...

    def leave(self) -> None:
        """Disconnect after what was sent and acknowledged; the session stays."""
        ...

    def cut(self, why: str) -> None:
        """Break it, without a word to the broker."""
        ...

    async def broken(self) -> None:
        """Wait until it breaks.

        Raises:
            Refusal: another came under our name.
            Broke: why it broke.
        """
        ...

    async def close(self, *, keep_session: bool) -> None:
        """Disconnect in good order; the Will is not published."""
        ...

    async def end(self) -> None:
        """Let go of everything; who waits for an answer is told that none comes."""
        ...


def check_size(message: Outgoing, address: str, most: int) -> None:
    """Refuse what the broker would end the connection for; `address` is with its namespace.

    Raises:
        TooLarge: it is larger than that.
    """
    size = len(message.value) + len(address) + len(message.correlation) + _FRAME_BYTES
    for pair in message.properties.items():
        size += len("".join(pair).encode()) + 5
    if size > most:
        raise TooLarge(
            f"{message.address}: {size} bytes, the broker takes {most}; "
            "raise its max_packet_size or say less"
        )


class Sender:
    """What a `Carrier` has on its way: what was sent, and what waits until less is."""

    def __init__(self, terms: Terms) -> None:
        self.published = 0
        self._terms, self._options = terms, terms.options
        self._loop = asyncio.get_running_loop()
        self._limit, self._packet_max = IN_FLIGHT_MAX, PACKET_MAX
        self._sent: dict[int, tuple[Outgoing, asyncio.Future[bool]]] = {}
        self._queue: deque[tuple[Outgoing, asyncio.Future[bool]]] = deque()

    def send(self, message: Outgoing) -> "asyncio.Future[bool]":
        """Send it when its turn comes."""
        check_size(message, self._options.address(message.address), self._packet_max)
        future: asyncio.Future[bool] = self._loop.create_future()
        # Of quality 0 nobody confirms, so the broker's limit is not for it. And while we hold, no
        # confirmation is read: a horizon that waited for one could never let us go on.
        if message.qos and (self._queue or len(self._sent) >= self._limit):
            self._queue.append((message, future))
        else:
            self._publish(message, future)
        return future

    def _publish(self, message: Outgoing, future: "asyncio.Future[bool]") -> None:
        """Write it, and note it in `_sent` if the broker is to confirm it."""
        raise NotImplementedError

    def _confirmed(self, packet: int, value: int, code: Any) -> None:
        """Hear the broker's word of what was sent, and send what waits."""
        message, future = self._sent.pop(packet, (None, None))
        if message is None or future is None:
            return
        self.published += 1
        if not future.done():
            if value < REFUSAL:
                future.set_result(value != _NOBODY)
            elif value == TOO_LARGE:
                size = f"{message.address}: {len(message.value)} bytes"
                why = f"{size}, the broker takes fewer; raise its message_size_limit or say less"
                future.set_exception(TooLarge(why))
            else:
                why = f"{message.address}: the broker says: {self._words(code)}"
                future.set_exception(Refused(why))
        while self._queue and len(self._sent) < self._limit:
            waiting, future = self._queue.popleft()
            if not future.done():
                self._publish(waiting, future)

    def _words(self, code: Any) -> str:
        return str(code)

    def _give_up(self) -> None:
        """Tell those who wait that the connection broke."""
        waiting = [*self._sent.values(), *self._queue]
        self._sent.clear()
        self._queue.clear()
        where = f"{self._options.host}:{self._options.port}"
        for message, future in waiting:
            if not future.done():
                future.set_exception(
                    LinkDown(f"{message.address}: the connection to {where} broke; send it again")
                )


class _Socket(ssl.SSLSocket):
    """A socket that does not stay open when the handshake fails, as paho would leave it."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Read the files anew; TLS 1.2 or later, the broker's name is checked.

    Raises:
        BusError: one of them cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        context.sslsocket_class = _Socket
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.cert_file:
            show_certificate(context, tls.cert_file, tls.key_file)
    except OSError as error:  # SSLError is one
        files = ", ".join(name for name in (tls.ca_file, tls.cert_file, tls.key_file) if name)
        raise BusError(f"TLS files {files}: {error}; they must be PEM and readable") from error
    return context
