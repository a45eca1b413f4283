"""What an agent does not obey, what becomes of it, and what is counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bus.contract import Message
from bus.signing import Signer, Verifier
from edge_agent.agent import EdgeAgentConfig, build_agent
from runtime.build import Options
from runtime.gate import LETTERS_PER_MINUTE
from runtime.service import AgentService
from runtime.simulated_owner import simulated
from runtime.store import AgentStore
from schemas.codec import command, encode
from schemas.commands import CommandData, LendNode, Rebirth
from schemas.events import CommandAcknowledged, NodeBorn
from schemas.topics import COMMANDS
from tests.heard import Step, Timed

START_S = 999_960.0
SIGNER = Signer("k1", Ed25519PrivateKey.from_private_bytes(bytes(32)))
STRANGER = Signer("k9", Ed25519PrivateKey.from_private_bytes(bytes([1] * 32)))
VERIFIER = Verifier.of({"k1": SIGNER.public()})


class World(Timed):
    """One edge agent that demands signatures."""

    def __init__(self, folder: Path) -> None:
        super().__init__(START_S)
        self.folder = folder

    def agent(self, **options: Any) -> AgentService:
        config = EdgeAgentConfig("e1", options=Options(**{"verifier": VERIFIER, **options}))
        make = simulated(lambda _: 0.0)
        return build_agent(config, self.bus, self.clock, self.folder / "e1.db", make)

    def bytes_of(self, id: str, data: CommandData | None = None, **over: Any) -> bytes:
        attributes: dict[str, Any] = {
            "id": id,
            "source": "/schedulers/default",
            "sequence": 0,
            "bootid": 5,
            "time_s": self.clock.now_s(),
            "subject": "e1",
        }
        return encode(command(data or Rebirth(), **{**attributes, **over}))

    async def send(self, value: bytes, headers: dict[str, str] | None = None) -> None:
        """Put bytes on the agent's way, signed by its scheduler unless other headers are given."""
        signed = SIGNER.headers(value) if headers is None else headers
        await self.bus.publish(Message(COMMANDS.name, "e1", value, signed))

    async def during(self, service: AgentService, *steps: tuple[float, Step], **_: Any) -> None:
        await super().during(service, *steps, rest_s=5.0)

    async def acks(self) -> list[tuple[str, str]]:
        return [(ack.command, ack.outcome) for ack in await self.said(CommandAcknowledged)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_signed_command_is_obeyed(world: World) -> None:
    service = world.agent()
    await world.during(service, (1.0, lambda: world.send(world.bytes_of("c1"))))
    assert await world.acks() == [("c1", "done")]
    assert not service.counters.refused
    assert service.counters.commands == 1


def _changed(world: World) -> tuple[bytes, dict[str, str]]:
    value = world.bytes_of("c1")
    return value.replace(b'"e1"', b'"e1" '), SIGNER.headers(value)


def _signed(make: Callable[[World], bytes]) -> Callable[[World], tuple[bytes, dict[str, str]]]:
    return lambda world: ((value := make(world)), SIGNER.headers(value))


@pytest.mark.parametrize(
    ("make", "kind", "field"),
    [
        (lambda w: (w.bytes_of("c1"), {}), "unsigned", "sig"),
        (lambda w: (b"{", {}), "unsigned", "sig"),
        (lambda w: (w.bytes_of("c1"), STRANGER.headers(w.bytes_of("c1"))), "unknown_key", "kid"),
        (
            lambda w: (w.bytes_of("c1"), {**STRANGER.headers(w.bytes_of("c1")), "kid": "k1"}),
            "forged",
            "sig",
        ),
        (
            lambda w: (w.bytes_of("c1"), {**SIGNER.headers(w.bytes_of("c1")), "alg": "none"}),
            "forged",
            "alg",
        ),
        (_changed, "forged", "sig"),
        (_signed(lambda w: w.bytes_of("c1", subject="e2")), "misaddressed", "subject"),
        (_signed(lambda w: w.bytes_of("c1", cell="west")), "other_cell", "cell"),
        (_signed(lambda w: w.bytes_of("no name")), "unreadable", "id"),
        (_signed(lambda w: b"{"), "unreadable", ""),
    ],
)
async def test_what_is_no_command_to_us_is_a_dead_letter_and_nothing_else(
    world: World,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[World], tuple[bytes, dict[str, str]]],
    kind: str,
    field: str,
) -> None:
    service = world.agent()
    value, headers = make(world)
    await world.during(service, (1.0, lambda: world.send(value, headers)))
    assert service.counters.refused == {kind: 1}
    assert (service.counters.commands, service.counters.dead_letters) == (0, 1)
    assert await world.acks() == []
    assert len(await world.said(NodeBorn)) == 1
    (letter,) = await world.letters()
    assert (letter.value, headers.items() <= letter.headers.items()) == (value, True)
    assert letter.headers["dlq_field"] == field
    assert f"refuses a command: {field}" in caplog.text
    assert letter.headers["dlq_consumer_group"] == "agent-e1"


