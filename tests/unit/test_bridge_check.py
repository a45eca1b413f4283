"""What a node may say, and as whom: every check, with what a hostile node would try."""

import pytest

from bus.bridge_check import SAID, Accepted, Refused, check, letter_of, node_of
from bus.log import check_message
from bus.wire import Incoming
from schemas.codec import encode, event
from schemas.events import (
    EVENTS,
    CommandAcknowledged,
    JobCancelled,
    JobSubmitted,
    LinkLost,
    LinkOpened,
    NodeBorn,
    NodeDied,
    WorkerStarted,
)
from schemas.log_codec import log_chunk
from schemas.logs import LogChunk
from schemas.topics import COMMANDS, EVENTS as EVENTS_TOPIC, HEADROOM_BYTES, TELEMETRY, Topic
from schemas.values import MAX_MESSAGE_BYTES, Strict
from tests.builders import load
from tests.post import measured, progressed, said

CELLS = ("default", "east")


@pytest.mark.parametrize("topic", [EVENTS_TOPIC, TELEMETRY, COMMANDS])
def test_an_agents_letter_is_beside_what_it_is_of(topic: Topic) -> None:
    """All were beside commands; who looks for an event looks at the letters of events."""
    named = {"dlq_origin_topic": topic.name}
    found = check(Incoming("tidegate/v1/n0/up/dlq", b"{", properties=named), "n0", CELLS, "default")
    assert isinstance(found, Accepted)
    assert (found.message.topic, found.letter) == (f"{topic.name}.dlq", True)


def born(**changes: object) -> NodeBorn:
    fields = {
        "node": "n0",
        "agent": "n0",
        "pool": "edge",
        "pool_kind": "edge",
        "gpu_count": 1,
        "gpu_type": "L4",
        "gpu_memory_mib": 24_000,
    }
    return NodeBorn.model_validate({**fields, **changes})


def link(data: LinkOpened | LinkLost, source: str = "/links/n0") -> bytes:
    return encode(
        event(data, source=source, sequence=data.session, bootid=0, time_s=1e6, subject=data.agent)
    )


def judge(kind: str, value: bytes, **properties: str) -> Accepted | Refused | None:
    incoming = Incoming(f"tidegate/v1/n0/up/{kind}", value, properties=properties)
    return check(incoming, node_of(incoming.address), CELLS, "default")


def piece(agent: str = "n0", cell: str = "default") -> bytes:
    chunk = LogChunk(agent=agent, reader="r", job="j", epoch=1, rank=0, offset=0, content="aGk=")
    return encode(log_chunk(chunk, sequence=4, bootid=1, time_s=1e9, cell=cell))


ACK = CommandAcknowledged(command="c", outcome="done")
WORKER = WorkerStarted(job="j", epoch=1, node="n0", gpus=[0], step=0)


