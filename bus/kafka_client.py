"""The adapter to aiokafka: how clients are made and stopped, and what their errors mean to us.

Only here are parts of aiokafka used that it does not document, each with its reason.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    IllegalOperation,
    InvalidProducerEpoch,
    KafkaError,
    KafkaTimeoutError,
    ProducerFenced,
)
from aiokafka.helpers import create_ssl_context

from bus.clock import Clock
from bus.contract import BusError, Fenced, Message, Record
from bus.kafka_batches import read_on
from bus.kafka_connections import tend
from bus.options import KafkaOptions, Tls
from bus.tls import show_certificate
from schemas.topics import ALL_TOPICS

#: A broker that does not answer within this long is as good as gone.
REQUEST_S = 5.0
#: Connecting, with finding coordinators and the like.
CONNECT_S = 15.0
#: A client that has not stopped by itself is helped.
_STOP_S = 2.0
#: A leader or a coordinator moves: learn of it soon.
_METADATA_S = 30.0
#: How long a broker may wait for records: for one that follows, for one that reads what is there.
_FOLLOW_WAIT_MS, _READ_WAIT_MS = 500, 10
#: Below the smallest limit of a topic, so that no batch of small records is refused.
_BATCH_BYTES = 256 * 1024


class Home(Protocol):
    """What consumers and producers need of the bus that opened them."""

    options: KafkaOptions
    clock: Clock
    partition: int
    closed: bool
    #: How often a consumer was found stuck and made anew, and lost its place to retention.
    recreated: int
    resets: int

    def check(self, messages: Sequence[Message]) -> None:
        """Refuse messages that the broker would not take."""
        ...

    def wrote(self, ends: Mapping[str, int]) -> None:
        """Hear that what is before these offsets, by topic, was written here."""
        ...

    def committed(self, group: str, positions: Mapping[str, int]) -> None:
        """Hear that a group's positions, by topic, were committed here."""
        ...

    async def ends(self, topics: Sequence[str]) -> dict[str, int]:
        """Give the last stable offset of each topic."""
        ...

    async def begins(self, topics: Sequence[str]) -> dict[str, int]:
        """Give the first offset that each topic still holds."""
        ...


_BROKEN = (KafkaError, IllegalOperation, OSError, TimeoutError)


def client_settings(options: KafkaOptions) -> dict[str, Any]:
    """Give what every kind of client is made with."""
    protocol = ("SASL_" if options.sasl else "") + ("SSL" if options.tls else "PLAINTEXT")
    settings: dict[str, Any] = {
        "bootstrap_servers": options.bootstrap.split(","),
        "client_id": "tidegate",
        "request_timeout_ms": int(REQUEST_S * 1000),
        "metadata_max_age_ms": int(_METADATA_S * 1000),
        "security_protocol": protocol,
    }
    if options.tls is not None:
        settings["ssl_context"] = _ssl_context(options.tls)
    if options.sasl:
        settings["sasl_mechanism"] = options.sasl
        settings["sasl_plain_username"] = options.username
        settings["sasl_plain_password"] = options.password
    return settings


_contexts: dict[Tls, ssl.SSLContext] = {}


