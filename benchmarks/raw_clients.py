"""The bare clients, without anything of ours: what the brokers' hops can carry on this machine."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import aiomqtt
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


async def make_topic(bootstrap: str, topic: str) -> None:
    """Make a topic of one partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, values: Sequence[bytes]) -> float:
    """Give records a second, idempotent and acknowledged by all, as many at once as go."""
    producer = _producer(bootstrap)
    await producer.start()
    try:
        began = time.perf_counter()
        futures = [await producer.send(topic, value, key=b"cell", partition=0) for value in values]
        await asyncio.gather(*futures)
        return len(values) / (time.perf_counter() - began)
    finally:
        await producer.stop()


async def consume(bootstrap: str, topic: str, count: int) -> float:
    """Give records a second, from the start, committed ones only."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        began, found = time.perf_counter(), 0
        while found < count:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=1000)).values():
                found += len(records)
        return found / (time.perf_counter() - began)
    finally:
        await consumer.stop()


async def flood(host: str, port: int, address: str, values: Sequence[bytes]) -> None:
    """Publish with quality 1, a hundred at once."""
    async with aiomqtt.Client(
        host, port, protocol=aiomqtt.ProtocolVersion.V5, identifier=f"flood-{address[:24]}"
    ) as client:
        client.pending_calls_threshold = 1000
        for start in range(0, len(values), 100):
            await asyncio.gather(
                *(client.publish(address, value, qos=1) for value in values[start : start + 100])
            )


class RawBridge:
    """The shortest bridge that loses nothing: acknowledge MQTT after Kafka has, check nothing."""

    def __init__(self, host: str, port: int, filter_: str, bootstrap: str, topic: str) -> None:
        self._host, self._port, self._filter = host, port, filter_
        self._bootstrap, self._topic = bootstrap, topic
        self.ready = asyncio.Event()
        self.forwarded = 0

    async def run(self) -> None:
        """Forward until cancelled."""
        producer = _producer(self._bootstrap)
        await producer.start()
        expiry = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        expiry.SessionExpiryInterval = 3600
        unconfirmed: deque[tuple[int, asyncio.Future[object]]] = deque()
        try:
            async with aiomqtt.Client(
                self._host,
                self._port,
                protocol=aiomqtt.ProtocolVersion.V5,
                identifier="raw-bridge",
                clean_start=True,
                properties=expiry,
            ) as client:
                paho = client._client
                paho.manual_ack_set(True)

                def settle(_: object) -> None:
                    while unconfirmed and unconfirmed[0][1].done():
                        mid, oldest = unconfirmed.popleft()
                        oldest.result()
                        paho.ack(mid, 1)
                        self.forwarded += 1

                await client.subscribe(self._filter, qos=1)
                self.ready.set()
                async for message in client.messages:
                    future = await producer.send(
                        self._topic, message.payload, key=b"cell", partition=0
                    )
                    unconfirmed.append((message.mid, future))
                    future.add_done_callback(settle)
        finally:
            await producer.stop()


def _producer(bootstrap: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        acks="all",
        linger_ms=0,
        compression_type="lz4",
        max_batch_size=256 * 1024,
    )
