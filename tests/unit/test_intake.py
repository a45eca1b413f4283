"""What comes in: taken once, reduced, or set aside as a dead letter with the field named."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from bus.contract import Message
from scheduler.core.transitions import NodeState
from schemas.commands import Rebirth
from schemas.events import CommandAcknowledged
from schemas.topics import EVENTS, TELEMETRY
from schemas.values import MAX_MESSAGE_BYTES
from tests.builders import load, node_born, progressed, submitted
from tests.desk import Desk, kinds, measured, measured_stop, open_desk


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(request.param, tmp_path) as desk:
        yield desk


def changed(message: Message, **fields: Any) -> Message:
    document = orjson.loads(message.value or b"")
    for path, value in fields.items():
        at = document
        *within, last = path.split("__")
        for part in within:
            at = at[part]
        at[last] = value
    return Message(message.topic, message.key, orjson.dumps(document))


def bad(desk: Desk) -> list[tuple[str, Message]]:
    """What must be refused, with the field that must be named."""
    good = desk.say(submitted("x"), "/tenants/t")
    value = good.value or b""
    raw = [
        ("", Message(EVENTS.name, "default", b"{")),
        ("", Message(EVENTS.name, "default", b'{"pad": "' + b"x" * 600_000 + b'"}')),
        ("", Message(EVENTS.name, "default", value.replace(b":10.0", b":NaN"))),
        ("a?", Message(EVENTS.name, "default", b'{"a\\u0000": 1, "a\\u0000": 2}')),
    ]
    return [
        *raw,
        ("data.gpus_min", changed(good, data__gpus_min=-1)),
        ("type", changed(good, type="tidegate.job.submitted.v9")),
        ("cell", changed(good, cell="other")),
        ("time", changed(good, time="2036-01-01T00:00:00Z")),
        ("data.agent", desk.say(node_born("n5"), "/agents/someone")),
        ("data.node", desk.say(measured_stop(), "/agents/some\0one")),
        ("source", changed(desk.say(measured()), source="/agents/" + "x" * 200)),
        ("source", desk.say(measured(), "/agents/some\0one")),
    ]


async def test_telemetry_makes_no_stimuli(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")))
    before = kinds(desk)
    await desk.hears(*(desk.say(measured()) for _ in range(50)))
    assert kinds(desk) == before
    assert service.intake.telemetry.folded == 50
    use = service.intake.telemetry.over(["n0"], 0.0)
    assert use is not None
    assert (use.utilisation, use.power_w) == (0.5, 100.0)


async def test_duplicates_gaps_and_late_events(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")))
    first, missing, third = (desk.say(measured()) for _ in range(3))
    await desk.hears(first, third, first, third)
    assert service.intake.counts["duplicates"] == 2
    assert service.intake.telemetry.folded == 2
    assert len(await desk.commands(Rebirth)) == 1
    await desk.hears(desk.say(measured()), wait_s=30.0)
    assert len(await desk.commands(Rebirth)) == 1, "asked once in five minutes"
    await desk.hears(missing)
    assert service.intake.counts["late"] == 1
    assert service.intake.telemetry.folded == 4
    await desk.wait(600.0)
    assert len(await desk.commands(Rebirth)) == 1, "nothing is missing any more"


async def test_gaps_are_asked_for_again_until_a_birth(desk: Desk) -> None:
    desk.start()
    await desk.bus.publish(desk.say(node_born("n0")), desk.say(measured(), sequence=9))
    for asked in (1, 2, 3):
        await desk.wait(1.0)
        assert len(await desk.commands(Rebirth)) == asked
        await desk.wait(300.0)
        await desk.bus.publish(desk.say(measured()))
    await desk.hears(desk.say(node_born("n0")))
    asked = len(await desk.commands(Rebirth))
    await desk.wait(600.0)
    await desk.hears(desk.say(measured()))
    assert len(await desk.commands(Rebirth)) == asked


async def test_a_load_that_comes_and_goes_within_one_batch(desk: Desk) -> None:
    """The last word counts, though it equals the one before the batch."""
    service = desk.start()
    born = node_born("s0", pool="infer", kind="inference", agent="i", gpus=8)
    await desk.hears(desk.say(born, "/agents/i"))
    await desk.hears(desk.say(load(2, "infer"), "/agents/i"))
    await desk.hears(
        desk.say(load(5, "infer"), "/agents/i"), desk.say(load(2, "infer"), "/agents/i")
    )
    assert service.engine.state.lenders["infer"].gpus_needed == 2.0


async def test_a_clock_that_was_ahead_once_silences_no_earlier_start(desk: Desk) -> None:
    """Else what it said would be newer than all that the other start says for an hour."""
    service = desk.start()
    born = node_born("s0", pool="infer", kind="inference", agent="i", gpus=8)
    await desk.hears(desk.say(born, "/agents/i", bootid=1))
    ahead_s = desk.clock.now_s() + 3000.0
    await desk.hears(desk.say(load(4, "infer"), "/agents/i", bootid=2, time_s=ahead_s))
    lender = service.engine.state.lenders["infer"]
    assert (lender.gpus_needed, lender.bootid) == (4.0, 2)
    await desk.hears(desk.say(load(6, "infer"), "/agents/i", bootid=1))
    assert (lender.gpus_needed, lender.bootid) == (6.0, 1)


def kept(value: bytes | None) -> bytes | None:
    """Give what a dead letter keeps of a value: the beginning, where it is too large to read."""
    return value if value is None or len(value) <= MAX_MESSAGE_BYTES else value[:1024]


async def test_bad_events_are_dead_letters_and_delay_nothing(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")))
    wrong = bad(desk)
    messages = [message for _, message in wrong]
    await desk.hears(*messages[:6], desk.say(submitted("good")), *messages[6:])
    assert "good" in service.engine.state.jobs
    dead = [
        record
        for topic in (EVENTS.name, TELEMETRY.name)
        for record in await desk.records(f"{topic}.dlq")
    ]
    assert len(dead) == len(wrong) == service.intake.counts["dead_letters"]
    fields = sorted(record.headers["dlq_field"] for record in dead)
    assert fields == sorted("source" if name == "data.node" else name for name, _ in wrong), (
        "an agent with an impossible name is refused before what it says"
    )
    assert {record.value for record in dead} == {kept(message.value) for message in messages}
    await desk.replayed(service)


async def test_a_foreign_agent_cannot_speak_for_a_node(desk: Desk) -> None:
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")), desk.say(measured_stop(), "/agents/other"))
    (dead,) = await desk.records(f"{EVENTS.name}.dlq")
    assert dead.headers["dlq_field"] == "data.node"
    assert "agent-train" in dead.headers["dlq_error"]
    assert service.intake.counts["dead_letters"] == 1


async def test_a_renamed_agent_gets_its_nodes_when_the_former_ones_lease_is_over(
    desk: Desk,
) -> None:
    """Its first word is refused; nobody else would ever ask it again."""
    service = desk.start()
    await desk.hears(desk.say(node_born("n0")))
    renamed = desk.say(node_born("n0", agent="new"), "/agents/new")
    await desk.hears(renamed, desk.say(measured(), "/agents/new"))
    (refused,) = await desk.records(f"{EVENTS.name}.dlq")
    assert refused.headers["dlq_field"] == "data.node"
    assert refused.headers["dlq_error"].startswith(
        "n0 is agent-train's, but /agents/new says that it has it: end agent-train; "
    )
    assert await desk.commands(Rebirth) == []
    settings = service.engine.settings
    await desk.wait(settings.silence_s + settings.lease_s + 60.0)
    node = service.engine.state.nodes["n0"]
    assert node.state is NodeState.DEAD
    await desk.hears(desk.say(measured(), "/agents/new"), desk.say(measured(), "/agents/new"))
    (asked,) = await desk.commands(Rebirth)
    assert asked.data.reason == "n0 is free for another agent"
    await desk.hears(desk.say(node_born("n0", agent="new"), "/agents/new"))
    assert (node.state, node.agent) == (NodeState.ALIVE, "new")
    before = len(await desk.records(f"{EVENTS.name}.dlq"))
    await desk.hears(desk.say(node_born("n0")))
    assert len(await desk.records(f"{EVENTS.name}.dlq")) == before + 1, "the former one is late"
    await desk.hears(desk.say(measured(), "/agents/new"))
    assert (node.agent, service.intake.telemetry.over(["n0"], 0.0) is not None) == ("new", True)
    await desk.replayed(service)


async def test_a_birth_that_others_overtook_is_not_believed(desk: Desk) -> None:
    service = desk.start()
    early = desk.say(node_born("n0"))
    stale = desk.say(node_born("n0", gpus=2))
    await desk.hears(early, desk.say(progressed(1)))
    await desk.hears(stale)
    assert service.engine.state.nodes["n0"].gpu_count == 4
    assert service.intake.counts["births_overtaken"] == 1


async def test_nobody_speaks_for_what_is_not_theirs(desk: Desk) -> None:
    service = desk.start()
    born = node_born("s0", pool="infer", kind="inference", agent="i", gpus=8)
    await desk.hears(desk.say(born, "/agents/i"), desk.say(node_born("n0")))
    await desk.hears(
        desk.say(load(3, "infer"), "/agents/someone"),
        desk.say(measured("n0"), "/agents/someone"),
        desk.say(measured("made-up"), "/agents/someone"),
        desk.say(measured("n0"), sequence=10**18),
        desk.say(measured("n0"), bootid=2**31 - 1),
    )
    dead = [record.headers["dlq_field"] for record in await desk.records(f"{TELEMETRY.name}.dlq")]
    assert sorted(dead) == sorted(["data.pool", "data.node"])
    assert service.engine.state.lenders == {}
    assert service.intake.telemetry.over(["made-up"], 0.0) is None
    before = service.intake.telemetry.folded
    await desk.hears(desk.say(measured("n0"), sequence=1))
    assert service.intake.telemetry.folded == before + 1, "the honest agent is heard all the same"


async def test_what_comes_by_the_other_topic_is_not_missing(desk: Desk) -> None:
    """Events are read first, whatever telemetry was said before them."""
    service, ack = desk.start(), CommandAcknowledged(command="of-another-life", outcome="done")
    await desk.hears(desk.say(node_born("n0")))
    for _ in range(3):
        await desk.hears(desk.say(measured()), desk.say(ack))
    behind = [desk.say(measured()) for _ in range(3)]
    await desk.hears(desk.say(ack), wait_s=600.0)
    assert (len(await desk.commands(Rebirth)), service.intake.counts["gaps"]) == (0, 0)
    await desk.crash()
    service = desk.start()
    await desk.hears(desk.say(ack), desk.say(measured()), desk.say(ack))
    await desk.hears(*behind)
    assert (len(await desk.commands(Rebirth)), service.intake.counts["gaps"]) == (0, 0)
    desk.say(ack)  # is lost
    await desk.hears(desk.say(measured()))
    assert (len(await desk.commands(Rebirth)), service.intake.counts["gaps"]) == (1, 1)
