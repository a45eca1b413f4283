"""The link of an edge agent against a real broker: what it says. The test plays the bridge."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus import mqtt_outbox
from bus.contract import BusError, Message, Record
from bus.letters import dead_letter
from bus.mqtt import MqttLink
from bus.mqtt_client import Refused
from bus.options import MqttOptions
from bus.wire import LinkDown
from schemas.codec import Rejected, decode_event, encode
from schemas.events import CommandAcknowledged, LinkLost, LinkOpened
from schemas.log_codec import log_chunk
from schemas.logs import LogChunk
from schemas.topics import COMMANDS, EVENTS, LOGS, TELEMETRY
from tests.brokers import need_brokers
from tests.far import CLOCK, UP, Far, event, far, link, options, sequence
from tests.mosquitto import Mosquitto
from tests.patience import PATIENCE_S, until
from tests.post import measured, progressed, said

__all__ = ["far", "link", "options"]  # the fixtures
pytestmark = pytest.mark.broker
ROOT = Path(__file__).resolve().parents[2]


# --- what the agent says ---


async def test_a_window_of_messages_is_on_its_way_in_order(link: MqttLink, far: Far) -> None:
    one = asyncio.create_task(link.publish(*[event(n) for n in range(9)]))
    other = asyncio.create_task(link.publish(event(9)))
    await until(lambda: len(far.heard) == 5)
    await asyncio.sleep(0.1)
    assert far.sequences == [0, 1, 2, 3, 4]
    far.confirm((1, 1), (3, 4))  # by another bridge than 0 and 2
    far.confirm((0, 0))
    await until(lambda: len(far.heard) == 7)
    await asyncio.sleep(0.1)
    assert far.sequences == [0, 1, 2, 3, 4, 5, 6]  # no further than a window after 2
    far.confirm((0, 6))
    await until(lambda: len(far.heard) == 10)
    await asyncio.sleep(0.05)
    assert not other.done()
    far.confirm((7, 9))
    await asyncio.gather(one, other)
    assert link.outbox.unconfirmed == 0


async def test_each_kind_has_its_address(link: MqttLink, far: Far) -> None:
    far.answers = True
    ack = said(CommandAcknowledged(command="c", outcome="done"), 1)
    await link.publish(
        Message(TELEMETRY.name, "n0", measured(0)),
        Message(EVENTS.name, "default", ack),
        Message(EVENTS.name, "default", progressed(2), {"trace": "t"}),
    )
    far.answers = False
    record = Record(COMMANDS.name, 7, "n0", b"garbage", {"kid": "k"}, 0.0)
    await link.publish(dead_letter(record, "", "is no JSON", "agent-n0"))  # nobody confirms
    chunk = LogChunk(agent="n0", reader="r", job="j", epoch=1, rank=0, offset=0)
    piece = encode(log_chunk(chunk, sequence=0, bootid=1, time_s=1e9))
    await link.publish(Message(LOGS.name, "j", piece))  # nor this
    await until(lambda: len(far.heard) == 5)
    kinds = [incoming.address.removeprefix(UP) for incoming in far.heard]
    assert kinds == ["telemetry", "ack", "event", "dlq", "log"]
    assert far.heard[4].value == piece
    assert dict(far.heard[2].properties) == {"trace": "t"}
    letter = far.heard[3]
    assert letter.value == b"garbage"
    assert letter.properties["kid"] == "k"
    assert letter.properties["dlq_origin_offset"] == "7"


async def test_a_lost_horizon_costs_a_repetition(
    link: MqttLink, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_outbox, "RESEND_S", 0.3)
    call = asyncio.create_task(link.publish(event(0), event(1)))
    await until(lambda: len(far.heard) >= 4)
    assert far.sequences[:4] == [0, 1, 0, 1]
    assert far.heard[0].value == far.heard[2].value
    far.confirm((0, 1))
    await call


async def test_what_is_unconfirmed_is_said_again_on_a_new_connection(
    link: MqttLink, far: Far
) -> None:
    call = asyncio.create_task(link.publish(*[event(n) for n in range(8)]))
    await until(lambda: len(far.heard) == 5)
    far.confirm((0, 0))
    await until(lambda: len(far.heard) == 6)
    link.client.renew()
    await until(lambda: len(far.heard) == 11)
    assert far.sequences[6:] == [1, 2, 3, 4, 5]
    far.confirm((0, 7))
    await until(lambda: len(far.heard) == 13)
    far.confirm((6, 7))
    await call
    sessions = [sequence(word) for word in far.words]
    assert len(sessions) == 2
    assert sessions == sorted(set(sessions))


async def test_an_aborted_batch_is_not_said_again(link: MqttLink, far: Far) -> None:
    started = asyncio.create_task(link.publish(*[event(n) for n in range(8)]))
    await until(lambda: len(far.heard) == 5)
    started.cancel()
    with pytest.raises(asyncio.CancelledError):
        await started
    far.answers = True
    await link.publish(event(8))
    link.client.renew()
    await until(lambda: link.client.reconnects == 1)
    await link.publish(event(0))
    assert far.sequences == [0, 1, 2, 3, 4, 8, 0]


async def test_a_number_that_is_on_its_way_is_refused(link: MqttLink, far: Far) -> None:
    first = asyncio.create_task(link.publish(event(0)))
    await until(lambda: far.heard)
    with pytest.raises(BusError, match="boot 1 sequence 0 is on its way already"):
        await link.publish(event(0))
    far.confirm((0, 0))
    await first


async def test_forged_horizons_confirm_nothing(link: MqttLink, far: Far) -> None:
    call = asyncio.create_task(link.publish(event(3)))
    await until(lambda: far.heard)
    far.say("horizon", b"\xff garbage", qos=0)
    far.say("horizon", progressed(3), qos=0)
    far.confirm((3, 3), agent="another")
    far.confirm((3, 3), boot=2)
    far.confirm((4, 2**63 - 1), (0, 2))
    await until(lambda: link.horizons_ignored == 3)
    await asyncio.sleep(0.05)
    assert not call.done()
    far.confirm((0, 2**63 - 1))  # as much as there is: costs no time
    await call


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message(EVENTS.name, "", b"{"), "an edge agent publishes CloudEvents"),
        (Message(EVENTS.name, "", b"[1]"), "an edge agent publishes CloudEvents"),
        (Message(EVENTS.name, "", progressed(0, "n1")), "/agents/n1.* but /agents/n0 speaks here"),
        (Message(EVENTS.name, "", bytes(600_000)), "600000 bytes, the limit is"),
        (Message(COMMANDS.name, "n0", progressed(0)), "does not publish to tidegate.commands.v1"),
        (Message(EVENTS.name, "", progressed(0), {"x": "\n"}), "MQTT takes printable text only"),
    ],
)
async def test_what_no_bridge_would_confirm_is_refused(
    link: MqttLink, message: Message, words: str
) -> None:
    with pytest.raises(BusError, match=words):
        await link.publish(event(0), message)
    assert link.outbox.unconfirmed == 0


async def test_a_name_that_is_no_part_of_an_address_is_refused(options: MqttOptions) -> None:
    with pytest.raises(BusError, match=r"agent 'a/b': a name has letters"):
        MqttLink.open(options, CLOCK, "a/b")


# --- without a broker, or refused by it ---


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    need_brokers()
    (tmp_path / "acl").write_text("topic read #\ntopic write #\n")
    found = Mosquitto(tmp_path, f"allow_anonymous true\nacl_file {tmp_path}/acl\n")
    yield found
    found.stop(forget=True)


async def test_a_long_loss_is_the_publishers_to_know(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, far = MqttLink.open(broker.options, CLOCK, "n0"), Far(broker.options)
    await until(lambda: far.client.connected)
    call = asyncio.create_task(link.publish(event(0), event(1)))
    await until(lambda: len(far.heard) == 2)
    monkeypatch.setattr(mqtt_outbox, "DOWN_S", 1.0)
    broker.stop(forget=True)
    with pytest.raises(LinkDown, match=r"no link for 1 s: .*refused"):
        await call
    broker.start()
    await until(lambda: link.connected and far.client.connected)
    far.heard.clear()
    far.answers = True
    await link.publish(event(1))
    assert far.sequences == [1]
    await link.close()
    await far.client.close()


async def test_a_short_loss_is_nobodys_concern(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_outbox, "RESEND_S", 0.5)
    link, far = MqttLink.open(broker.options, CLOCK, "n0"), Far(broker.options)
    await until(lambda: far.client.connected)
    consumer = await link.consumer("g", [COMMANDS.name])
    call = asyncio.create_task(link.publish(event(0)))
    await until(lambda: far.heard)
    broker.stop(forget=True)  # what it held and all sessions are gone
    broker.start()
    await until(lambda: link.client.reconnects == far.client.reconnects == 1)
    far.answers = True
    await call
    far.say("command", b"{}")
    assert [record.value for record in await consumer.poll(timeout_s=PATIENCE_S)] == [b"{}"]
    await link.close()
    await far.client.close()


async def test_what_came_before_the_first_bridge_is_soon_said_again(
    options: MqttOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_outbox, "RESEND_S", 3600.0)  # of what a bridge may still hold
    link = MqttLink.open(options, CLOCK, "n0")
    call = asyncio.create_task(link.publish(event(0)))
    await until(lambda: link.client.published > 0)
    far = Far(options)
    far.answers = True
    async with asyncio.timeout(PATIENCE_S):
        await call
    await link.close()
    await far.client.close()


async def test_what_the_broker_refuses_fails(broker: Mosquitto, tmp_path: Path) -> None:
    (tmp_path / "acl").write_text(f"topic read #\ntopic write {UP}birth\n")
    broker.signal(signal.SIGHUP)
    link = MqttLink.open(broker.options, CLOCK, "n0")
    with pytest.raises(Refused, match=r"n0/up/event: the broker says: Not authorized"):
        await link.publish(event(0), event(1))
    assert link.outbox.unconfirmed == 0
    assert link.client.reconnects == 0
    await link.close()


VICTIM = """
import asyncio, sys
from bus import mqtt_connection
from bus.clock import SystemClock
from bus.mqtt import MqttLink
from bus.options import mqtt_options

mqtt_connection.WILL_DELAY_S = 1

async def main():
    link = MqttLink.open(mqtt_options(sys.argv[1]), SystemClock(), "n0")
    await link.consumer("g", ["tidegate.commands.v1"])
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_birth_and_will_carry_the_same_session(far: Far, options: MqttOptions) -> None:
    url = f"mqtt://{options.host}:{options.port}/{options.namespace}"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", VICTIM, url, cwd=ROOT)
    try:
        await until(lambda: far.words)
    finally:
        process.kill()
        await process.wait()
    await until(lambda: len(far.words) == 2)
    birth, death = (decode_event(word.value) for word in far.words)
    assert not isinstance(birth, Rejected)
    assert not isinstance(death, Rejected)
    assert isinstance(birth.data, LinkOpened)
    assert isinstance(death.data, LinkLost)
    assert birth.data.session == death.data.session
    assert (death.source, death.bootid, int(death.sequence)) == (
        "/links/n0", 0, death.data.session,
    )  # fmt: skip
    assert [word.address for word in far.words] == [UP + "birth", UP + "death"]
