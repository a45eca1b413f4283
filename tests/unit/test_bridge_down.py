"""The bridge's way down: commands in order, none lost, none too late, none changed."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bus.bridge import Bridge
from bus.bridge_limits import BridgeLimits
from bus.contract import Bus, BusError, Message
from bus.signing import Signer, Verifier
from bus.wire import Outgoing
from schemas.codec import cell_state, encode
from schemas.commands import Rebirth
from schemas.journal import CellState
from schemas.topics import CELLS, COMMANDS
from tests.patience import until
from tests.post import Post, ShakyBus, ordered, post, progressed, records

__all__ = ["post"]  # the fixture


def order(
    number: int,
    agent: str = "n0",
    *,
    expiry_s: float | None = None,
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
) -> Message:
    value = ordered(Rebirth(), number, agent, 1e6, expiry_s=expiry_s)
    return Message(COMMANDS.name, agent if key is None else key, value, headers or {})


def word(epoch: int, *, cell: str = "default", online: bool = True) -> Message:
    data = CellState(online=online, leader="s0", leader_epoch=epoch, at_s=1e6)
    return Message(CELLS.name, cell, encode(cell_state(data, cell=cell)))


def commands_of(post: Post, agent: str) -> list[str]:
    address = f"tidegate/v1/{agent}/down/command"
    return [message.correlation for message in post.sent if message.address == address]


async def committed(bus: Bus, cell: str = "default") -> int:
    consumer = await bus.consumer(f"bridge-{cell}", [COMMANDS.name])
    return consumer.positions[COMMANDS.name]


async def test_a_command_passes_unchanged_with_its_signature(post: Post) -> None:
    signer = Signer("k1", Ed25519PrivateKey.generate())
    plain = order(1, expiry_s=post.clock.now_s() + 90.0)
    value = b" " + (plain.value or b"")  # not as our encoder would write it
    await post.bus.publish(Message(COMMANDS.name, "n0", value, signer.headers(value)))
    async with post.bridged(down=True) as made:
        await until(lambda: made.counters.forwarded_down == 1)
    (sent,) = post.sent
    assert sent.address == "tidegate/v1/n0/down/command"
    assert (sent.value, sent.properties) == (value, signer.headers(value))
    assert Verifier.of({"k1": signer.public()}).problem(sent.value, sent.properties) is None
    assert (sent.qos, sent.retain, sent.correlation) == (1, False, "default-1-0")
    assert sent.expiry_s in (89, 90)
    assert await committed(post.bus) == 1


async def test_what_is_too_late_is_not_sent(post: Post) -> None:
    now_s = post.clock.now_s()
    await post.bus.publish(
        order(1, expiry_s=now_s - 0.001),
        order(2, expiry_s=now_s + 1e9),
        order(3),
        order(4, expiry_s=now_s + 30.2),
    )
    async with post.bridged(down=True) as made:
        await until(lambda: made.counters.forwarded_down == 3)
    assert made.counters.refused == {"expired": 1}
    assert [message.expiry_s for message in post.sent] == [10**9, None, 31]


async def test_a_bridge_whose_clock_is_ahead_drops_no_command(post: Post) -> None:
    """It dropped all that it was to carry, for as long as that lasted, and no metric said so."""
    now_s = post.clock.now_s()
    await post.bus.publish(order(1, expiry_s=now_s + 600.0), order(2, expiry_s=now_s - 1.0))
    post.clock.ahead_s = 3600.0
    async with post.bridged(down=True) as made:
        await until(lambda: made.counters.forwarded_down == 1)
    assert commands_of(post, "n0") == ["default-1-0"]
    assert made.counters.refused == {"expired": 1}
    assert post.sent[0].expiry_s in (599, 600), "the broker keeps it for as long as it is good"


async def test_what_became_too_late_while_the_bridge_was_away_is_not_sent(post: Post) -> None:
    """All of a read was old, so the newest of it told nothing: agents were sent hours of it."""
    post.clock.ahead_s = -7200.0
    old_s = post.clock.now_s() + 90.0
    await post.bus.publish(*[order(n, expiry_s=old_s) for n in range(BridgeLimits().batch_max)])
    post.clock.ahead_s = 0.0
    await post.bus.publish(word(1))
    async with post.bridged(down=True) as made:
        await until(lambda: made.counters.forwarded_down == 1)
    assert commands_of(post, "n0") == []
    assert made.counters.refused == {"expired": BridgeLimits().batch_max}


async def test_a_lost_connection_loses_no_command_and_keeps_each_agents_order(post: Post) -> None:
    post.working = 3
    await post.bus.publish(*[order(n, f"n{n % 4}") for n in range(40)])
    await post.bus.publish(order(40, "late", expiry_s=post.clock.now_s() + 5.0))
    async with post.bridged(down=True) as made:
        await until(lambda: made.counters.retries >= 2)
        assert len(post.sent) == 3
        assert made.problem == "the MQTT broker does not take commands; trying again"
        assert await committed(post.bus) == 0
        post.clock.ahead_s += 6.0  # what became too late meanwhile is not sent either
        post.working = None
        await until(lambda: made.counters.forwarded_down == 40)
        await until(lambda: made.problem == "")
    for agent in range(4):
        assert commands_of(post, f"n{agent}") == [f"default-{n}-0" for n in range(agent, 40, 4)]
    assert (commands_of(post, "late"), made.counters.refused) == ([], {"expired": 1})
    assert await committed(post.bus) == 41


async def test_agents_do_not_wait_for_each_other(post: Post) -> None:
    """All first commands are on their way at once; each agent's second follows its first."""
    on_its_way: list[str] = []
    most = 0

    class Slow:
        connected = True

        async def publish(self, message: Outgoing) -> None:
            nonlocal most
            agent = message.address
            assert agent not in on_its_way
            on_its_way.append(agent)
            most = max(most, len(on_its_way))
            await asyncio.sleep(0.01)
            on_its_way.remove(agent)
            await post.wires[0].publish(message)

        def ack(self, message: object) -> None: ...

        def hold(self, held: bool) -> None: ...

        async def close(self) -> None: ...

    post.connect(["$share/bridge/tidegate/v1/+/up/+"], lambda _: None)
    made = Bridge(name="b", wire=lambda *_: Slow(), buses={"default": post.bus}, clock=post.clock)
    await post.bus.publish(*[order(n, f"n{n % 50}") for n in range(100)])
    run = asyncio.create_task(made.run(cells=["default"]))
    await until(lambda: made.counters.forwarded_down == 100)
    made.stop()
    await run
    assert most == 50


