"""Who may join which pool: as the operator listed it, or as they come where nothing is listed."""

import tomllib
from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from bus.contract import BusError, Message
from scheduler.core.facts import RequestRefused
from scheduler.node_admission import PoolRule
from schemas.codec import encode, request
from schemas.commands import Rebirth, StartGang, StopGang
from schemas.events import CommandAcknowledged, GangHeld, NodeBorn, WorkerStarted
from schemas.requests import AcceptNode, RefuseNode, Request, VerbData
from schemas.topics import EVENTS, REQUESTS
from services.config import Config
from tests.builders import node_born, submitted
from tests.desk import Desk

RULES = (
    PoolRule("train", "training", 8, agents=("agent-train",)),
    PoolRule("edge", "edge", 2, 0.5, ("edge-*",)),
)


def edge(name: str, speed_factor: float = 0.5, gpus: int = 2, pool: str = "edge") -> NodeBorn:
    born = node_born(name, agent=name, pool=pool, kind="edge", gpus=gpus)
    return born.model_copy(update={"speed_factor": speed_factor})


@pytest.mark.parametrize(
    ("born", "field"),
    [
        (edge("a-evil", 100.0, 64, pool="train"), "data.agent"),
        (edge("edge-1", 100.0), "data.speed_factor"),
        (edge("edge-1", gpus=4), "data.gpu_count"),
        (edge("edge-1", pool="mine"), "data.pool"),
        (edge("a-evil"), "data.agent"),
        (node_born("x", agent="edge-1", pool="edge", kind="training"), "data.pool_kind"),
    ],
)
async def test_who_is_not_listed_does_not_join(desk: Desk, born: NodeBorn, field: str) -> None:
    service = desk.start(pools=RULES)
    await desk.hears(
        desk.say(born, f"/agents/{born.agent}"),
        desk.say(node_born("n0", gpus=8)),
        desk.say(edge("edge-7"), "/agents/edge-7"),
    )
    (letter,) = await desk.records(f"{EVENTS.name}.dlq")
    assert letter.headers["dlq_field"] == field
    assert "[[scheduler.pool]]" in letter.headers["dlq_error"]
    state = service.engine.state
    assert {name: pool.nodes for name, pool in state.pools.items()} == {
        "train": ["n0"],
        "edge": ["edge-7"],
    }
    await desk.replayed(service)


ACCEPT = AcceptNode(
    agent="a-new", node="a-new", pool="edge", pool_kind="edge", gpu_count=2, speed_factor=0.4
)


def ask(desk: Desk, name: str, args: VerbData) -> Message:
    now_s = desk.clock.now_s()
    said = Request(
        id=name, args=args, subject="ann", role="operator", asked_s=now_s, expires_s=now_s + 60.0
    )
    return Message(REQUESTS.name, "default", encode(request(said, source="/gateways/g")))


async def letters(desk: Desk) -> list[Mapping[str, str]]:
    return [letter.headers for letter in await desk.records(f"{EVENTS.name}.dlq")]


async def test_what_is_not_listed_joins_once_it_is_accepted_and_until_it_is_refused(
    desk: Desk,
) -> None:
    service = desk.start(pools=RULES)
    born = edge("a-new", 0.4)
    await desk.hears(desk.say(born, "/agents/a-new"))
    (told,) = await letters(desk)
    assert told["dlq_error"].endswith(
        "tidegate node accept a-new --pool edge --kind edge --gpus 2 --speed 0.4"
    )
    assert service.engine.state.nodes == {}
    await desk.hears(ask(desk, "r1", ACCEPT))
    (order,) = await desk.commands(Rebirth)
    assert order.subject == "a-new", "it is asked who it is: nothing that it said was taken"
    await desk.hears(desk.say(born, "/agents/a-new"))
    assert service.engine.state.nodes["a-new"].gpu_count == 2
    await service.snapshot()
    await desk.crash()
    service = desk.start(pools=RULES)
    await desk.hears(desk.say(born, "/agents/a-new"))
    assert len(await letters(desk)) == 1, "what was accepted outlives the scheduler"
    assert service.engine.state.standing.accepted["a-new"].by == "ann"
    await desk.hears(ask(desk, "r2", RefuseNode(node="a-new")))
    await desk.hears(desk.say(born, "/agents/a-new"))
    assert len(await letters(desk)) == 2
    assert service.engine.state.standing.accepted == {}
    await desk.replayed(service)


