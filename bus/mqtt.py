"""An edge agent's link to the fleet over MQTT: what it says ends in Kafka, its commands come back.

Both ways every message arrives at least once. `publish` returns when bridges have said that Kafka
holds all of the batch (`bus.mqtt_outbox`); a command comes again until the agent has committed it
(`bus.mqtt_inbox`). A short loss of the connection is nobody's concern; after 30 s without one
`publish` gives up, and the agent's spool keeps the batch for later.
"""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from functools import partial
from typing import Self

import orjson

from bus.clock import Clock
from bus.contract import BusError, Closed, Consumer, Message, Unfit
from bus.log import check_message
from bus.mqtt_client import MqttClient
from bus.mqtt_inbox import Inbox, MqttConsumer
from bus.mqtt_outbox import Outbox, Place
from bus.options import MqttOptions
from bus.wire import Client, ClientMaker, Incoming, LinkDown, Outgoing
from schemas.codec import Rejected, decode_horizon, encode, event
from schemas.events import CommandAcknowledged, LinkLost, LinkOpened
from schemas.topics import COMMANDS, EVENTS, LOGS, MQTT_DOWN, MQTT_UP, TELEMETRY, dead_letters
from schemas.values import MAX_MESSAGE_BYTES

#: The broker need not keep what no bridge takes for longer: by then it was sent again.
_EXPIRY_S = 60
#: Nor a piece of a log, which somebody is waiting for.
_LOG_EXPIRY_S = 20
_LETTERS = {dead_letters(topic).name for topic in (COMMANDS, EVENTS, TELEMETRY)}
_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}").fullmatch
_is_number = re.compile(r"(0|[1-9][0-9]{0,18})", re.ASCII).fullmatch