async def test_bad_commands_are_dead_letters_and_delay_none(post: Post) -> None:
    def refuse(message: Outgoing) -> None:
        if message.correlation == "default-8-0":
            raise BusError("the broker says: Not authorized")

    post.answer = refuse
    await post.bus.publish(
        order(0),
        Message(COMMANDS.name, "n0", b"{nonsense"),
        Message(COMMANDS.name, "n0", None),
        Message(COMMANDS.name, "n0", progressed(0)),
        order(4, "n1", key="n0"),
        order(5, "a/b"),
        order(6, "+"),
        order(7, headers={f"h{n}": "x" for n in range(20)}),
        order(8),
        order(9),
        order(10, headers={"bell": "\a"}),
    )
    async with post.bridged(down=True) as made:
        await until(lambda: made.counters.forwarded_down == 2)
        await until(lambda: made.counters.dead_letters == 9)
    assert commands_of(post, "n0") == ["default-0-0", "default-9-0"]
    letters = {
        letter.headers["dlq_origin_offset"]: letter.headers["dlq_field"]
        for letter in await records(post.bus, f"{COMMANDS.name}.dlq")
    }
    assert letters == {
        "1": "", "2": "", "3": "type", "4": "subject", "5": "subject", "6": "subject",
        "7": "headers", "8": "", "10": "headers",
    }  # fmt: skip
    assert made.counters.refused == {"command": 9}
    assert await committed(post.bus) == 11


async def test_the_newest_word_of_a_cell_is_retained(post: Post) -> None:
    await post.bus.publish(word(1), word(2), word(9, cell="east"), word(3, online=False))
    await post.bus.publish(Message(CELLS.name, "default", b"nonsense"))
    async with post.bridged(down=True) as made:
        await until(lambda: len(post.sent) == 1)
        await post.bus.publish(Message(CELLS.name, "default", None))
        await until(lambda: len(post.sent) == 2)
    newest, cleared = post.sent
    assert (newest.address, newest.retain, newest.qos) == ("tidegate/v1/_state/default", True, 1)
    assert newest.value == word(3, online=False).value
    assert newest.expiry_s is None
    assert (cleared.address, cleared.retain, cleared.value) == (newest.address, True, b"")
    assert made.counters.refused == {"cell_state": 2}


async def test_each_cell_is_carried_by_itself_and_taken_over_where_it_was_left(post: Post) -> None:
    east = ShakyBus(post.clock)
    made = post.bridge({"default": post.bus, "east": east})
    await post.bus.publish(order(0), order(1))
    await east.publish(order(100, "n1"))
    first, second = made.down("default"), made.down("east")
    runs = [asyncio.create_task(down.run()) for down in (first, second)]
    await until(lambda: len(post.sent) == 3)
    first.stop()
    await runs[0]
    await post.bus.publish(order(2))
    await east.publish(order(101, "n1"))
    await until(lambda: len(post.sent) == 4)
    assert commands_of(post, "n1") == ["default-100-0", "default-101-0"]
    again = made.down("default")
    runs.append(asyncio.create_task(again.run()))
    await until(lambda: commands_of(post, "n0") == [f"default-{n}-0" for n in range(3)])
    for down in (second, again):
        down.stop()
    await asyncio.gather(*runs)


async def test_a_failing_kafka_is_asked_again(post: Post) -> None:
    class Refusing(ShakyBus):
        failures = 3

        async def consumer(
            self, group: str, topics: Sequence[str], *, keys: Sequence[str] | None = None
        ) -> Any:
            if self.failures:
                self.failures -= 1
                raise BusError("no broker answers")
            return await super().consumer(group, topics, keys=keys)

    refusing = Refusing(post.clock)
    await refusing.publish(order(0))
    async with post.bridged({"default": refusing}, down=True) as made:
        await until(lambda: made.problem != "")
        assert "cell default gives no commands: no broker answers" in made.problem
        await until(lambda: made.counters.forwarded_down == 1)
        await until(lambda: made.problem == "")
    assert made.counters.retries == 3


async def test_what_could_not_be_committed_is_sent_again(post: Post) -> None:
    await post.bus.publish(order(0))
    post.bus.down = True
    async with post.bridged(down=True) as made:
        await until(lambda: made.counters.forwarded_down >= 2)
        post.bus.down = False
        await until(lambda: made.problem == "")
    assert set(commands_of(post, "n0")) == {"default-0-0"}
    assert await committed(post.bus) == 1


async def test_stop_does_not_wait_for_a_connection_that_is_lost(post: Post) -> None:
    post.working = 1
    await post.bus.publish(order(0), order(1))
    async with post.bridged(retry_s=60.0, down=True) as made:
        await until(lambda: made.counters.retries == 1)
    assert (len(post.sent), await committed(post.bus)) == (1, 0)


async def test_cancelling_ends_it(post: Post) -> None:
    down = post.bridge().down("default")
    run = asyncio.create_task(down.run())
    await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
