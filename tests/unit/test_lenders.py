"""Each agent of an inference pool is a lender of its own where several share the pool."""

from collections.abc import Iterator

import numpy as np
import pytest

from explain.tide import tide_of
from explain.uses import Use, uses_of_pool
from scheduler.core import facts
from scheduler.core.engine import Engine
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Cause, Input, LeaderStarted, Stimulus, TimePassed
from scheduler.policies.interface import Lender
from scheduler.policies.registry import make_policy
from scheduler.relevance import stimulus_of
from schemas.events import CommandAcknowledged, InferenceLoad, NodeBorn, NodeDied
from schemas.requests import FreezeLoans, RecallLoans
from services.cell_samples import count_gpus
from tests.asked import ask
from tests.builders import START_S, Cell, load, node_born, submitted


def servers(agent: str, count: int = 3) -> Iterator[NodeBorn]:
    for number in range(count):
        yield node_born(f"{agent}-{number}", agent=agent, pool="serve", kind="inference")


def says(cell: Cell, agent: str, needed: int) -> None:
    cell.feed(load(needed, "serve"), Cause(f"/agents/{agent}", 0, cell.state.number, cell.now_s))


def shown(cell: Cell) -> dict[str, Lender]:
    return {lender.id: lender for lender in cell.seen().lenders}


@pytest.fixture
def cell() -> Cell:
    """A pool that two agents share; both have said what they need."""
    cell = Cell().told(node_born("n0"), *servers("east"), *servers("west"))
    says(cell, "east", 8)
    says(cell, "west", 5)
    return cell


def test_each_agent_says_what_its_own_servers_need(cell: Cell) -> None:
    found = shown(cell)
    assert {name: one.gpus_needed for name, one in found.items()} == {
        "serve@east": 8.0,
        "serve@west": 5.0,
    }
    ids = np.array(cell.seen().nodes.ids)
    assert [*ids[found["serve@east"].nodes]] == ["east-0", "east-1", "east-2"]
    assert [*ids[found["serve@west"].nodes]] == ["west-0", "west-1", "west-2"]
    assert set(cell.seen().pools.ids) == {"train", *found}, "named as their sites are"


def test_their_needs_are_added_up_where_the_pool_is_told_of(cell: Cell) -> None:
    assert uses_of_pool(cell.state, "serve")[Use.SERVING] == 13
    assert tide_of(cell.state).need == 13.0
    assert count_gpus(cell.state)["serve", "serving"] == 8.0, "each has four, as it says"
    assert cell.state.gpus_serving == 8.0


def test_no_agent_has_more_needed_than_is_its_own(cell: Cell) -> None:
    says(cell, "east", 1000)
    assert cell.state.lenders["serve@east"].gpus_needed == 120.0


def test_what_is_known_of_one_goes_along_when_a_second_comes_and_goes() -> None:
    cell = Cell().told(*servers("east"))
    for needed in (1, 2, 3):
        says(cell, "east", needed)
        cell.wait(300.0)
    before = shown(cell)["serve"].history
    assert [*before[-4:]] == [1.0, 2.0, 3.0, 3.0]
    cell.told(*servers("west"))
    found = shown(cell)
    assert np.array_equal(found["serve@east"].history, before), "before it speaks again, too"
    assert (found["serve@west"].load_age_s, found["serve@east"].gpus_needed) == (np.inf, 3.0)
    says(cell, "west", 7)
    says(cell, "east", 4)
    assert cell.state.lenders.keys() == {"serve@east", "serve@west"}
    assert [*shown(cell)["serve@east"].history[-4:]] == [1.0, 2.0, 3.0, 4.0]
    for number in range(3):
        cell.feed(NodeDied(node=f"west-{number}", reason="gone"))
    assert [*shown(cell)] == ["serve"]
    assert [*shown(cell)["serve"].history[-4:]] == [1.0, 2.0, 3.0, 4.0]
    says(cell, "east", 5)
    assert [*shown(cell)["serve"].history[-4:]] == [1.0, 2.0, 3.0, 5.0]
    assert "serve@east" not in cell.state.lenders
    cell.reborn(*servers("west"))
    says(cell, "east", 5)
    assert shown(cell)["serve@west"].gpus_needed == 7.0, "what it said last"