def _ssl_context(tls: Tls) -> ssl.SSLContext:
    try:
        made: ssl.SSLContext = create_ssl_context(cafile=tls.ca_file or None)
        if tls.cert_file:
            show_certificate(made, tls.cert_file, tls.key_file)
        # Some clients live as long as their process: whichever is made next brings what was
        # renewed, for the next connection of all.
        context = _contexts.setdefault(tls, made)
        if context is not made:
            if tls.ca_file:
                context.load_verify_locations(tls.ca_file)
            if tls.cert_file:
                show_certificate(context, tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(name for name in (tls.ca_file, tls.cert_file, tls.key_file) if name)
        why = f"[kafka] TLS files {files}: {error}; they must be PEM and readable"
        raise BusError(why) from error
    return context


async def open_consumer(options: KafkaOptions, group: str | None) -> AIOKafkaConsumer:
    """Start a consumer that is told what to read, and reads what is committed only.

    Without a group it reads what is there: the broker answers at once when there is no more. A
    fetch that waited for more would keep what the client asks next, of another topic, waiting.

    Raises:
        BusError: the broker does not answer.
    """
    read_on()
    consumer = AIOKafkaConsumer(
        group_id=group,
        enable_auto_commit=False,
        # We say ourselves where to go on, and count it.
        auto_offset_reset="none",
        isolation_level="read_committed",
        fetch_max_wait_ms=_FOLLOW_WAIT_MS if group else _READ_WAIT_MS,
        **client_settings(options),
    )
    await start(consumer, options)
    return consumer


async def open_producer(
    options: KafkaOptions, transactional_id: str | None, transaction_s: float = 60.0
) -> AIOKafkaProducer:
    """Start a producer that stores each record once; with an id, it fences the former holder.

    Raises:
        BusError: the broker does not answer.
    """
    producer = AIOKafkaProducer(
        acks="all",
        enable_idempotence=True,
        linger_ms=0,
        compression_type="lz4",
        max_batch_size=_BATCH_BYTES,
        max_request_size=max(topic.record_max_bytes for topic in ALL_TOPICS.values()),
        transactional_id=transactional_id,
        transaction_timeout_ms=int(transaction_s * 1000),
        **client_settings(options),
    )
    await start(producer, options)
    return producer


async def start(client: Any, options: KafkaOptions) -> None:
    """Start a client of any kind; one that cannot start is stopped."""
    tend(_connections(client))
    try:
        with errors_named(f"reach Kafka at {options.bootstrap} and be let in"):
            async with asyncio.timeout(CONNECT_S):
                await client.start()
                # Its `stop` fails if the tasks that it made have not run yet.
                await asyncio.sleep(0)
    except BaseException as error:
        if isinstance(client, AIOKafkaProducer):
            await abandon(client)
        else:
            await stop(client)
        if isinstance(error, BusError) and await _somebody_listens(options.bootstrap):
            raise BusError(
                f"{error}. Somebody takes connections there: if it is not just starting, see that "
                "the port is Kafka's (MQTT has another), and TLS and user as its listener wants"
            ) from error
        raise


async def _somebody_listens(bootstrap: str) -> bool:
    """Whether the first of the addresses takes a connection, whatever it speaks."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except (OSError, ValueError, TimeoutError):
        return False
    return True


def _connections(client: Any) -> Any:
    return client.client if isinstance(client, AIOKafkaProducer) else client._client


async def learn_topic(client: AIOKafkaConsumer, topic: str) -> None:
    """Return when a client knows the partitions of a topic, which may have just been made.

    Brokers hear of a new topic a moment after it was made. A client that was told "unknown" would
    ask again only after `_METADATA_S`.

    Raises:
        KafkaError: the topic is not there.
    """
    await client._client._wait_on_metadata(topic)


async def stop(client: Any) -> None:
    """Stop a client of any kind, whether or not the broker answers.

    A client's own way may wait for the broker, or be ended half-way by one of its own cancelled
    tasks; then what still runs of it is ended one by one.
    """
    connections = _connections(client)
    admin = isinstance(client, AIOKafkaAdminClient)
    ending = asyncio.create_task(client.close() if admin else client.stop())
    if not await _ended(ending):
        ending.cancel()
        if isinstance(client, AIOKafkaConsumer):
            for name in ("_coordination_task", "_commit_refresh_task"):
                if (waiting := getattr(client._coordinator, name, None)) is not None:
                    waiting.cancel()
            if client._fetcher is not None:
                await _ended(asyncio.create_task(client._fetcher.close()))
        await _ended(asyncio.create_task(connections.close()))


async def _ended(work: "asyncio.Task[None]") -> bool:
    """Wait for it for a while; True if it ended without an error."""
    await asyncio.wait([work], timeout=_STOP_S)
    return work.done() and not work.cancelled() and work.exception() is None


async def abandon(producer: AIOKafkaProducer) -> None:
    """Stop a producer now; what it has not sent yet is not sent any more.

    Its own `stop` would wait for the broker for ever: an idempotent producer never gives up.
    """
    accumulator, sender = producer._message_accumulator, producer._sender.sender_task
    # The first lets requests on their way end, the second ends them.
    for _ in range(2):
        if sender is not None and not sender.done():
            sender.cancel()
            await asyncio.wait([sender], timeout=0.5)
    batches = [batch for waiting in accumulator._batches.values() for batch in waiting]
    # Where it looks for each batch that fails, even for those that it put back to try again.
    accumulator._pending_batches.update(batches)
    accumulator.fail_all(KafkaTimeoutError())
    # Failures that aiokafka keeps for readers whom a producer of ours does not have.
    kept = [batch._drain_waiter for batch in batches]
    kept.append(producer._txn_manager._transaction_waiter)
    for future in kept:
        if future is not None and future.done() and not future.cancelled():
            future.exception()
    await stop(producer)


@contextlib.contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Say what could not be done, in terms of the contract.

    Raises:
        Fenced: another process opened the same producer id.
        BusError: anything else that went wrong with the broker.
    """
    try:
        yield
    except (ProducerFenced, InvalidProducerEpoch) as error:
        raise Fenced(f"could not {what}: it was opened again elsewhere; stop this one") from error
    except _BROKEN as error:
        reason = str(error) or type(error).__name__
        raise BusError(f"could not {what} ({reason}); try again when the broker answers") from error


def to_kafka(message: Message, now_s: float) -> dict[str, Any]:
    """Give the parts of a message as a producer takes them, except where it goes."""
    return {
        "key": message.key.encode(),
        "value": message.value,
        "timestamp_ms": int(now_s * 1000),
        "headers": [(name, value.encode()) for name, value in message.headers.items()],
    }


def from_kafka(topic: str, found: Any) -> Record:
    """Give a record as the contract knows it; what is no Unicode was not written by us."""
    return Record(
        topic,
        found.offset,
        (found.key or b"").decode(errors="replace"),
        found.value,
        {name: (value or b"").decode(errors="replace") for name, value in found.headers}
        if found.headers
        else {},
        found.timestamp / 1000,
    )
