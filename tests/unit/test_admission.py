"""Who may join which pool: as the operator listed it, or as they come where nothing is listed."""

import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from bus.contract import BusError
from scheduler.admission import PoolRule
from schemas.commands import StartGang
from schemas.events import NodeBorn
from schemas.topics import EVENTS
from services.config import Config
from tests.builders import node_born, submitted
from tests.desk import Desk, open_desk

RULES = (
    PoolRule("train", "training", 8, agents=("agent-train",)),
    PoolRule("edge", "edge", 2, 0.5, ("edge-*",)),
)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk("memory", tmp_path) as desk:
        yield desk


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
