"""Two of one name: the broker lets in who comes last, and the other says what it may be."""

import asyncio

import pytest

from bus import mqtt_client
from bus.clock import SystemClock
from bus.mqtt_client import MqttClient
from bus.options import MqttOptions
from tests.integration.processes import Fleet, until as until_services
from tests.patience import until

pytestmark = pytest.mark.broker


def client(options: MqttOptions, name: str) -> MqttClient:
    made = MqttClient(options, name, subscriptions=(), hear=lambda _: None, clock=SystemClock())
    made.start()
    return made


async def test_a_broker_that_says_so_is_believed_at_once() -> None:
    """Mosquitto 2.0.11 says nothing, so here the broker is a few bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"\x20\x03\x00\x00\x00")  # accepted
        await asyncio.sleep(0.1)
        writer.write(b"\xe0\x02\x8e\x00")  # session taken over
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        made = client(MqttOptions("127.0.0.1", port), "twin")
        sentence = "another client connected under the name twin; give each its own"
        await until(lambda: made.problem == sentence)
        await asyncio.sleep(1.0)  # what only broke would come back at once
        assert (made.connections, made.problem) == (1, sentence)
        await made.close()


async def test_only_breaks_in_a_row_are_suspect_and_each_is_said_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mqtt_client, "_PAUSE_S", 0.01)
    monkeypatch.setattr(mqtt_client, "_PAUSE_MAX_S", 0.02)
    accepts, refuses, silent = b"\x20\x03\x00\x00\x00", b"\x20\x03\x00\x87\x00", b""
    answers = [accepts, accepts, refuses, accepts, accepts, silent, *[accepts] * 5]
    problems: list[str] = []  # after each

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        problems.append(made.problem)  # of the one before
        await reader.read(1000)
        if len(problems) <= len(answers):
            writer.write(answers[len(problems) - 1])
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        made = client(MqttOptions("127.0.0.1", server.sockets[0].getsockname()[1]), "twin")
        await until(lambda: len(problems) > len(answers))
        await made.close()
    suspects = ["under the name twin" in problem for problem in problems[1 : len(answers) + 1]]
    assert suspects == [False] * 8 + [True] * 3
    assert len({*problems[9 : len(answers) + 1]}) == 1


@pytest.mark.slow
async def test_of_two_bridges_with_one_name_one_says_so(broker_fleet: Fleet) -> None:
    one, other = broker_fleet.start("bridge"), broker_fleet.start("bridge")
    await until_services(
        lambda: any(
            "under the name" in reason
            for service in (one, other)
            for reason in service.readiness()["reasons"]
        ),
        "a reason that names the cause",
    )
    assert [one.stop(), other.stop()] == [0, 0]
