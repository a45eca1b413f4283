"""A connection to an MQTT 5 broker that comes back by itself; aiomqtt carries it.

What comes is acknowledged only by `ack`, never on arrival, so that the broker sends it again if
this process dies first.
"""

import asyncio
import socket
import ssl
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import aiomqtt
from aiomqtt.exceptions import MqttConnectError
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from bus.clock import Clock
from bus.contract import BusError
from bus.mqtt_connection import (
    CONNECT_S,
    REFUSAL,
    Connection,
    Refused,
    empty_properties,
    paho_within,
    properties,
)
from bus.options import MqttOptions, Tls
from bus.wire import Incoming, LinkDown, Outgoing

__all__ = ["WILL_DELAY_S", "MqttClient", "Refused"]

#: The first pause before connecting again, and the longest. A refusal waits the longest at once.
_PAUSE_S, _PAUSE_MAX_S = 0.2, 10.0
#: The broker publishes the Will this long after it lost us; coming back before, it does not.
WILL_DELAY_S = 5
#: The broker's word to who is disconnected because another came under the same name.
_TAKEN_OVER = 0x8E
#: Some brokers (Mosquitto 2.0.11) do not say it. So many connections in a row that were accepted
#: and broke within this long look like it.
_SUSPECT, _SUSPECT_S = 3, 20.0
#: Messages that the broker may send ahead of our `ack`. Some brokers send more.
_RECEIVE_MAX = 500


