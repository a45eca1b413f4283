"""A message that is larger than a real broker takes: it must not hold up all that is behind it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bus.contract import Message, Record
from bus.letters import dead_letter
from bus.mqtt import MqttLink
from bus.mqtt_carrier import TooLarge
from bus.wire import Incoming, Outgoing
from runtime.publisher import Publisher
from runtime.spool import Spool, SpooledMessage
from schemas.events import CommandAcknowledged
from schemas.topics import COMMANDS, EVENTS
from tests.brokers import need_brokers
from tests.contract.mqtt_peers import Make, carrier, options, peer
from tests.far import CLOCK, UP, Far, event
from tests.mosquitto import Mosquitto
from tests.patience import until
from tests.post import said

pytestmark = pytest.mark.broker
__all__ = ["carrier", "options", "peer"]  # the fixtures


#: Of an edge agent's messages, those before and behind the one that is too large.
FIRST, LAST = event(0), event(2)


def saying(text: str) -> Message:
    """Make an agent's second message, as long as wanted."""
    told = CommandAcknowledged(command="c", outcome="refused", reason=text)
    return Message(EVENTS.name, "default", said(told, 1))


@contextlib.asynccontextmanager
async def published(
    folder: Path, message: Message, settings: str, namespace: str = ""
) -> AsyncIterator[tuple[Publisher, Far]]:
    """Publish a message between two others, until an agent's spool is empty."""
    spool = Spool(None, [SpooledMessage(row, m) for row, m in enumerate((FIRST, message, LAST))])
    need_brokers()
    broker = Mosquitto(folder, f"allow_anonymous true\n{settings}\n")
    options = replace(broker.options, namespace=namespace)
    link, far = MqttLink.open(options, CLOCK, "n0"), Far(options)
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
        yield publisher, far
        await publisher.finish(5.0)
    finally:
        confirming.cancel()
        publisher.abandon()
        await link.client.close()
        await far.client.close()
        broker.stop(forget=True)


async def letter_of(far: Far) -> Incoming:
    """Wait for the one dead letter."""
    await until(lambda: UP + "dlq" in [one.address for one in far.heard])
    (letter,) = (one for one in far.heard if one.address == UP + "dlq")
    return letter


@pytest.mark.parametrize(("faces", "namespace"), [(1000, ""), (655, "n" * 100)])
async def test_what_the_broker_has_no_room_for_is_a_dead_letter(
    tmp_path: Path, faces: int, namespace: str
) -> None:
    """It was tried for ever, and nothing that was said after it was heard.

    So was one that has room but for the namespace, which goes before each address.
    """
    large = saying("\N{ANGRY FACE}" * faces)
    async with published(tmp_path, large, "max_packet_size 3000", namespace) as (publisher, far):
        assert (publisher.unfit, publisher.published) == (1, 2)
        letter = await letter_of(far)
    assert letter.value == (large.value or b"")[:1024]
    assert letter.properties["dlq_origin_topic"] == EVENTS.name
    assert "the broker takes 3000" in letter.properties["dlq_error"]


async def test_what_is_above_the_limit_of_messages_is_a_dead_letter_too(tmp_path: Path) -> None:
    """Mosquitto answers it by a code that none may have there: the client connected for ever."""
    large = saying("\N{ANGRY FACE}" * 1000)
    async with published(tmp_path, large, "message_size_limit 3000") as (publisher, far):
        assert (publisher.unfit, publisher.published) == (1, 2)
        letter = await letter_of(far)
    assert letter.value == (large.value or b"")[:1024]
    assert "message_size_limit" in letter.properties["dlq_error"]


async def test_the_connection_outlives_what_is_above_the_limit_of_messages(
    peer: Make, tmp_path: Path
) -> None:
    need_brokers()
    broker = Mosquitto(tmp_path, "allow_anonymous true\nmessage_size_limit 3000\n")
    try:
        hearer = await peer("x", of=broker.options).up()
        speaker = await peer(of=broker.options).up()
        said = [speaker.client.send(Outgoing("x", bytes(size))) for size in (1, 5000, 3000, 6000)]
        found = await asyncio.gather(*said, return_exceptions=True)
        assert [type(one) for one in found] == [bool, TooLarge, bool, TooLarge]
        assert f"{found[1]}".startswith("x: 5000 bytes, the broker takes fewer")
        await speaker.client.publish(Outgoing("x", b"last"))
        await until(lambda: len(hearer.heard) == 3)
        assert [len(one.value) for one in hearer.heard] == [1, 3000, 4]
        assert (speaker.client.connections, speaker.client.connected) == (1, True)
    finally:
        broker.stop(forget=True)


async def test_what_is_far_too_large_is_not_taken_from_a_broker_without_a_limit(
    peer: Make, tmp_path: Path
) -> None:
    """A device could say 256 MiB: a bridge held them thrice, and read nothing else for minutes."""
    need_brokers()
    no_limit = "message_size_limit 0\nmax_packet_size 268435455"
    broker = Mosquitto(tmp_path, f"allow_anonymous true\n{no_limit}\n")
    try:
        hearer = await peer("x", of=broker.options).up()
        speaker = await peer(of=broker.options).up()
        for size in (2**21, 600_000, 2**21, 4):
            await speaker.client.publish(Outgoing("x", bytes(size)))
        await until(lambda: len(hearer.heard) == 2)
        assert [len(one.value) for one in hearer.heard] == [600_000, 4]
        assert (hearer.client.connections, hearer.client.connected) == (1, True)
    finally:
        broker.stop(forget=True)


async def test_a_dead_letter_that_is_too_large_is_one_of_its_beginning(tmp_path: Path) -> None:
    """An agent's word on a command that it could not read was lost: it has more than the command.

    That there was one was counted all the same.
    """
    said_s = CLOCK.now_s()
    record = Record(COMMANDS.name, 7, "n0", b"z" * 2800, {"sig": "s"}, said_s)
    large = dead_letter(record, "data.job", "is none", "agent-n0")
    async with published(tmp_path, large, "max_packet_size 3000") as (publisher, far):
        assert (publisher.unfit, publisher.published) == (1, 2)
        letter = await letter_of(far)
    assert (letter.value, letter.properties) == (b"z" * 1024, large.headers)
