"""One connection to an MQTT broker: what is on its way over it, and the ways into aiomqtt.

aiomqtt 2.5 acknowledges what comes when it comes. The paho client within it need not, and is used
directly for that and for publishing, which costs no timer and no event for each message.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, cast

import aiomqtt
from paho.mqtt import MQTTException, client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from bus.contract import BusError
from bus.options import MqttOptions
from bus.wire import Incoming, LinkDown, Outgoing

#: For the connection to open, and again for each answer of the broker before it is in use.
CONNECT_S = 5.0
#: Messages that may wait for the broker's confirmation, if it does not ask for fewer.
_IN_FLIGHT_MAX = 1000
#: Packets read in one turn of the loop.
_READ_AT_ONCE = 32
#: An upper bound of what a packet is longer than its texts.
_FRAME_BYTES = 64
#: Reason codes from here on are refusals.
REFUSAL = 0x80
#: The broker took it, and nobody subscribes to it now.
_NOBODY = 0x10
#: What is used of aiomqtt's client and of paho's within it, and was never promised.
_USED = ("_connected", "_disconnected")
_USED_WITHIN = (
    "manual_ack_set",
    "ack",
    "_sock_close",
    "disable_logger",
    "max_inflight_messages_set",
)


class Refused(BusError):
    """The broker does not take this message and never will; it says why."""


class Connection:
    """One connection. The numbers of its packets mean nothing to another."""

    def __init__(
        self,
        number: int,
        client: aiomqtt.Client,
        options: MqttOptions,
        hear: Callable[[Incoming], None],
    ) -> None:
        """Prepare `client`, which is not connected yet; `hear` is shown what comes.

        Raises:
            BusError: the installed aiomqtt cannot leave the acknowledgement to us.
        """
        self.number = number
        self.client = client
        self.inner = paho_within(client)
        self.published = 0
        self._options = options
        self._hear = hear
        self._heard = 0
        self._held = self._reading = False
        self._limit = _IN_FLIGHT_MAX
        self._packet_max = 2**28
        self._sent: dict[int, tuple[Outgoing, asyncio.Future[bool]]] = {}
        self._queue: deque[tuple[Outgoing, asyncio.Future[bool]]] = deque()
        self._loop = asyncio.get_running_loop()
        inner = self.inner
        inner.manual_ack_set(True)
        inner.disable_logger()  # why it broke is in `problem`; a line for each packet is too much
        inner.connect_timeout = CONNECT_S
        inner.max_inflight_messages_set(0)  # the limit is ours: paho would search for each one
        self._accepted: Any = inner.on_connect
        inner.on_connect = self._on_connect
        self._broken: Any = inner.on_disconnect
        inner.on_disconnect = self._on_disconnect
        inner.on_message = self._on_message
        inner.on_publish = self._on_publish

    def begin(self) -> None:
        """Read and write by ourselves from here on.

        aiomqtt reads one packet each turn of the loop. And it asks, as if from another thread, to
        be told when it may write: by the time it is, the socket may be closed, and its number that
        of another one.
        """
        self.inner.on_socket_register_write = self._on_something_to_write
        self._reading = True
        self.hold(self._held)

    def hold(self, held: bool) -> None:
        """Read nothing while `held`; the system's buffers fill, and the broker waits."""
        self._held = held
        socket: Any = self.inner.socket()
        if not self._reading or socket is None:
            return
        if held:
            self._loop.remove_reader(socket.fileno())
        else:
            self._loop.add_reader(socket.fileno(), self._read)
            self._loop.call_soon(self._read)  # what TLS has decrypted already wakes nobody

    def send(self, message: Outgoing) -> "asyncio.Future[bool]":
        """Send it when its turn comes; False comes of it if the broker says that nobody hears."""
        size = len(message.value) + len(message.address) + _FRAME_BYTES
        for pair in message.properties.items():
            size += len("".join(pair).encode()) + 5
        if size > self._packet_max:
            raise Refused(
                f"{message.address}: {size} bytes, the broker takes {self._packet_max}; "
                "raise its max_packet_size or say less"
            )
        future: asyncio.Future[bool] = self._loop.create_future()
        # Of quality 0 nobody confirms, so the broker's limit is not for it. And while we hold, no
        # confirmation is read: a horizon that waited for one could never let us go on.
        if message.qos and (self._queue or len(self._sent) >= self._limit):
            self._queue.append((message, future))
        else:
            self._write(message, future)
        return future

    def cut(self, reason: str) -> None:
        """Break it, without a word to the broker."""
        self.inner._sock_close()
        if not self.client._disconnected.done():
            self.client._disconnected.set_exception(aiomqtt.MqttError(reason))

    def end(self, where: str) -> None:
        """Let go of the socket and of everything that waits."""
        self.inner._sock_close()
        waiting = [*self._sent.values(), *self._queue]
        self._sent.clear()
        self._queue.clear()
        for message, future in waiting:
            if not future.done():
                future.set_exception(
                    LinkDown(f"{message.address}: the connection to {where} broke; send it again")
                )

    def _write(self, message: Outgoing, future: "asyncio.Future[bool]") -> None:
        try:
            info = self.inner.publish(
                self._options.address(message.address),
                message.value,
                message.qos,
                message.retain,
                properties(message, PacketTypes.PUBLISH),
            )
        except (ValueError, MQTTException) as error:
            future.set_exception(Refused(f"{message.address}: {error}"))
            return
        if info.rc != paho.MQTT_ERR_SUCCESS:
            future.set_exception(LinkDown(f"{message.address}: {paho.error_string(info.rc)}"))
            return
        self._sent[info.mid] = (message, future)

    def _read(self) -> None:
        """Read what there is, but let others run at times."""
        try:
            for _ in range(_READ_AT_ONCE):
                if self._held:
                    return
                before = self._heard
                self.inner.loop_read()
                socket: Any = self.inner.socket()
                if socket is None:
                    return
                # What TLS has decrypted already wakes nobody.
                left = isinstance(socket, ssl.SSLSocket) and socket.pending() > 0
                if before == self._heard and not left:
                    return
        except Exception:
            self.cut("what came could not be handled; the log says why")
            raise
        self._loop.call_soon(self._read)

    def _on_something_to_write(self, inner: paho.Client, data: object, socket: Any) -> None:
        self._loop.add_writer(socket.fileno(), inner.loop_write)

    def _on_connect(
        self, inner: paho.Client, data: object, flags: Any, code: Any, limits: Any
    ) -> None:
        self._limit = min(_IN_FLIGHT_MAX, getattr(limits, "ReceiveMaximum", _IN_FLIGHT_MAX))
        self._packet_max = getattr(limits, "MaximumPacketSize", self._packet_max)
        self._accepted(inner, data, flags, code, limits)

    def _on_disconnect(
        self, inner: paho.Client, data: object, flags: Any, code: Any, limits: Any
    ) -> None:
        if not self.client._connected.done():  # aiomqtt would wait for an answer all the same
            why = aiomqtt.MqttError(f"the broker closed it without an answer: {code}")
            self.client._connected.set_exception(why)
        self._broken(inner, data, flags, code, limits)

    def _on_message(self, inner: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        pairs = getattr(message.properties, "UserProperty", ())
        address = message.topic.removeprefix(self._options.address(""))
        token = (self.number, message.mid, message.qos)
        value = bytes(message.payload)
        self._heard += 1
        self._hear(Incoming(address, value, message.retain, dict(pairs), token))

    def _on_publish(
        self, inner: paho.Client, data: object, packet: int, code: ReasonCode, _properties: object
    ) -> None:
        message, future = self._sent.pop(packet)
        self.published += 1
        if not future.done():
            if code.value < REFUSAL:
                future.set_result(code.value != _NOBODY)
            else:
                future.set_exception(Refused(f"{message.address}: the broker says: {code}"))
        while self._queue and len(self._sent) < self._limit:
            waiting, future = self._queue.popleft()
            if not future.done():
                self._write(waiting, future)


def properties(message: Outgoing, packet: int) -> Any:
    """Give the MQTT 5 properties of a message; None if it has none, for they are slow to make."""
    if message.expiry_s is None and not message.properties and not message.correlation:
        return None
    made = empty_properties(packet)
    if message.expiry_s is not None:
        made.MessageExpiryInterval = message.expiry_s
    if message.correlation:
        made.CorrelationData = message.correlation.encode()
    if message.properties:
        made.UserProperty = list(message.properties.items())
    return made


def paho_within(client: aiomqtt.Client) -> paho.Client:
    """Give the paho client within, with all that is used of it."""
    inner = getattr(client, "_client", None)
    if not all(
        [hasattr(client, name) for name in _USED] + [hasattr(inner, name) for name in _USED_WITHIN]
    ):
        raise BusError(
            f"aiomqtt {version('aiomqtt')} with paho-mqtt {version('paho-mqtt')} cannot leave the "
            "acknowledgement to us; install aiomqtt 2.5"
        )
    return client._client


def empty_properties(packet: int) -> Any:
    """Give properties of a kind of packet, to be set."""
    return cast("Callable[[int], Any]", Properties)(packet)  # untyped in paho
