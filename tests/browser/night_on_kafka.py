"""A recorded night on real Kafka, and a gateway of it."""

import asyncio
from pathlib import Path

from bus.clock import SystemClock
from bus.contract import Message
from bus.kafka import KafkaBus
from bus.logfile import FileLog
from bus.options import KafkaOptions
from schemas.topics import JOURNAL
from tests.brokers import fresh_namespace
from tests.integration.test_signed_requests import make_key
from tests.process.gateway_process import Process

#: What the night's records call their cell.
CELL = "tide"


async def copied(night: Path, options: KafkaOptions) -> None:
    bus = KafkaBus.open(options, SystemClock(), CELL)
    try:
        records = list(FileLog(night).records(JOURNAL.name))
        await bus.publish(*(Message(one.topic, one.key, one.value, one.headers) for one in records))
    finally:
        await bus.close()


def gateway_of_night(night: Path, bootstrap: str, folder: Path) -> Process:
    """Copy a night into a namespace of its own, and serve it as who may sign requests."""
    options = KafkaOptions(bootstrap, fresh_namespace(), (CELL,), replication=1)
    asyncio.run(copied(night, options))
    config = folder / "tidegate.toml"
    config.write_text(
        f'[kafka]\nbootstrap = "{bootstrap}"\nnamespace = "{options.namespace}"\n'
        f'cells = ["{CELL}"]\nreplication = 1\n'
    )
    key = make_key(folder, "desk")
    return Process("kafka:", folder / "run", "--config", str(config), "--sign-key", f"desk={key}")