@pytest.mark.parametrize(
    ("born", "source", "field", "says"),
    [
        (edge("a-new", 0.4, gpus=64), "a-new", "data.gpu_count", "at most 2"),
        (edge("a-new", 100.0), "a-new", "data.speed_factor", "with 0.4"),
        (edge("a-new", 0.4, pool="train"), "a-new", "data.pool", "in edge"),
        (
            node_born("a-new", agent="a-new", pool="edge", kind="training"),
            "a-new",
            "data.pool_kind",
            "as edge",
        ),
        (
            edge("a-new", 0.4).model_copy(update={"agent": "a-evil"}),
            "a-evil",
            "data.agent",
            "of agent a-new",
        ),
        # Its other nodes are not what was accepted.
        (
            edge("a-other", 0.4).model_copy(update={"agent": "a-new"}),
            "a-new",
            "data.agent",
            "is not among the agents",
        ),
    ],
)
async def test_what_was_accepted_cannot_become_something_else(
    desk: Desk, born: NodeBorn, source: str, field: str, says: str
) -> None:
    """A device that was accepted and is broken into is still no more than was accepted."""
    service = desk.start(pools=RULES)
    await desk.hears(ask(desk, "r1", ACCEPT))
    await desk.hears(desk.say(born, f"/agents/{source}"))
    (told,) = await letters(desk)
    assert told["dlq_field"] == field
    assert says in told["dlq_error"]
    assert service.engine.state.nodes == {}


async def test_any_node_of_an_agent_is_accepted_if_that_is_said(desk: Desk) -> None:
    service = desk.start(pools=RULES)
    cluster = AcceptNode(agent="c-2", pool="train-2", pool_kind="training", gpu_count=8)
    await desk.hears(ask(desk, "r1", cluster))
    nodes = [node_born(f"c{n}", agent="c-2", pool="train-2", gpus=n) for n in (4, 8, 16)]
    await desk.hears(*(desk.say(born, "/agents/c-2") for born in nodes))
    assert sorted(service.engine.state.nodes) == ["c4", "c8"]
    (told,) = await letters(desk)
    assert "tidegate node accept c16 --agent c-2 --pool train-2" in told["dlq_error"]


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (ACCEPT.model_copy(update={"node": "n0"}), "args.agent"),
        (ACCEPT.model_copy(update={"pool": "train"}), "args.pool_kind"),
        (RefuseNode(node="a-new"), "args.node"),
    ],
)
async def test_what_cannot_be_accepted_is_refused(desk: Desk, args: VerbData, field: str) -> None:
    service = desk.start(pools=RULES)
    await desk.hears(desk.say(node_born("n0", gpus=8)))
    await desk.hears(ask(desk, "r1", args))
    facts = [fact for _, decision in desk.seen for fact in decision.facts]
    assert [fact.field for fact in facts if isinstance(fact, RequestRefused)] == [field]
    assert service.engine.state.standing.accepted == {}


async def test_a_node_that_joined_before_the_list_was_changed_stays_with_what_runs_there(
    desk: Desk,
) -> None:
    fast = PoolRule("fast", "training", 8, agents=("agent-train",))
    service = desk.start(pools=(*RULES, fast))
    gpus = [0, 1, 2, 3]
    born = node_born("n1", agent="agent-train", pool="fast")
    await desk.hears(desk.say(born), desk.say(submitted(gpus_min=4, gpus_max=4)), wait_s=30.0)
    order, *_ = await desk.commands(StartGang)
    epoch = order.data.epoch
    begun = WorkerStarted(job="j0", epoch=epoch, node="n1", gpus=gpus, step=0)
    taken = CommandAcknowledged(command=order.id, outcome="done")
    await desk.hears(desk.say(taken), desk.say(begun), desk.say(node_born("n0")))
    await desk.crash()
    service = desk.start(pools=RULES)
    desk.sequence.clear()
    # Its machine has more and faster GPUs now.
    held = [GangHeld(job="j0", epoch=epoch, gpus=gpus, step=5)]
    anew = {"gpu_count": 8, "speed_factor": 2.0, "held": held}
    births = [node_born("n0"), born.model_copy(update=anew)]
    await desk.hears(*(desk.say(one, bootid=1) for one in births))
    accept = AcceptNode(agent="agent-train", node="n1", pool="x", pool_kind="training", gpu_count=8)
    await desk.hears(ask(desk, "r1", accept))
    (asked,) = await desk.commands(Rebirth)
    answered = CommandAcknowledged(command=asked.id, outcome="done")
    await desk.hears(desk.say(answered, bootid=1), *(desk.say(one, bootid=1) for one in births))
    node = service.engine.state.nodes["n1"]
    assert (node.state, node.pool, node.gpu_count, node.speed_factor) == ("alive", "fast", 4, 1.0)
    assert service.engine.state.jobs["j0"].state == "running"
    assert await desk.commands(StopGang) == []
    assert {letter["dlq_field"] for letter in await letters(desk)} == {"data.pool"}
    await desk.replayed(service)