class MqttClient:
    """A `Wire` over aiomqtt. It connects again for ever, and subscribes again each time."""

    def __init__(
        self,
        options: MqttOptions,
        client_id: str,
        *,
        subscriptions: Sequence[str],
        hear: Callable[[Incoming], None],
        opened: Callable[[int], None] | None = None,
        will: Callable[[int], Outgoing] | None = None,
        clock: Clock,
        keep_session: bool = True,
    ) -> None:
        """Name the parts; nothing is connected before `start`.

        Args:
            options: The broker, and who we are to it.
            client_id: Under it the broker keeps our session; one process at a time has it.
            subscriptions: Addresses without namespace, quality 1; `$share/GROUP/FILTER` works.
            hear: Is shown each message, on the loop. If it raises, the connection is made anew.
            opened: Is told the session number of each new connection.
            will: Makes the Will of a connection from its session number.
            clock: Where session numbers come from, so that they rise over restarts.
            keep_session: Whether the broker shall keep what comes for us after `close`. One that
                shares a subscription must not: it would go on being dealt its share.

        Raises:
            BusError: a file of `options.tls` cannot be used.
        """
        self.connections = 0
        self.received = 0
        #: Why there is no connection, in words; empty while there is one.
        self.problem = "not connected yet"
        self._options = options
        self._client_id = client_id
        self._subscriptions = subscriptions
        self._hear = hear
        self._opened = opened
        self._will = will
        self._clock = clock
        self._keep_session = keep_session
        self._where = f"mqtt{'s' if options.tls else ''}://{options.host}:{options.port}"
        self._pauses = 0
        self._session = 0
        self._attempts = 0
        self._published = 0
        self._now: Connection | None = None
        self._newest: Connection | None = None
        self._runner: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        if options.tls is not None:
            _context(options.tls)

    @property
    def session(self) -> int:
        """The number of the newest connection; the next one's is higher."""
        return self._session

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted us, now."""
        return self._now is not None

    @property
    def reconnects(self) -> int:
        """How often the connection had to be made again."""
        return max(0, self.connections - 1)

    @property
    def published(self) -> int:
        """How many messages the broker has confirmed or refused; of quality 0, were written."""
        return self._published + (self._now.published if self._now else 0)

    def start(self) -> None:
        """Begin to connect, in the background.

        Raises:
            BusError: the installed aiomqtt cannot do what is needed of it.
        """
        paho_within(aiomqtt.Client(self._options.host))
        self._runner = asyncio.create_task(self._run(), name=f"mqtt {self._client_id}")

    async def publish(self, message: Outgoing) -> None:
        """Return when the broker has confirmed; of quality 0, when it is written.

        Raises:
            LinkDown: there is no connection, or it broke before the broker confirmed.
            Refused: the broker does not take this message.
        """
        await self.send(message)

    def send(self, message: Outgoing) -> "asyncio.Future[bool]":
        """Publish without waiting: the future says what `publish` would. Await it at some time.

        It gives False if the broker says that nobody subscribes to it now.

        Raises:
            LinkDown: there is no connection.
            Refused: no broker could take this message.
        """
        if self._now is None:
            raise LinkDown(f"no connection to {self._where}: {self.problem}; try again later")
        return self._now.send(message)

    def ack(self, message: Incoming) -> None:
        """Tell the broker that it need not send it again; nothing if its connection is gone."""
        number, packet, quality = message.token
        # Messages come as soon as the broker has accepted us, before we may publish.
        if self._newest is not None and self._newest.number == number and quality:
            self._newest.inner.ack(packet, quality)

    def hold(self, held: bool) -> None:
        """Read nothing more from this connection while `held`; the next one begins anew."""
        if self._newest is not None:
            self._newest.hold(held)

    def renew(self) -> None:
        """Connect anew, so that all that was not acknowledged comes again."""
        if self._now is not None:
            self._now.inner.disconnect()  # goes out after what was acknowledged

    async def close(self) -> None:
        """Disconnect in good order (the Will is not published) and end.

        An attempt to connect that is under way is waited for: at most some seconds.
        """
        self._ending.set()
        if self._runner is not None:
            await self._runner

    # --- connecting ---

    async def _run(self) -> None:
        loop, pause_s, broke = asyncio.get_running_loop(), _PAUSE_S, 0
        while not self._ending.is_set():
            began_s, refused = loop.time(), False
            try:
                await self._connect()
            except _Refusal as error:
                self.problem, refused, broke = str(error), True, 0
            except _Broke as error:
                broke = broke + 1 if loop.time() - began_s < _SUSPECT_S else 1
                self.problem = str(error)
                if broke >= _SUSPECT:
                    # Without a number: whoever tells of it would take each for something new.
                    self.problem += (
                        ", like those before it; if another client connects under the name "
                        f"{self._client_id}, give each its own"
                    )
            except (aiomqtt.MqttError, BusError, ValueError) as error:
                self.problem, broke = str(error) or type(error).__name__, 0
            if self._ending.is_set():
                break
            if refused:
                pause_s = _PAUSE_MAX_S
            elif loop.time() - began_s > _PAUSE_MAX_S:
                pause_s = _PAUSE_S
            try:
                async with asyncio.timeout(pause_s * self._share()):
                    await self._ending.wait()
            except TimeoutError:
                pause_s = min(_PAUSE_MAX_S, 2 * pause_s)
        self.problem = "closed"

    def _share(self) -> float:
        """Give the part of this pause to wait, half to all of it: clients must not come at once.

        From a checksum, since numpy's generators take 9 MiB of an edge server.
        """
        self._pauses += 1
        return 0.5 + zlib.crc32(f"{self._client_id} {self._pauses}".encode()) / 2**33

    async def _connect(self) -> None:
        """Make one connection and keep it until it breaks or we end."""
        self._session = max(self._session + 1, round(self._clock.now_s() * 1000))
        self._attempts += 1
        # Each time from the files: certificates are renewed while we run.
        tls = self._options.tls
        context = None if tls is None else await asyncio.to_thread(_context, tls)
        client = self._client(context)
        connection = Connection(self._attempts, client, self._options, self._heard)
        self._newest = connection
        try:
            async with client:
                await self._subscribe(client)
                if not connection.inner.is_connected():
                    raise _Broke("the connection broke at once")
                connection.begin()
                self._now, self.problem = connection, ""
                self.connections += 1
                if self._opened is not None:
                    self._opened(self._session)
                await self._until_broken(client)
        except MqttConnectError as error:
            raise _Refusal(f"the broker refuses to be connected to: {error.rc}") from None
        finally:
            self._now = self._newest = None
            self.problem = self.problem or "the connection ended"
            self._published += connection.published
            connection.end(self._where)

    def _client(self, context: ssl.SSLContext | None) -> aiomqtt.Client:
        options = self._options
        wishes = empty_properties(PacketTypes.CONNECT)
        wishes.SessionExpiryInterval = options.session_s
        wishes.ReceiveMaximum = _RECEIVE_MAX
        will = None
        if self._will is not None:
            last = self._will(self._session)
            words = properties(last, PacketTypes.WILLMESSAGE)
            words = words or empty_properties(PacketTypes.WILLMESSAGE)
            words.WillDelayInterval = WILL_DELAY_S
            address = options.address(last.address)
            will = aiomqtt.Will(address, last.value, last.qos, last.retain, words)
        return aiomqtt.Client(
            options.host,
            options.port,
            identifier=self._client_id,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=False,
            username=options.username or None,
            password=options.password or None,
            keepalive=options.keepalive_s,
            timeout=CONNECT_S,
            will=will,
            properties=wishes,
            tls_context=context,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )

    async def _subscribe(self, client: aiomqtt.Client) -> None:
        if not self._subscriptions:
            return
        wanted = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        codes = await client.subscribe(
            [(self._filter(name), wanted) for name in self._subscriptions]
        )
        for name, code in zip(self._subscriptions, codes, strict=True):
            if isinstance(code, ReasonCode) and code.value >= REFUSAL:
                raise _Refusal(f"the broker refuses the subscription to {name}: {code}")

    def _filter(self, subscription: str) -> str:
        if subscription.startswith("$share/"):
            share, group, name = subscription.split("/", 2)
            return f"{share}/{group}/{self._options.address(name)}"
        return self._options.address(subscription)

    async def _until_broken(self, client: aiomqtt.Client) -> None:
        """Return when we end; raise why the connection broke."""
        broken: asyncio.Future[Any] = client._disconnected
        ending: asyncio.Future[Any] = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({broken, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if not broken.done():
            if not self._keep_session:
                farewell = empty_properties(PacketTypes.DISCONNECT)
                farewell.SessionExpiryInterval = 0
                client._client.disconnect(properties=farewell)
                await asyncio.wait({broken}, timeout=CONNECT_S)
            return
        why = broken.exception() or "the broker closed it"
        if isinstance(why, aiomqtt.MqttCodeError):
            if getattr(why.rc, "value", why.rc) == _TAKEN_OVER:
                raise _Refusal(
                    f"another client connected under the name {self._client_id}; give each its own"
                )
            raise _Broke(f"the connection broke: {why}")
        raise aiomqtt.MqttError(f"the connection broke: {why}")

    def _heard(self, message: Incoming) -> None:
        self.received += 1
        self._hear(message)


class _Broke(BusError):
    """The broker had accepted us, and then the connection broke; not by our own doing."""


class _Refusal(BusError):
    """The broker answered, and does not want us: no use in asking often."""


class _Socket(ssl.SSLSocket):
    """A socket that does not stay open when the handshake fails, as paho would leave it."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def _context(tls: Tls) -> ssl.SSLContext:
    """Read the files anew; TLS 1.2 or later, the broker's name is checked."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        context.sslsocket_class = _Socket
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file or None)
    except OSError as error:  # SSLError is one
        files = ", ".join(name for name in (tls.ca_file, tls.cert_file, tls.key_file) if name)
        raise BusError(f"TLS files {files}: {error}; they must be PEM and readable") from error
    return context
