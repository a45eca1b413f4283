"""A connection to an MQTT 5 broker that comes back by itself.

What comes is acknowledged only by `ack`, never on arrival, so that the broker sends it again if
this process dies first.
"""

import asyncio
import ssl
import zlib
from collections.abc import Callable, Sequence

from bus.clock import Clock
from bus.contract import BusError
from bus.mqtt_carrier import WILL_DELAY_S, Broke, Carrier, Refusal, Refused, Terms, tls_context
from bus.mqtt_connection import Connection
from bus.options import MqttOptions
from bus.wire import Incoming, LinkDown, Outgoing

__all__ = ["WILL_DELAY_S", "MqttClient", "Refused"]

#: The first pause before connecting again, and the longest. A refusal waits the longest at once.
_PAUSE_S, _PAUSE_MAX_S = 0.2, 10.0
#: Some brokers (Mosquitto 2.0.11) do not say that another came under the same name. So many
#: connections in a row that were accepted and broke within this long look like it.
_SUSPECT, _SUSPECT_S = 3, 20.0


class MqttClient:
    """A `Client` that connects again for ever, and subscribes again each time."""

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
        carrier: Callable[[Terms], Carrier] = Connection,
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
            carrier: Makes each connection; `bus.mqtt_swift` has one for thousands a second.

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
        #: The broker's address, without user and password.
        self.where = f"mqtt{'s' if options.tls else ''}://{options.host}:{options.port}"
        self._pauses = 0
        self._session = 0
        self._attempts = 0
        self._published = 0
        self._carrier = carrier
        self._now: Carrier | None = None
        self._newest: Carrier | None = None
        self._runner: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        if options.tls is not None:
            tls_context(options.tls)

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
            BusError: the installed library cannot do what is needed of it.
        """
        self._carrier(self._terms(None, None))
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
            raise LinkDown(f"no connection to {self.where}: {self.problem}; try again later")
        return self._now.send(message)

    def ack(self, message: Incoming) -> None:
        """Tell the broker that it need not send it again; nothing if its connection is gone."""
        number, packet, quality = message.token
        # Messages come as soon as the broker has accepted us, before we may publish.
        if self._newest is not None and self._attempts == number and quality:
            self._newest.ack(packet, quality)

    def hold(self, held: bool) -> None:
        """Read nothing more from this connection while `held`; the next one begins anew."""
        if self._newest is not None:
            self._newest.hold(held)

    def renew(self) -> None:
        """Connect anew, so that all that was not acknowledged comes again."""
        if self._now is not None:
            self._now.leave()

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
            except Refusal as error:
                self.problem, refused, broke = str(error), True, 0
            except Broke as error:
                quick = loop.time() - began_s < _SUSPECT_S
                broke = int(error.accepted) + (broke if error.accepted and quick else 0)
                self.problem = str(error)
                if broke >= _SUSPECT:
                    # Without a number: whoever tells of it would take each for something new.
                    self.problem += (
                        ", like those before it; if another client connects under the name "
                        f"{self._client_id}, give each its own"
                    )
            except BusError as error:
                self.problem, broke = str(error), 0
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
        # Each time from the files: certificates are renewed while we run.
        tls = self._options.tls
        context = None if tls is None else await asyncio.to_thread(tls_context, tls)
        self._attempts += 1
        will = None if self._will is None else self._will(self._session)
        self._newest = carrier = self._carrier(self._terms(will, context))
        try:
            await carrier.open()
            self._now, self.problem = carrier, ""
            self.connections += 1
            if self._opened is not None:
                self._opened(self._session)
            await self._until_broken(carrier)
        finally:
            self._now = self._newest = None
            self.problem = self.problem or "the connection ended"
            self._published += carrier.published
            await carrier.end()

    def _terms(self, will: Outgoing | None, context: ssl.SSLContext | None) -> Terms:
        return Terms(
            self._attempts,
            self._options,
            self._client_id,
            self._subscriptions,
            will,
            context,
            self._heard,
        )

    async def _until_broken(self, carrier: Carrier) -> None:
        """Return when we end; raise why the connection broke."""
        broken = asyncio.create_task(carrier.broken())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({broken, ending}, return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                broken.result()
            else:
                await carrier.close(keep_session=self._keep_session)
        finally:
            ending.cancel()
            broken.cancel()

    def _heard(self, message: Incoming) -> None:
        self.received += 1
        self._hear(message)