class MqttLink:
    """A `Link` over MQTT for one edge agent. It connects on first use, and again for ever."""

    def __init__(
        self,
        make: ClientMaker,
        clock: Clock,
        agent: str,
        cell: str = "default",
        *,
        window: int = 100,
        in_flight_max: int = 1000,
        wire_clock: Clock | None = None,
    ) -> None:
        """Put the parts together; `open` says what they are."""
        if not _is_name(agent):
            raise BusError(f"agent {agent!r}: a name has letters, digits and ._:- only")
        #: Horizons that named nothing of ours, or were none.
        self.horizons_ignored = 0
        self.agent = agent
        self._cell = cell
        self._clock = clock
        self._commands = MQTT_DOWN.format(node=agent, kind="command")
        self._horizons = MQTT_DOWN.format(node=agent, kind="horizon")
        self._client = make(
            subscriptions=[self._commands, self._horizons],
            hear=self._hear,
            opened=self._opened,
            will=self._will,
        )
        self._outbox = Outbox(self._client, window, wire_clock or clock)
        self._inbox = Inbox(self._client, clock, agent)
        self._slots = asyncio.Semaphore(in_flight_max)
        self._publishing = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._consumer: MqttConsumer | None = None
        self._started = self._closed = False

    @classmethod
    def open(
        cls,
        options: MqttOptions,
        clock: Clock,
        agent: str,
        cell: str = "default",
        *,
        in_flight_max: int = 1000,
        wire_clock: Clock | None = None,
    ) -> Self:
        """Make the link of an agent to a broker.

        Args:
            options: The broker, and who we are to it.
            clock: The agent's time.
            agent: Its name.
            cell: The cell that it speaks of.
            in_flight_max: Calls of `publish` beyond wait their turn.
            wire_clock: What the connection goes by, where the agent's time is not the broker's.

        Raises:
            BusError: the name or a TLS file cannot be used.
        """
        name = f"{options.namespace or 'tidegate'}-agent-{agent}"
        return cls(
            partial(MqttClient, options, name, clock=wire_clock or clock),
            clock,
            agent,
            cell,
            window=options.window,
            in_flight_max=in_flight_max,
            wire_clock=wire_clock,
        )

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted us, now."""
        return self._client.connected

    @property
    def problem(self) -> str:
        """Why there is no connection, in words; empty while there is one."""
        return self._client.problem

    @property
    def client(self) -> Client:
        """The connection, for its counters."""
        return self._client

    @property
    def outbox(self) -> Outbox:
        """What is not confirmed."""
        return self._outbox

    async def publish(self, *messages: Message) -> None:
        """Return when Kafka holds all; of dead letters and pieces of logs, when the broker does.

        If it raises, or is cancelled, nothing of the batch is sent again: publish it once more.

        Raises:
            LinkDown: there was no connection for 30 s.
            BusError: a message is none of this agent, or the broker refuses it.
            Closed: the link is closed.
        """
        batch = [self._prepare(message) for message in messages]
        self._start()
        if not batch:
            return
        self._publishing += 1
        self._idle.clear()
        try:
            async with self._slots:
                await self._outbox.send(batch)
        finally:
            self._publishing -= 1
            if not self._publishing:
                self._idle.set()

    async def consumer(
        self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
    ) -> Consumer:
        """Read the commands of this agent: nothing else comes to it. One reader at a time.

        Raises:
            BusError: there is one already, or another topic or key is asked for.
        """
        self._start()
        if list(topics) != [COMMANDS.name] or (keys is not None and list(keys) != [self.agent]):
            raise BusError(
                f"the link of {self.agent} hears {COMMANDS.name} of {self.agent} only; ask for that"
            )
        if self._consumer is not None:
            raise BusError(f"the commands of {self.agent} have a reader already; close that first")
        self._consumer = MqttConsumer(self._inbox, self._clock, self._reader_left)
        return self._consumer

    async def drain(self) -> None:
        """Return when nothing published is on its way."""
        await self._idle.wait()

    async def close(self) -> None:
        """Drain, say that the link is lost, then disconnect in good order.

        A broker forgets the Will of whoever disconnects so; what it would say is said here.
        """
        self._closed = True
        await self.drain()
        if self._client.connected:
            with contextlib.suppress(BusError, LinkDown):
                await self._client.send(self._will(self._client.session))
        if self._consumer is not None:
            await self._consumer.close()
        await self._client.close()

    # --- out ---

    def _start(self) -> None:
        if self._closed:
            raise Closed(f"the link of {self.agent} is closed; open it again")
        if not self._started:
            self._started = True
            self._client.start()

    def _prepare(self, message: Message) -> tuple[Place | None, Outgoing]:
        """Find where a message goes; refuse what no bridge would ever confirm."""
        check_message(message)
        for name, text in message.headers.items():
            if not (name + text).isprintable():
                raise Unfit(f"header {name!r} to {message.topic}: MQTT takes printable text only")
        value = message.value or b""
        if len(value) > MAX_MESSAGE_BYTES:
            raise Unfit(
                f"message to {message.topic}: {len(value)} bytes, the limit is {MAX_MESSAGE_BYTES}"
            )
        if message.topic in _LETTERS:
            return None, self._outgoing("dlq", value, message, None)
        if message.topic == LOGS.name:  # nobody counts them: whoever misses one asks again
            return None, self._outgoing("log", value, message, _LOG_EXPIRY_S)
        if message.topic not in (TELEMETRY.name, EVENTS.name):
            raise Unfit(f"an edge agent does not publish to {message.topic}")
        kind, place = self._peek(value, message.topic)
        return place, self._outgoing(kind, value, message, _EXPIRY_S)

    def _outgoing(
        self, kind: str, value: bytes, message: Message, expiry_s: int | None
    ) -> Outgoing:
        address = MQTT_UP.format(node=self.agent, kind=kind)
        return Outgoing(address, value, expiry_s=expiry_s, properties=message.headers)

    def _peek(self, value: bytes, topic: str) -> tuple[str, Place]:
        source = f"/agents/{self.agent}"
        try:
            raw = orjson.loads(value)
            name, said_by, boot, sequence = (
                raw[field] for field in ("type", "source", "bootid", "sequence")
            )
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise Unfit(
                f"message to {topic}: an edge agent publishes CloudEvents with type, source, "
                "bootid and sequence, and this is none"
            ) from None
        if said_by != source:
            raise Unfit(f"message to {topic}: source is {said_by!r}, but {source} speaks here")
        if type(boot) is not int or not isinstance(sequence, str) or not _is_number(sequence):
            raise Unfit(f"message to {topic}: bootid is an integer, sequence digits in a string")
        if topic == TELEMETRY.name:
            return "telemetry", (boot, int(sequence))
        return "ack" if name == CommandAcknowledged.TYPE else "event", (boot, int(sequence))

    # --- what the connection tells ---

    def _opened(self, session: int) -> None:
        birth = LinkOpened(agent=self.agent, session=session)
        self._client.send(self._word("birth", birth)).add_done_callback(self._birth_answered)
        self._outbox.opened()

    def _birth_answered(self, done: "asyncio.Future[bool]") -> None:
        error = done.exception()
        if error is not None and not isinstance(error, LinkDown):
            self._client.problem = str(error)

    def _will(self, session: int) -> Outgoing:
        return self._word("death", LinkLost(agent=self.agent, session=session))

    def _word(self, kind: str, data: LinkOpened | LinkLost) -> Outgoing:
        envelope = event(
            data,
            source=f"/links/{self.agent}",
            sequence=data.session,
            bootid=0,
            time_s=self._clock.now_s(),
            cell=self._cell,
        )
        return Outgoing(MQTT_UP.format(node=self.agent, kind=kind), encode(envelope), retain=True)

    def _hear(self, incoming: Incoming) -> None:
        if incoming.address == self._commands:
            self._inbox.hear(incoming)
            return
        reached = decode_horizon(incoming.value)
        if isinstance(reached, Rejected) or reached.data.agent != self.agent:
            self.horizons_ignored += 1
        else:
            self._outbox.confirm(reached.data.boot, reached.data.stored)
        self._client.ack(incoming)  # bridges send them with quality 0, which needs none

    def _reader_left(self) -> None:
        self._consumer = None