def test_one_that_is_left_alone_is_not_taken_for_the_one_before() -> None:
    cell = Cell().told(*servers("east"))
    says(cell, "east", 3)
    cell.told(*servers("west"))
    says(cell, "west", 2)  # the other has not spoken since: it has the pool's name still
    for number in range(3):
        cell.feed(NodeDied(node=f"east-{number}", reason="gone"))
    assert shown(cell)["serve"].gpus_needed == 2.0
    says(cell, "west", 1)
    assert [(one.id, one.source) for one in cell.state.lenders.values()] == [
        ("serve", "/agents/west")
    ]
    assert cell.state.gpus_serving == 1.0


def test_a_late_word_of_one_that_is_gone_is_not_taken_for_the_others(cell: Cell) -> None:
    for number in range(3):
        cell.feed(NodeDied(node=f"west-{number}", reason="gone"))
    says(cell, "west", 12)
    assert shown(cell)["serve"].gpus_needed == 8.0
    says(cell, "east", 7)
    assert (shown(cell)["serve"].gpus_needed, tide_of(cell.state).need) == (7.0, 7.0)
    says(cell, "west", 12)
    assert (shown(cell)["serve"].gpus_needed, tide_of(cell.state).need) == (7.0, 7.0)


def test_a_word_that_gives_a_lender_another_name_is_passed_on(cell: Cell) -> None:
    word: InferenceLoad = load(8, "serve")
    assert stimulus_of(cell.state, word, cell.now_s, "/agents/east") is None
    for number in range(3):
        cell.feed(NodeDied(node=f"west-{number}", reason="gone"))
    assert stimulus_of(cell.state, word, cell.now_s, "/agents/east") is word
    says(cell, "east", 8)
    assert facts.LenderRenamed("serve@east", "serve") in cell.last.facts
    assert stimulus_of(cell.state, word, cell.now_s, "/agents/east") is None


def test_a_freeze_and_a_recall_of_a_pool_are_of_all_its_agents(cell: Cell) -> None:
    cell.plan(lend=["east-0", "west-0"])
    cell.acks(kind="LendNode")
    ask(cell, FreezeLoans(lender="serve"))
    cell.plan(lend=["east-1", "west-1"])
    assert cell.state.on_loan == ["east-0", "west-0"]
    ask(cell, RecallLoans(lender="serve", by_s=cell.now_s + 600.0))
    assert [*cell.state.standing.recalls] == ["east-0", "west-0"]


def test_an_agent_that_is_not_heard_gets_its_nodes_back_and_the_other_does_not(cell: Cell) -> None:
    cell.plan(lend=["east-0", "west-0"])
    cell.acks(kind="LendNode")
    for _ in range(50):
        says(cell, "east", 0)
        cell.wait(60.0)
    cell.acks(kind="ReturnNode")
    assert cell.state.on_loan == ["east-0"]


@pytest.mark.parametrize("policy", ["tide", "aryl"])
def test_two_that_share_a_pool_have_what_they_need(policy: str) -> None:
    engine, now_s = Engine(ClusterState(), make_policy), START_S

    def feed(data: Input, agent: str = "x") -> None:
        cause = Cause(f"/agents/{agent}", 0, engine.state.number, now_s)
        engine.handle(Stimulus(now_s, data, cause))

    def minutes(count: int, needed: int) -> None:
        nonlocal now_s
        for _ in range(count):
            now_s += 60.0
            for agent in ("east", "west"):
                feed(load(needed, "serve"), agent)
            feed(TimePassed())
            for command in list(engine.state.commands.values()):
                feed(CommandAcknowledged(command=command.id, outcome="done"), command.agent)

    feed(LeaderStarted("x", 1, policy, Settings().to_dict()))
    for born in (node_born("n0"), *servers("east"), *servers("west")):
        feed(born)
    for number in range(8):
        spec = submitted(f"j{number}", gpus_min=4, gpus_max=4, total_steps=10**7)
        feed(spec.model_copy(update={"edge_allowed": False}))
    minutes(60, 0)
    assert {name.partition("-")[0] for name in engine.state.on_loan} == {"east", "west"}
    minutes(60, 8)
    for agent in ("east", "west"):
        out = [name for name in engine.state.on_loan if name.startswith(agent)]
        still = [name for name in out if engine.state.nodes[name].loan_state == "lent"]
        assert len(still) <= 1, "each has twelve GPUs and needs eight"
