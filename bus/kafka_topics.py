"""Making Tidegate's topics on a Kafka cluster, from the one table of them."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    NoError,
    TopicAlreadyExistsError,
    for_code,
)

from bus.clock import Clock, SystemClock
from bus.contract import BusError
from bus.kafka_client import client_settings, errors_named, start, stop
from bus.options import REPLICATION_VARIABLE, KafkaOptions
from schemas.topics import Topic

#: Clocks differ this much; a clock that is further off is simulated time.
_REAL_WITHIN_S = 3600.0
_FOR_EVER = str(2**63 - 1)


def topic_settings(topic: Topic, replication: int, *, simulated: bool) -> dict[str, str]:
    """Give a topic's settings.

    A broker compares the time that a record bears, which is the bus's clock, with its own. So
    under simulated time no retention would be honest: records from last year would be deleted
    within minutes. There nothing is deleted by time; remove the namespace's topics afterwards.

    What is deleted by time bears the broker's: a record from far ahead would keep all that is in
    its segment until then, and whoever may write a topic could send one.
    """
    kept_s = None if simulated else topic.retention_s
    return {
        "cleanup.policy": "compact" if topic.compacted else "delete",
        "retention.ms": "-1" if kept_s is None else str(int(kept_s * 1000)),
        "retention.bytes": "-1",
        # With three copies, what is confirmed is on two; the default would leave it on one.
        "min.insync.replicas": "2" if replication >= 3 else "1",
        "max.message.bytes": str(topic.record_max_bytes),
        "message.timestamp.type": "CreateTime" if kept_s is None else "LogAppendTime",
        # Kafka refuses records from more than an hour ahead, which simulated time may be.
        "message.timestamp.after.max.ms": _FOR_EVER,
    }


@dataclass(frozen=True, slots=True)
class Unfit:
    """A setting of a topic that is there with which it does not keep what it should."""

    topic: str  #: As Kafka names it.
    setting: str
    value: str
    wanted: str

    @property
    def loses(self) -> bool:
        """Whether records are lost by it, or refused: not only less safe."""
        return self.setting not in ("min.insync.replicas", "message.timestamp.type")


async def unfit_settings(options: KafkaOptions, table: Mapping[str, Topic]) -> list[Unfit] | None:
    """Give the settings of topics that are there, made by hand say, which lose what is in them.

    Topics that keep more than they need are good. None: this user may not see settings.

    Raises:
        BusError: the broker does not answer.
    """
    admin = AIOKafkaAdminClient(**client_settings(options))
    await start(admin, options)
    try:
        with errors_named("read the settings of the topics"):
            copies = {
                one["topic"]: min(len(part["replicas"]) for part in one["partitions"])
                for one in await admin.describe_topics()
                if one["partitions"]
            }
            there = {options.topic(name): topic for name, topic in table.items()}
            asked = [ConfigResource(ConfigResourceType.TOPIC, n) for n in there if n in copies]
            answers = await admin.describe_configs(asked) if asked else []
    finally:
        await stop(admin)
    found: list[Unfit] = []
    for code, _, _, name, entries in (one for answer in answers for one in answer.resources):
        if code:
            return None  # it is the same right for all of them
        wanted = topic_settings(there[name], copies[name], simulated=False)
        # What a broker that only speaks like Kafka does not tell is taken to be good.
        has = {**wanted, **{entry[0]: str(entry[1]) for entry in entries}}
        found += [Unfit(name, key, has[key], wanted[key]) for key in _unfit(has, wanted)]
    return found


def _unfit(has: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    if has["cleanup.policy"] != wanted["cleanup.policy"]:
        yield "cleanup.policy"
    ends = False
    if "delete" in has["cleanup.policy"]:  # else nothing is deleted by age or size
        ends = has["retention.ms"] != "-1"
        for key in ("retention.ms", "retention.bytes"):
            if has[key] != "-1" and (wanted[key] == "-1" or int(has[key]) < int(wanted[key])):
                yield key
    for key in ("max.message.bytes", "min.insync.replicas"):
        if int(has[key]) < int(wanted[key]):
            yield key
    # Where nothing is deleted by time, the time that a record bears must be its writer's.
    kind = "message.timestamp.type"
    if has[kind] != wanted[kind] and (ends or wanted[kind] == "CreateTime"):
        yield kind


async def make_topics(options: KafkaOptions, clock: Clock, table: Mapping[str, Topic]) -> None:
    """Make what is missing: topics, and partitions of cells that were added.

    Several processes may do so at once. Settings of topics that exist are left alone.

    Raises:
        BusError: the broker does not answer, or refuses.
    """
    simulated = abs(clock.now_s() - SystemClock().now_s()) > _REAL_WITHIN_S
    admin = AIOKafkaAdminClient(**client_settings(options))
    await start(admin, options)
    try:
        with errors_named("make the topics"):
            found = await _partitions(admin)
            missing = [
                NewTopic(
                    options.topic(topic.name),
                    len(options.cells),
                    options.replication,
                    topic_configs=topic_settings(topic, options.replication, simulated=simulated),
                )
                for topic in table.values()
                if options.topic(topic.name) not in found
            ]
            if missing:
                _check(await admin.create_topics(missing))
            for name in map(options.topic, table):
                if found.get(name, len(options.cells)) < len(options.cells):
                    # Another process may have been faster.
                    with contextlib.suppress(InvalidPartitionsError):
                        await admin.create_partitions({name: NewPartitions(len(options.cells))})
    finally:
        await stop(admin)


async def _partitions(admin: AIOKafkaAdminClient) -> dict[str, int]:
    # All topics: to ask for one by name would make it, on a broker that makes topics by itself.
    return {one["topic"]: len(one["partitions"]) for one in await admin.describe_topics()}


def _check(answer: Any) -> None:
    for name, code, *rest in answer.topic_errors:
        error = for_code(code)
        # Another process may have been faster.
        if error not in (NoError, TopicAlreadyExistsError):
            reason = next((text for text in rest if text), error.__name__)
            few = (
                "; a cluster of fewer than three brokers must be asked for: kafka.replication = 1, "
                f"or {REPLICATION_VARIABLE}=1"
            )
            hint = few if error is InvalidReplicationFactorError else ""
            raise BusError(f"Kafka refuses to make topic {name}: {reason}{hint}")
