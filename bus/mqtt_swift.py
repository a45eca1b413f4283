"""A connection to an MQTT broker for whoever carries thousands of messages a second: a bridge.

`mqtt5` reads and writes packets; the rest is here. What is to be written in one turn of the loop
leaves in one piece, and of a piece that comes all packets are read, which is what aiomqtt's client
spends its time on: a system call or two, and a dozen function calls in Python, for each packet.
"""

import asyncio
import enum
import os
import socket
import ssl
from typing import Any

import mqtt5

from bus.mqtt_carrier import (
    CONNECT_S,
    IN_FLIGHT_MAX,
    PACKET_MAX,
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
from bus.wire import Incoming, Outgoing

#: Packets read in one turn of the loop.
_READ_AT_ONCE = 64
_PACKETS = 2**16 - 1
#: A confirmation begins so; its length, its number and what it says come next.
_PUBACK = b"\x40"


class SwiftConnection(Sender, asyncio.Protocol):
    """A `Carrier` over a stream of our own."""

    def __init__(self, terms: Terms) -> None:
        """Prepare; nothing is connected before `open`."""
        super().__init__(terms)
        self._stream: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._asked: asyncio.Future[Any] | None = None  # while it opens
        self._came, self._at = b"", 0  # up to where it is read
        self._out: list[bytes] = []
        self._held = self._accepted = self._reading = False
        self._keepalive_s = float(self._options.keepalive_s)
        self._packet = 0
        self._spoke_s = self._heard_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # --- what the client asks ---

    async def open(self) -> None:
        """Connect and subscribe."""
        options, terms = self._options, self._terms
        name = None if terms.context is None else options.host
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._loop.create_connection(
                    lambda: self,
                    options.host,
                    options.port,
                    ssl=terms.context,
                    server_hostname=name,
                )
        except TimeoutError:
            raise Broke(f"nobody answers within {CONNECT_S:g} s") from None
        except OSError as error:
            raise Broke(_reason(error)) from error
        accepted = await self._ask(self._connect().write())
        if int(accepted.reason_code) >= REFUSAL:
            words = self._words(accepted.reason_code)
            raise Refusal(f"the broker refuses to be connected to: {words}")
        self._limit = min(IN_FLIGHT_MAX, accepted.receive_max)
        self._packet_max = accepted.max_packet_size or PACKET_MAX
        self._keepalive_s = float(accepted.server_keep_alive or options.keepalive_s)
        self._look()
        if terms.subscriptions:
            wanted = [
                mqtt5.TopicFilter(
                    name,
                    max_qos=mqtt5.QoS.AT_LEAST_ONCE,
                    retain_handling=mqtt5.RetainHandling.SEND_IF_SUBSCRIPTION_NOT_EXISTS,
                )
                for name in terms.filters()
            ]
            self._packet = 1
            found = await self._ask(mqtt5.SubscribePacket(self._packet, wanted).write())
            for name, code in zip(terms.subscriptions, found.reason_codes, strict=True):
                if int(code) >= REFUSAL:
                    words = self._words(code)
                    raise Refusal(f"the broker refuses the subscription to {name}: {words}")
        self._accepted = True

    def ack(self, packet: int, quality: int) -> None:
        """Acknowledge."""
        self._write(mqtt5.PubAckPacket(packet).write())

    def hold(self, held: bool) -> None:
        """Read nothing while `held`."""
        if held == self._held:
            return
        self._held = held
        if held:
            if self._stream is not None:
                self._stream.pause_reading()
        else:
            self._heard_s = self._loop.time()
            self._read_soon()

    def leave(self) -> None:
        """Disconnect after what was acknowledged."""
        self._say_goodbye(mqtt5.DisconnectPacket())

    async def broken(self) -> None:
        """Wait until it breaks."""
        await asyncio.shield(self._gone)

    async def close(self, *, keep_session: bool) -> None:
        """Disconnect in good order."""
        expiry_s = None if keep_session else 0
        self._say_goodbye(mqtt5.DisconnectPacket(session_expiry_interval=expiry_s))
        await asyncio.wait({self._gone}, timeout=CONNECT_S)

    async def end(self) -> None:
        """Let go of everything."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None:
            self._stream.abort()
        if not self._gone.done():
            self._gone.set_result(None)
        self._gone.exception()  # whoever asked has heard it
        self._give_up()

    # --- what goes out ---

    def _connect(self) -> mqtt5.ConnectPacket:
        options, last = self._options, self._terms.will
        will = None
        if last is not None:
            will = mqtt5.Will(
                options.address(last.address),
                payload=last.value,
                qos=mqtt5.QoS(last.qos),
                retain=last.retain,
                will_delay_interval=WILL_DELAY_S,
                **_properties(last),
            )
        return mqtt5.ConnectPacket(
            self._terms.client_id,
            username=options.username or None,
            password=options.password.encode() or None,
            will=will,
            keep_alive=options.keepalive_s,
            session_expiry_interval=options.session_s,
            receive_max=RECEIVE_MAX,
            max_packet_size=TAKEN_MAX,
        )

    async def _ask(self, packet: bytes) -> Any:
        """Write it and wait for its answer, before the connection is in use."""
        self._asked = self._loop.create_future()
        self._write(packet)
        await asyncio.wait(
            {self._asked, self._gone}, timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if self._asked.done():
            return self._asked.result()
        if self._gone.done():
            self._gone.result()
        raise Broke(f"the broker does not answer within {CONNECT_S:g} s")

    def _publish(self, message: Outgoing, future: "asyncio.Future[bool]") -> None:
        packet = None
        if message.qos:
            packet = self._packet = self._packet % _PACKETS + 1
            while packet in self._sent:
                packet = self._packet = self._packet % _PACKETS + 1
        try:
            made = mqtt5.PublishPacket(
                self._options.address(message.address),
                message.value,
                qos=mqtt5.QoS(message.qos),
                retain=message.retain,
                packet_id=packet,
                **_properties(message),
            ).write()
        except ValueError as error:
            future.set_exception(Refused(f"{message.address}: {error}"))
            return
        self._write(made)
        if packet is None:
            self.published += 1
            future.set_result(True)
        else:
            self._sent[packet] = (message, future)

    def _write(self, packet: bytes) -> None:
        """Write it at the end of this turn of the loop, with what else there is."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(packet)

    def _flush(self) -> None:
        if self._out and self._stream is not None and not self._stream.is_closing():
            self._stream.write(b"".join(self._out))
            self._spoke_s = self._loop.time()
        self._out.clear()

    def _say_goodbye(self, packet: mqtt5.DisconnectPacket) -> None:
        self._write(packet.write())
        self._flush()
        if self._stream is not None:
            self._stream.close()  # what was written goes out before

    def _look(self) -> None:
        """Ask whether the broker is there when nothing was said for a while, either way."""
        every_s, now_s = self._keepalive_s / 4.0, self._loop.time()
        if every_s == 0.0 or self._gone.done():
            return
        if not self._held and now_s > self._heard_s + 6.0 * every_s:
            self.cut("the broker does not answer")
            return
        if now_s >= min(self._spoke_s, self._heard_s) + 2.0 * every_s:
            self._write(mqtt5.PingReqPacket().write())
        self._timer = self._loop.call_later(every_s, self._look)

    # --- what comes ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._stream = transport
        wire = transport.get_extra_info("socket")
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Read what came, as far as it is whole."""
        self._heard_s = self._loop.time()
        self._came = self._came[self._at :] + data
        self._at = 0
        if not self._reading:
            self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note why."""
        self.cut(str(exc) if exc is not None else "the broker closed it")

    def _read_soon(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Take the packets that are there, but let others run at times."""
        self._reading = False
        came = memoryview(self._came)
        for _ in range(_READ_AT_ONCE):
            if self._held or self._gone.done():
                return
            try:
                packet, size = mqtt5.read(came[self._at :])
            except IndexError:  # the rest has not come
                if self._stream is not None:
                    self._stream.resume_reading()
                return
            except ValueError as error:
                answer = bytes(came[self._at : self._at + 5])
                if answer[:1] != _PUBACK or answer[4:] != bytes([TOO_LARGE]):
                    self.cut(f"the broker sent what is no MQTT: {error}")
                    return
                self._at += 2 + answer[1]
                self._confirmed(int.from_bytes(answer[2:4]), TOO_LARGE, None)
                continue
            self._at += size
            try:
                self._take(packet)
            except Exception:
                self.cut("what came could not be handled; the log says why")
                raise
        if self._stream is not None:
            self._stream.pause_reading()
        self._read_soon()

    def _take(self, packet: mqtt5.Packet) -> None:
        if isinstance(packet, mqtt5.PublishPacket):
            address = packet.topic.removeprefix(self._options.address(""))
            token = (self._terms.number, packet.packet_id or 0, int(packet.qos))
            pairs = dict(packet.user_properties)
            self._terms.hear(Incoming(address, packet.payload, packet.retain, pairs, token))
        elif isinstance(packet, mqtt5.PubAckPacket):
            self._confirmed(packet.packet_id, int(packet.reason_code), packet.reason_code)
        elif isinstance(packet, mqtt5.ConnAckPacket | mqtt5.SubAckPacket):
            if self._asked is not None and not self._asked.done():
                self._asked.set_result(packet)
        elif isinstance(packet, mqtt5.DisconnectPacket):
            if packet.reason_code == mqtt5.DisconnectReasonCode.SESSION_TAKEN_OVER:
                self._break_with(taken_over(self._terms.client_id))
            else:
                self.cut(f"the broker says: {self._words(packet.reason_code)}")

    def _words(self, code: enum.IntEnum) -> str:
        return code.name.replace("_", " ").capitalize()

    def cut(self, why: str) -> None:
        """Break it, without a word to the broker."""
        self._break_with(Broke(f"the connection broke: {why}", accepted=self._accepted))

    def _break_with(self, error: Exception) -> None:
        if not self._gone.done():
            self._gone.set_exception(error)
        if self._stream is not None:
            self._stream.abort()


def _reason(error: OSError) -> str:
    """Say why there is no connection, in the system's words; asyncio's name its own call."""
    own = isinstance(error, ssl.SSLError | socket.gaierror) or error.errno is None
    return str(error) if own else os.strerror(error.errno or 0)


def _properties(message: Outgoing) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if message.expiry_s is not None:
        found["message_expiry_interval"] = message.expiry_s
    if message.correlation:
        found["correlation_data"] = message.correlation.encode()
    if message.properties:
        found["user_properties"] = list(message.properties.items())
    return found
