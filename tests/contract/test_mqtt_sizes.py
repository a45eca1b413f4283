"""A message that is larger than a real broker takes: it must not hold up all that is behind it."""

import asyncio
from pathlib import Path

import pytest

from bus.contract import Message
from bus.mqtt import MqttLink
from runtime.publisher import Publisher
from runtime.spool import Spool, SpooledMessage
from schemas.events import CommandAcknowledged
from schemas.topics import EVENTS
from tests.brokers import need_brokers
from tests.far import CLOCK, UP, Far, event
from tests.mosquitto import Mosquitto
from tests.patience import until
from tests.post import said

pytestmark = pytest.mark.broker


async def test_what_the_broker_has_no_room_for_is_a_dead_letter(tmp_path: Path) -> None:
    """It was tried for ever, and nothing that was said after it was heard."""
    need_brokers()
    told = CommandAcknowledged(command="c", outcome="refused", reason="\N{ANGRY FACE}" * 1000)
    large = Message(EVENTS.name, "default", said(told, 1))
    assert len(large.value or b"") > 3000
    spool = Spool(
        None, [SpooledMessage(row, m) for row, m in enumerate((event(0), large, event(2)))]
    )
    broker = Mosquitto(tmp_path, "allow_anonymous true\nmax_packet_size 3000\n")
    link, far = MqttLink.open(broker.options, CLOCK, "n0"), Far(broker.options)
    await until(lambda: far.client.connected)
    publisher = Publisher(spool, link, CLOCK, retry_s=0.05)
    publisher.begin("n0")

    async def confirm() -> None:
        while True:
            far.confirm((0, 2))
            await asyncio.sleep(0.05)

    confirming = asyncio.create_task(confirm())
    try:
        await until(lambda: not len(spool))
        assert (publisher.unfit, publisher.published) == (1, 2)
        await until(lambda: UP + "dlq" in [one.address for one in far.heard])
        (letter,) = (one for one in far.heard if one.address == UP + "dlq")
        assert letter.value == (large.value or b"")[:1024]
        assert letter.properties["dlq_origin_topic"] == EVENTS.name
        assert "the broker takes 3000" in letter.properties["dlq_error"]
        await publisher.finish(5.0)
    finally:
        confirming.cancel()
        publisher.abandon()
        await link.client.close()
        await far.client.close()
        broker.stop(forget=True)