@pytest.mark.parametrize(
    ("kind", "value", "topic", "key", "place"),
    [
        ("telemetry", measured(1), "tidegate.telemetry.v1", "n0", (1, 1)),
        ("telemetry", said(load(0, "edge", "n0"), 2), "tidegate.telemetry.v1", "n0", (1, 2)),
        ("telemetry", said(load(0, "edge", None), 2), "tidegate.telemetry.v1", "n0", (1, 2)),
        ("event", progressed(3, boot=2, cell="east"), "tidegate.events.v1", "east", (2, 3)),
        ("event", said(born()), "tidegate.events.v1", "default", (1, 0)),
        ("event", said(WORKER), "tidegate.events.v1", "default", (1, 0)),
        ("ack", said(ACK, 9), "tidegate.events.v1", "default", (1, 9)),
        ("log", piece(), "tidegate.logs.v1", "j", None),
        ("birth", link(LinkOpened(agent="n0", session=7)), "tidegate.events.v1", "default", None),
        ("death", link(LinkLost(agent="n0", session=7)), "tidegate.events.v1", "default", None),
    ],
)
def test_what_a_node_says_of_itself_is_accepted(
    kind: str, value: bytes, topic: str, key: str, place: tuple[int, int] | None
) -> None:
    found = judge(kind, value)
    assert isinstance(found, Accepted)
    assert (found.message.topic, found.message.key, found.place) == (topic, key, place)
    assert found.message.value is value
    assert found.cell == ("east" if key == "east" else "default")


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        # Speaking as another.
        ("event", progressed(0, "n1"), "source"),
        ("telemetry", measured(0, "n1"), "source"),
        ("ack", said(ACK, node="n1"), "source"),
        ("event", progressed(0, source="/schedulers/default"), "source"),
        ("event", progressed(0, source="/links/n0"), "source"),
        ("event", progressed(0, source="/agents/n0/"), "source"),
        ("log", piece("n1"), "source"),
        ("log", piece().replace(b'"agent":"n0"', b'"agent":"n1"'), "data.agent"),
        ("log", piece(cell="none"), "cell"),
        ("log", progressed(0), "type"),
        ("event", piece(), "type"),
        ("birth", link(LinkOpened(agent="n0", session=1), "/links/n1"), "source"),
        ("death", link(LinkLost(agent="n0", session=1), "/agents/n0"), "source"),
        # Speaking of another.
        ("telemetry", measured(0, "n1", source="/agents/n0"), "data.node"),
        ("telemetry", said(load(0, "edge", "n1")), "data.node"),
        ("event", said(born(node="n1")), "data.node"),
        ("event", said(born(agent="n1")), "data.agent"),
        ("event", said(NodeDied(node="n1")), "data.node"),
        ("event", said(WORKER.model_copy(update={"node": "n1"})), "data.node"),
        ("birth", link(LinkOpened(agent="n1", session=1)), "data.agent"),
        ("death", link(LinkLost(agent="n1", session=1)), "data.agent"),
        ("event", said(born(pool_kind="training")), "data.pool_kind"),
        # Saying what is not said there.
        ("telemetry", progressed(0), "type"),
        ("event", measured(0), "type"),
        ("event", said(ACK), "type"),
        ("ack", progressed(0), "type"),
        ("event", said(JobCancelled(job="j")), "type"),
        ("birth", link(LinkLost(agent="n0", session=1)), "type"),
        ("death", link(LinkOpened(agent="n0", session=1)), "type"),
        ("event", said(LinkLost(agent="n0", session=1)), "type"),
        # Nowhere to go, or nothing that can be read.
        ("event", progressed(0, cell="west"), "cell"),
        ("event", progressed(0).replace(b'"sequence":"0"', b'"sequence":"9999999999999999999"'),
         "sequence"),
        ("event", progressed(0).replace(b'"epoch":1', b'"epoch":-1'), "data.epoch"),
        ("event", b"", ""),
        ("telemetry", b"\x00\xff", ""),
        ("event", b"[" * 100_000, ""),
        ("event", b" " * (MAX_MESSAGE_BYTES + 1), ""),
        ("dlq", b" " * (MAX_MESSAGE_BYTES + 1), ""),
    ],
)  # fmt: skip
def test_what_is_not_its_own_to_say_is_refused(kind: str, value: bytes, field: str) -> None:
    found = judge(kind, value)
    assert isinstance(found, Refused)
    assert found.field == field
    letter = letter_of(Incoming(f"tidegate/v1/n0/up/{kind}", value), found, "bridge-b0", 1e6)
    check_message(letter)
    assert letter.topic.endswith(".dlq")
    assert (letter.key, letter.headers["dlq_field"]) == ("n0", field)
    assert letter.headers["dlq_origin_address"] == f"tidegate/v1/n0/up/{kind}"
    assert letter.headers["dlq_consumer_group"] == "bridge-b0"
    kept = value if len(value) <= MAX_MESSAGE_BYTES else value[:1024]
    assert letter.value == kept