async def test_without_a_verifier_unsigned_commands_are_obeyed(world: World) -> None:
    service = world.agent(verifier=None)
    await world.during(service, (1.0, lambda: world.send(world.bytes_of("c1"), {})))
    assert await world.acks() == [("c1", "done")]


async def test_a_replayed_command_gets_its_ack_again_and_does_nothing(world: World) -> None:
    service = world.agent()
    value = world.bytes_of("c1")

    async def thrice() -> None:
        for _ in range(3):
            await world.send(value)

    await world.during(service, (1.0, thrice))
    assert await world.acks() == [("c1", "done")] * 3
    assert len(await world.said(NodeBorn)) == 2
    assert service.counters.refused == {"replayed": 2}
    assert await world.letters() == []


async def test_an_expired_command_is_refused_in_an_ack(world: World) -> None:
    service = world.agent()
    value = world.bytes_of("c1", LendNode(node="e1", loan="L1"), expiry_s=START_S + 30.0)
    await world.during(service, (30.0, lambda: world.send(value)))
    (ack,) = await world.said(CommandAcknowledged)
    assert (ack.outcome, ack.reason) == ("refused", "expired")
    assert service.counters.refused == {"expired": 1}
    assert service.core.nodes["e1"].phase == "owned"


async def test_a_former_leader_is_refused_in_an_ack_that_says_what_to_do(world: World) -> None:
    service = world.agent()

    async def takeover() -> None:
        await world.send(world.bytes_of("new-1", bootid=6))
        await world.send(world.bytes_of("old-1", LendNode(node="e1", loan="L1"), bootid=5))
        await world.send(world.bytes_of("new-2", bootid=6))

    await world.during(service, (1.0, takeover))
    assert await world.acks() == [("new-1", "done"), ("old-1", "refused"), ("new-2", "done")]
    reason = (await world.said(CommandAcknowledged))[1].reason
    assert reason.startswith("leader: epoch 5 is below 6")
    assert "move the agent's state file away" in reason
    assert service.counters.refused == {"stale_leader": 1}
    assert service.core.nodes["e1"].phase == "owned"


async def test_the_highest_leader_epoch_outlives_a_restart(world: World) -> None:
    await world.during(world.agent(), (1.0, lambda: world.send(world.bytes_of("c1", bootid=6))))
    service = world.agent()
    assert service.core.leader_epoch == 6

    async def both() -> None:
        await world.send(world.bytes_of("c2", bootid=5))
        await world.send(world.bytes_of("c1", bootid=5))

    await world.during(service, (20.0, both))
    assert await world.acks() == [("c1", "done"), ("c2", "refused"), ("c1", "done")]
    assert service.counters.refused == {"stale_leader": 1, "replayed": 1}


async def test_an_agent_that_is_moved_obeys_its_new_cell_whose_leader_is_older(
    world: World,
) -> None:
    def sent(id: str, bootid: int, cell: str) -> Step:
        return lambda: world.send(world.bytes_of(id, bootid=bootid, cell=cell))

    await world.during(world.agent(cell="west"), (1.0, sent("w6", 6, "west")))
    await world.during(world.agent(cell="east"), (20.0, sent("e4", 4, "east")))
    service = world.agent(cell="west")
    await world.during(service, (40.0, sent("w5", 5, "west")))
    assert await world.acks() == [("w6", "done"), ("e4", "done"), ("w5", "refused")]
    assert service.core.leader_epoch == 6, "it is moved back, and the former leader stays one"


async def test_the_leader_epoch_of_an_earlier_release_counts_for_the_present_cell(
    world: World,
) -> None:
    store = AgentStore.open(world.folder / "e1.db")
    store.write({"leader": 6}, [], [])
    store.close()
    for second, (cell, epoch) in enumerate([("west", 6), ("east", -1), ("west", 6)]):
        service = world.agent(cell=cell)
        assert service.core.leader_epoch == epoch
        await world.during(service, (10.0 * second, world.acks))


async def test_what_was_not_signed_cannot_raise_the_leader_epoch(world: World) -> None:
    service = world.agent()
    forged = world.bytes_of("c1", bootid=2**31 - 1)

    async def forge() -> None:
        await world.send(forged, STRANGER.headers(forged))
        await world.send(world.bytes_of("c2"))

    await world.during(service, (1.0, forge))
    assert await world.acks() == [("c2", "done")]
    assert service.core.leader_epoch == 5


async def test_a_flood_of_forgeries_is_counted_and_few_are_kept(world: World) -> None:
    service = world.agent()

    async def flood() -> None:
        for number in range(200):
            await world.send(b'{"n":%d}' % number, {})
        await world.send(world.bytes_of(f"good-{world.clock.now_s():.0f}"))

    await world.during(service, (1.0, flood), (61.0, flood))
    assert service.counters.refused == {"unsigned": 400}
    assert service.counters.dead_letters == 2 * LETTERS_PER_MINUTE
    letters = await world.letters()
    numbers = [orjson.loads(letter.value or b"")["n"] for letter in letters]
    assert numbers == [*range(LETTERS_PER_MINUTE)] * 2
    assert [outcome for _, outcome in await world.acks()] == ["done", "done"]
