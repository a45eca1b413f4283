"""Kafka's addresses on the command line: what is refused, and how; no broker is needed."""

import asyncio
import socketserver
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from bus.clock import PacedClock
from bus.contract import BusError, Message, Producer
from bus.options import KafkaOptions, Tls
from console.kafka import numbered, options_of
from demo.brokers import Onlooker
from demo.leader import Leader
from demo.paced_bus import ClockPause, PacedBus
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.topics import COMMANDS, EVENTS
from tests.console.conftest import Run
from tests.memory_bus import MemoryBus

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("demo", "--mqtt"), "--mqtt: needs --bus kafka"),
        (("demo", "--bus", "rabbit"), "'rabbit' is no bus; say sqlite or kafka"),
        (("demo", "--log", "kafka:/x"), "add --bus kafka"),
        (("demo", "--bus", "kafka", "--log", "run.db"), "say kafka:/NAME or leave it out: run.db"),
        (("demo", "--bus", "kafka", "--log", "kafka:x"), "is no Kafka address"),
        (("jobs", "--log", "kafka://host:1/a_b"), "a namespace has letters, digits and - only"),
        (("replay", "mqtt://host"), "MQTT stores no log"),
        (("journal", "export", "a", "b", "c"), "c: name the log and the file"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tidegate: Run, arguments: tuple[str, ...], part: str
) -> None:
    said = tidegate.refuses(*arguments)
    assert part in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("kafka:", 'compose/brokers up; eval "$(compose/brokers env)"'),
        (f"kafka://{NOBODY}", "brokers of this machine are started by: compose/brokers up."),
    ],
)
@pytest.mark.parametrize(
    "words", [("demo", "--bus", "kafka"), ("jobs",), ("submit", "--steps", "1", "--rate", "1=1")]
)
def test_without_brokers_a_sentence_says_how_to_get_them(
    tidegate: Run, words: tuple[str, ...], address: str, hint: str
) -> None:
    said = tidegate.refuses(*words, "--log", address)
    assert hint in said
    assert said.count("\n") == 1


def test_demos_are_known_by_their_number() -> None:
    assert numbered(["", "demo-10", "demo-9", "demo-x", "demo-01", "mine"]) == [9, 10]


class _Flaky(MemoryBus):
    """Its third transaction fails."""

    transactions = 0

    async def append(self, messages, positions, producer) -> None:  # type: ignore[no-untyped-def]
        if producer is not None:
            self.transactions += 1
            if self.transactions == 3:
                raise BusError("the broker went away")
        await super().append(messages, positions, producer)


async def test_a_scheduler_goes_on_when_its_bus_is_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = PacedClock(1_000_000.0, None)
    bus = _Flaky(clock)
    leader = Leader(lambda: SchedulerService(bus, clock, ServiceConfig()), clock)
    running = asyncio.create_task(leader.run())
    await clock.run_until(1_000_200.0)
    assert bus.transactions > 4
    assert leader.engine.state.leader.epoch == 2
    assert clock.now_s() == 1_000_200.0
    leader.stop()
    await running
    assert capsys.readouterr().err == "The demo waits: the broker went away.\n"


async def test_time_stands_still_after_what_was_said() -> None:
    clock = PacedClock(0.0, None)
    bus = PacedBus(MemoryBus(clock), ClockPause(clock))
    producer: Producer = await bus.producer("p")
    loop = asyncio.get_running_loop()

    async def takes_s() -> float:
        began_s = loop.time()
        await clock.run_until(clock.now_s() + 60.0)
        return loop.time() - began_s

    assert min([await takes_s() for _ in range(20)]) < 0.005  # the machine may stutter
    await bus.publish(Message(EVENTS.name, "default", b"{}"))
    assert await takes_s() > 0.007
    async with producer.transaction() as transaction:
        transaction.send(Message(COMMANDS.name, "edge-1", b"{}"))
    assert await takes_s() > 0.024
    async with producer.transaction() as transaction:
        transaction.send(Message(EVENTS.name, "default", b"{}"))
    assert await takes_s() < 0.005


async def test_an_onlooker_waits_in_real_time_and_holds_nobody_up() -> None:
    clock = PacedClock(0.0, None)
    waiter = Onlooker(clock).waiter()
    waiting = asyncio.create_task(waiter.wait(clock.now_s() + 0.05))
    await asyncio.sleep(0)
    await clock.run_until(1000.0)
    assert not waiting.done()
    assert await waiting is False
    waiter.notify()
    assert await waiter.wait() is True


def test_a_port_of_something_else_is_told_from_nobody(tidegate: Run) -> None:
    # It hangs up at once, as an MQTT broker does with what is none of its packets. It has a
    # thread: an event loop that ends with the command may leave the last connection half accepted.
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            port = server.server_address[1]
            said = tidegate.refuses("jobs", "--log", f"kafka://127.0.0.1:{port}")
        finally:
            server.shutdown()
    assert "answers. Somebody takes connections there" in said
    assert "the port is Kafka's (MQTT has another)" in said
    nobody = tidegate.refuses("jobs", "--log", f"kafka://{NOBODY}")
    assert "Somebody takes connections" not in nobody


def test_what_an_address_does_not_say_is_in_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text(
        '[kafka]\nbootstrap = "k:9094"\nnamespace = "plant"\ncells = ["a", "b"]\n'
        'ca_file = "ca.pem"\nsasl = "SCRAM-SHA-512"\nusername = "auditors"\npassword = "pw"\n'
    )
    full = KafkaOptions(
        "k:9094", "plant", ("a", "b"), 3, Tls("ca.pem"), "SCRAM-SHA-512", "auditors", "pw"
    )
    assert options_of("kafka:", file) == full
    other = options_of("kafka://other:1/demo-2", file)
    assert other == replace(full, bootstrap="other:1", namespace="demo-2")
    with pytest.raises(BusError, match="names no host"):
        options_of("kafka:")
    for name, value in (
        ("BOOTSTRAP", "e:1"), ("CELLS", '["x", "y"]'),
        ("SASL", "PLAIN"), ("USERNAME", "u"), ("PASSWORD", "pw"),
    ):  # fmt: skip
        monkeypatch.setenv(f"TIDEGATE_KAFKA__{name}", value)
    said = options_of("kafka:/plant")
    assert (said.bootstrap, said.namespace, said.cells, said.sasl) == (
        "e:1", "plant", ("x", "y"), "PLAIN",
    )  # fmt: skip