@pytest.mark.parametrize(
    "address",
    [
        "tidegate/v1/n0/up/command",
        "tidegate/v1/n0/down/command",
        "tidegate/v1/n0/up/event/more",
        "tidegate/v1//up/event",
        "tidegate/v1/n0 /up/event",
        "tidegate/v1/_n0/up/event",
        f"tidegate/v1/{'n' * 129}/up/event",
        "tidegate/v1/n0\n/up/event",
        "other/tidegate/v1/n0/up/event",
        "",
        "\ud800\0",
    ],
)
def test_what_comes_from_no_node_is_refused(address: str) -> None:
    incoming = Incoming(address, progressed(0))
    found = check(incoming, node_of(incoming.address), CELLS, "default")
    assert isinstance(found, Refused)
    assert (found.field, found.place) == ("address", None)
    letter = letter_of(incoming, found, "bridge-b0", 1e6)
    check_message(letter)
    assert (letter.key, letter.value) == ("", progressed(0))


def test_every_event_has_its_place_and_tenants_have_none() -> None:
    placed: list[type[Strict]] = [JobSubmitted, JobCancelled]
    for kinds in SAID.values():
        placed += kinds
    assert sorted(data.TYPE for data in placed) == sorted(data.TYPE for data in EVENTS)


def test_a_cleared_birth_or_death_is_nothing() -> None:
    assert judge("birth", b"") is None
    assert judge("death", b"") is None


@pytest.mark.parametrize(
    "properties",
    [
        {f"h{number}": "x" for number in range(17)},
        {"long": "x" * 8192},
        {"zero": "a\0b"},
        {"half": "\ud800"},
        {"bell\a": ""},
    ],
)
@pytest.mark.parametrize("kind", ["event", "dlq"])
def test_headers_that_kafka_could_not_carry_are_refused(
    kind: str, properties: dict[str, str]
) -> None:
    incoming = Incoming(f"tidegate/v1/n0/up/{kind}", progressed(5), properties=properties)
    found = check(incoming, node_of(incoming.address), CELLS, "default")
    assert isinstance(found, Refused)
    assert found.field == "properties"
    letter = letter_of(incoming, found, "bridge-b0", 1e6)
    check_message(letter)
    size = sum(len(name.encode()) + len(text.encode()) for name, text in letter.headers.items())
    assert size < HEADROOM_BYTES
    assert not set(properties) & set(letter.headers)


def test_the_place_of_what_cannot_be_read_is_known_if_it_is_the_nodes_own() -> None:
    """Else an agent that is newer than the bridge would say it again for ever."""
    newer = progressed(8).replace(b"progressed.v1", b"progressed.v9")
    found = judge("event", newer)
    assert isinstance(found, Refused)
    assert (found.kind, found.place) == ("newer_version", (1, 8))
    for value in (
        newer.replace(b"/agents/n0", b"/agents/n1"),
        newer.replace(b'"bootid":1', b'"bootid":true'),
        newer.replace(b'"bootid":1', b'"bootid":2147483648'),
        newer.replace(b'"sequence":"8"', b'"sequence":"08"'),
        newer.replace(b'"sequence":"8"', b'"sequence":8'),
        newer.replace(b'"sequence":"8"', b'"sequence":"9999999999999999999"'),
        newer.replace(b'"sequence"', b'"other"'),
        b"[1]",
        b'"text"',
        b"null",
    ):
        assert value != newer
        found = judge("event", value)
        assert isinstance(found, Refused)
        assert found.place is None


def test_the_place_of_anothers_message_is_never_confirmed() -> None:
    found = judge("event", progressed(0, "n1"))
    assert isinstance(found, Refused)
    assert found.place is None
    found = judge("event", progressed(4, cell="west"))
    assert isinstance(found, Refused)
    assert found.place == (1, 4)  # its own; the dead letter holds it