async def test_a_pool_keeps_its_kind_where_nothing_is_listed(desk: Desk) -> None:
    """A device of the edge is not given what may not go there by naming another pool."""
    service = desk.start()
    await desk.hears(desk.say(node_born("n0", gpus=4)))
    evil = edge("a-evil", 100.0, 64, pool="train")
    job = submitted("secret", gpus_min=8, gpus_max=8).model_copy(update={"edge_allowed": False})
    await desk.hears(desk.say(evil, "/agents/a-evil"), desk.say(job), wait_s=120.0)
    (letter,) = await desk.records(f"{EVENTS.name}.dlq")
    assert letter.headers["dlq_error"] == "is edge, but pool train is training"
    assert await desk.commands(StartGang) == []
    assert service.engine.state.pools["train"].nodes == ["n0"]


def rules(bus: str, text: str = "") -> tuple[PoolRule, ...] | None:
    config = Config.model_validate({"bus": bus, "scheduler": tomllib.loads(text)})
    return config.scheduler.pool_rules(on_file=bus.startswith("sqlite:"))


LISTED = """
[[pool]]
name = "p"
kind = "edge"
gpus_per_node = 2
agents = ["e-*"]
"""


def test_with_kafka_nobody_joins_unlisted() -> None:
    with pytest.raises(BusError, match=r"scheduler\.pool: no pool is listed"):
        rules("kafka:")
    with pytest.raises(BusError, match=r"scheduler\.pool: no pool is listed"):
        rules("sqlite:x", 'births = "listed"')
    assert rules("kafka:", 'births = "any"') is None
    assert rules("sqlite:x") is None
    listed = (PoolRule("p", "edge", 2, agents=("e-*",)),)
    assert rules("kafka:", LISTED) == rules("sqlite:x", LISTED) == listed


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('births = "any"' + LISTED, "take one of the two"),
        (LISTED * 2, "two have one name"),
        (LISTED.replace("e-*", "e-["), "agents"),
    ],
)
def test_lists_that_make_no_sense(text: str, part: str) -> None:
    with pytest.raises(ValidationError, match=part):
        rules("kafka:", text)


async def test_no_edge_server_is_named_as_an_inference_pool_nor_the_other_way_round(
    desk: Desk,
) -> None:
    service = desk.start()
    serve = node_born("s0", pool="serve", kind="inference")
    late = node_born("s1", pool="edge-7", kind="inference")
    births = (serve, edge("serve"), edge("edge-7"), late, edge("edge"))
    await desk.hears(*(desk.say(born, f"/agents/{born.agent}") for born in births))
    letters = await desk.records(f"{EVENTS.name}.dlq")
    assert [letter.headers["dlq_field"] for letter in letters] == ["data.node", "data.pool"]
    assert sorted(service.engine.state.nodes) == ["edge", "edge-7", "s0"]
    assert "give the server another name" in letters[0].headers["dlq_error"]


async def test_nor_as_one_that_is_listed(desk: Desk) -> None:
    service = desk.start(pools=(*RULES, PoolRule("edge-9", "inference", 8)))
    await desk.hears(desk.say(edge("edge-9"), "/agents/edge-9"))
    assert not service.engine.state.nodes
