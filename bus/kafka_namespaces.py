"""Which namespaces a Kafka cluster holds: they are found, and removed, by their topics."""

import contextlib
from collections.abc import AsyncIterator

from aiokafka.admin import AIOKafkaAdminClient

from bus.contract import BusError
from bus.kafka_client import client_settings, errors_named, start, stop
from bus.options import KafkaOptions
from schemas.topics import ALL_TOPICS, JOURNAL


async def stored_topics(options: KafkaOptions) -> list[str]:
    """Give our names of the topics that the namespace has, without making any.

    Raises:
        BusError: Kafka does not answer.
    """
    async with _admin(options) as admin:
        there = set(await admin.list_topics())
    return [name for name in ALL_TOPICS if options.topic(name) in there]


async def namespaces(options: KafkaOptions) -> list[str]:
    """Give all namespaces that have a topic of journals; the default one is empty text.

    Raises:
        BusError: Kafka does not answer.
    """
    async with _admin(options) as admin:
        there = await admin.list_topics()
    return sorted(
        name.removesuffix(JOURNAL.name).removesuffix(".")
        for name in there
        if name == JOURNAL.name or name.endswith(f".{JOURNAL.name}")
    )


async def cell_count(options: KafkaOptions) -> int:
    """Give how many cells a namespace has: each has a partition of the journal.

    Raises:
        BusError: Kafka does not answer.
    """
    topic = options.topic(JOURNAL.name)
    async with _admin(options) as admin:
        found = await admin.describe_topics()
    return sum(len(one["partitions"]) for one in found if one["topic"] == topic)


async def remove_namespace(options: KafkaOptions) -> None:
    """Delete all topics of a namespace, with all they hold; never those of the default one.

    Raises:
        BusError: Kafka does not answer, or no namespace is named.
    """
    if not options.namespace:
        raise BusError("the default namespace is not removed; name another")
    async with _admin(options) as admin:
        there = set(await admin.list_topics())
        mine = [topic for name in ALL_TOPICS if (topic := options.topic(name)) in there]
        if mine:
            await admin.delete_topics(mine)


@contextlib.asynccontextmanager
async def _admin(options: KafkaOptions) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(**client_settings(options))
    await start(admin, options)
    try:
        with errors_named("list or delete topics"):
            yield admin
    finally:
        await stop(admin)
