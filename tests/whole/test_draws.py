"""What seeds draw, and blows that wait for their moment."""

from collections import Counter
from typing import Any

import pytest

from schemas.commands import COMMANDS
from schemas.requests import VERB_NAMES
from tests.whole import coverage, world
from tests.whole.agents import Agent
from tests.whole.aims import AFTER_S, AIM_S
from tests.whole.operators import NOT_DRAWN, can_draw
from tests.whole.policies import POLICIES
from tests.whole.schedulers import Member
from tests.whole.storm import (
    AIMED,
    EDGE,
    HOURS,
    KINDS,
    OF_THE_EDGE,
    POLICIES as HOW_MANY,
    Blow,
    Job,
    Storm,
    draw,
)


@pytest.fixture(scope="module", name="storms")
def _storms() -> list[Storm]:
    return [draw(seed) for seed in range(1, 201)]


def test_worlds_differ_in_size_length_and_policy(storms: list[Storm]) -> None:
    assert len({storm.places for storm in storms}) >= 8
    assert {storm.bridges for storm in storms} == {0, 1, 2}
    assert {storm.policy for storm in storms} == set(range(len(POLICIES)))
    assert len(POLICIES) == HOW_MANY
    lengths = sorted(storm.hours for storm in storms)
    assert HOURS[0] <= lengths[0] < 0.35 < 1.0 < lengths[-1] <= HOURS[1]


def test_where_no_edge_is_nothing_befalls_it_unless_it_is_sure_to(storms: list[Storm]) -> None:
    for storm in storms:
        edge = bool(set(EDGE) & set(storm.places))
        assert edge == (storm.bridges > 0)
        assert edge or not any(blow.kind.startswith(OF_THE_EDGE) for blow in storm.blows)
        assert any(blow.kind == "mqtt_cut" for blow in draw(storm.seed, sure=["mqtt_cut"]).blows)


def test_every_kind_strikes_and_only_what_has_a_moment_waits_for_it(storms: list[Storm]) -> None:
    kinds = Counter(blow.kind for storm in storms for blow in storm.blows)
    assert kinds.keys() == KINDS.keys()
    assert {blow.kind for storm in storms for blow in storm.blows if blow.aim} == set(AIMED)


def test_a_seed_draws_the_same_when_its_length_is_said() -> None:
    drawn = draw(3)
    assert draw(3, hours=drawn.hours) == drawn


def test_a_blow_that_waits_strikes_whom_its_moment_is_about(monkeypatch: Any) -> None:
    struck: list[tuple[float, str]] = []
    began: list[tuple[float, str]] = []

    def crash(self: Agent) -> None:
        struck.append((self._world.now_s(), self.name))

    def told(self: world._World, what: str) -> None:
        if "GangStarting" in what:
            began.append((self.clock.now_s(), what))

    monkeypatch.setattr(Agent, "crash", crash)
    monkeypatch.setattr(world._World, "_tell", told)
    jobs = (Job(700.0, "j0", 4, 4, 500, "t0"),)
    for who in range(5):
        storm = Storm(1, 0.5, (Blow(60.0, "agent_crash", who, 0.5, "GangStarting"),), jobs)
        assert world.run(storm, say=lambda what: None).broken == []
        (at_s, name), (began_s, what) = struck.pop(), began[0]
        assert 0.0 <= at_s - began_s <= AFTER_S
        assert name == ("a-t0" if "'t0'" in what else "a-t1")
        began.clear()
    assert struck == []


def test_a_blow_that_waits_in_vain_strikes_all_the_same(monkeypatch: Any) -> None:
    struck: list[float] = []
    monkeypatch.setattr(Member, "crash", lambda self: struck.append(self._world.now_s()))
    storm = Storm(1, 0.5, (Blow(60.0, "scheduler_crash", 1, 0.5, "JobMigrating"),), ())
    assert world.run(storm).broken == []
    assert struck == [world.START_S + 60.0 + AIM_S]


def test_people_ask_for_everything_that_can_be_asked_for() -> None:
    """A verb that is added is drawn; if an argument cannot be, say how, in `operators`."""
    assert {name for name, verb in VERB_NAMES.items() if not can_draw(verb)} == set(NOT_DRAWN)


def test_what_cannot_be_taken_is_in_the_tables() -> None:
    every = {kind.TYPE for kind in COMMANDS}
    for life, table in coverage._TABLES.items():
        every |= {coverage._name(life, state, fact) for state, fact in table}
    assert coverage.CANNOT.keys() <= every
