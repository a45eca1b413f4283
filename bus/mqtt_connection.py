"""A connection to an MQTT broker over aiomqtt: what is on its way, and the ways into aiomqtt.

aiomqtt 2.5 acknowledges what comes when it comes. The paho client within it need not, and is used
directly for that and for publishing, which costs no timer and no event for each message.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, cast

import aiomqtt
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt import MQTTException, client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from bus.contract import BusError
from bus.mqtt_carrier import (
    CONNECT_S,
    IN_FLIGHT_MAX,
    RECEIVE_MAX,
    REFUSAL,
    TAKEN_MAX,
    TOO_LARGE,
    WILL_DELAY_S,
    Broke,
    Refusal,
    Refused,
    Sender,
    Terms,
    taken_over,
)
from bus.wire import Incoming, LinkDown, Outgoing

#: Packets read in one turn of the loop.
_READ_AT_ONCE = 32
#: The broker's word to who is disconnected because another came under the same name.
_TAKEN_OVER = 0x8E
#: What is used of aiomqtt's client and of paho's within it, and was never promised.
_USED = ("_connected", "_disconnected")
_USED_WITHIN = (
    "manual_ack_set",
    "ack",
    "_handle_pubackcomp",
    "_in_packet",
    "_sock_close",
    "disable_logger",
    "max_inflight_messages_set",
)


class Connection(Sender):
    """A `Carrier` over aiomqtt."""

    def __init__(self, terms: Terms) -> None:
        """Prepare; nothing is connected before `open`.

        Raises:
            BusError: the installed aiomqtt cannot leave the acknowledgement to us.
        """
        super().__init__(terms)
        self._client = _client(terms)
        self._entered = False
        self._inner = inner = paho_within(self._client)
        self._heard = 0
        self._held = self._reading = False
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
        self._too_large = False
        within: Any = inner
        self._confirmation: Any = within._handle_pubackcomp
        within._handle_pubackcomp = self._on_confirmation

    async def open(self) -> None:
        """Connect and subscribe.

        From then on we read and write by ourselves. aiomqtt reads one packet each turn of the loop.
        And it asks, as if from another thread, to be told when it may write: by the time it is, the
        socket may be closed, and its number that of another one.
        """
        try:
            await self._client.__aenter__()
            self._entered = True
            await self._subscribe()
        except MqttConnectError as error:
            raise Refusal(f"the broker refuses to be connected to: {error.rc}") from None
        except (aiomqtt.MqttError, ValueError) as error:
            raise BusError(str(error) or type(error).__name__) from error
        if not self._inner.is_connected():
            raise Broke("the connection broke at once", accepted=True)
        self._inner.on_socket_register_write = self._on_something_to_write
        self._reading = True
        self.hold(self._held)

    def hold(self, held: bool) -> None:
        """Read nothing while `held`; the system's buffers fill, and the broker waits."""
        self._held = held
        socket: Any = self._inner.socket()
        if not self._reading or socket is None:
            return
        if held:
            self._loop.remove_reader(socket.fileno())
        else:
            self._loop.add_reader(socket.fileno(), self._read)
            self._loop.call_soon(self._read)  # what TLS has decrypted already wakes nobody

    def ack(self, packet: int, quality: int) -> None:
        """Acknowledge."""
        self._inner.ack(packet, quality)

    def leave(self) -> None:
        """Disconnect; it goes out after what was acknowledged."""
        self._inner.disconnect()

    async def broken(self) -> None:
        """Wait until it breaks."""
        try:
            await asyncio.shield(self._client._disconnected)
        except aiomqtt.MqttCodeError as error:
            if getattr(error.rc, "value", error.rc) == _TAKEN_OVER:
                raise taken_over(self._terms.client_id) from None
            raise Broke(f"the connection broke: {error}", accepted=True) from None
        except aiomqtt.MqttError as error:
            raise Broke(f"the connection broke: {error}") from None
        raise Broke("the connection broke: the broker closed it")

    async def close(self, *, keep_session: bool) -> None:
        """Disconnect in good order."""
        broken: asyncio.Future[Any] = self._client._disconnected
        if not keep_session:
            farewell = empty_properties(PacketTypes.DISCONNECT)
            farewell.SessionExpiryInterval = 0
            self._inner.disconnect(properties=farewell)
            await asyncio.wait({broken}, timeout=CONNECT_S)

    def cut(self, reason: str) -> None:
        """Break it, without a word to the broker."""
        self._inner._sock_close()
        if not self._client._disconnected.done():
            self._client._disconnected.set_exception(aiomqtt.MqttError(reason))

    async def end(self) -> None:
        """Let go of the socket and of everything that waits."""
        if self._entered:
            with contextlib.suppress(aiomqtt.MqttError):
                await self._client.__aexit__(None, None, None)
        self._inner._sock_close()
        self._give_up()

    def _publish(self, message: Outgoing, future: "asyncio.Future[bool]") -> None:
        try:
            info = self._inner.publish(
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
                self._inner.loop_read()
                socket: Any = self._inner.socket()
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
        self._limit = min(IN_FLIGHT_MAX, getattr(limits, "ReceiveMaximum", IN_FLIGHT_MAX))
        self._packet_max = getattr(limits, "MaximumPacketSize", self._packet_max)
        self._accepted(inner, data, flags, code, limits)

    def _on_disconnect(
        self, inner: paho.Client, data: object, flags: Any, code: Any, limits: Any
    ) -> None:
        if not self._client._connected.done():  # aiomqtt would wait for an answer all the same
            why = aiomqtt.MqttError(f"the broker closed it without an answer: {code}")
            self._client._connected.set_exception(why)
        self._broken(inner, data, flags, code, limits)

    def _on_message(self, inner: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        pairs = getattr(message.properties, "UserProperty", ())
        address = message.topic.removeprefix(self._options.address(""))
        token = (self._terms.number, message.mid, message.qos)
        value = bytes(message.payload)
        self._heard += 1
        self._terms.hear(Incoming(address, value, message.retain, dict(pairs), token))

    def _on_confirmation(self, kind: str) -> Any:
        """Read a refusal that paho would take for no MQTT as another one, and remember which."""
        packet: Any = self._inner._in_packet["packet"]
        self._too_large = kind == "PUBACK" and packet[2:3] == bytes([TOO_LARGE])
        if self._too_large:
            packet[2] = REFUSAL
        try:
            return self._confirmation(kind)
        finally:
            self._too_large = False  # of what nobody confirms paho says itself that it went out

    def _on_publish(
        self, inner: paho.Client, data: object, packet: int, code: ReasonCode, _properties: object
    ) -> None:
        self._confirmed(packet, TOO_LARGE if self._too_large else code.value, code)

    async def _subscribe(self) -> None:
        names = self._terms.subscriptions
        if not names:
            return
        wanted = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        codes = await self._client.subscribe([(one, wanted) for one in self._terms.filters()])
        for name, code in zip(names, codes, strict=True):
            if isinstance(code, ReasonCode) and code.value >= REFUSAL:
                raise Refusal(f"the broker refuses the subscription to {name}: {code}")


def _client(terms: Terms) -> aiomqtt.Client:
    options = terms.options
    wishes = empty_properties(PacketTypes.CONNECT)
    wishes.SessionExpiryInterval = options.session_s
    wishes.ReceiveMaximum = RECEIVE_MAX
    wishes.MaximumPacketSize = TAKEN_MAX
    will = None
    if (last := terms.will) is not None:
        words = properties(last, PacketTypes.WILLMESSAGE)
        words = words or empty_properties(PacketTypes.WILLMESSAGE)
        words.WillDelayInterval = WILL_DELAY_S
        address = options.address(last.address)
        will = aiomqtt.Will(address, last.value, last.qos, last.retain, words)
    return aiomqtt.Client(
        options.host,
        options.port,
        identifier=terms.client_id,
        protocol=aiomqtt.ProtocolVersion.V5,
        clean_start=False,
        username=options.username or None,
        password=options.password or None,
        keepalive=options.keepalive_s,
        timeout=CONNECT_S,
        will=will,
        properties=wishes,
        tls_context=terms.context,
        socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    )


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
