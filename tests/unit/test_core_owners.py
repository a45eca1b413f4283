"""An owner whose load is heard no more, while its agent is, gets back what it lent."""

import pytest

from scheduler.core import facts
from scheduler.core.engine import Engine
from scheduler.core.settings import Settings, settings_from
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import (
    Cause,
    Input,
    LeaderStarted,
    NodeHeard,
    NodeSilent,
    Stimulus,
    TimePassed,
)
from scheduler.policies.interface import Reason
from scheduler.policies.registry import make_policy
from schemas.commands import StopGang
from schemas.events import CommandAcknowledged, NodeDied, PoolKind, WorkerStarted
from tests.builders import START_S, Cell, load, node_born, submitted

SILENCE_S = 2700.0


@pytest.fixture
def cell() -> Cell:
    """A node of an inference pool and an edge server, both lent, and a job on the first."""
    cell = Cell().told(
        node_born("n0"),
        node_born("i0", pool="infer", kind="inference"),
        node_born("e0", pool="edge", kind="edge"),
        load(pool="infer"),
        load(pool="edge", node="e0"),
        submitted("j0"),
    )
    cell.plan(lend=["e0", "i0"])
    cell.acks(kind="LendNode")
    cell.run("j0", "infer", i0=2)
    return cell


def lent(cell: Cell) -> list[str]:
    return [name for name in cell.state.on_loan if cell.state.nodes[name].loan_state == "lent"]


def heard(cell: Cell, seconds: float, *owners: str) -> None:
    """Let time pass in which these owners say their load each minute."""
    end_s = cell.now_s + seconds
    while cell.now_s < end_s:
        for owner in owners:
            cell.feed(load(pool="edge", node="e0") if owner == "e0" else load(pool="infer"))
        cell.wait(60.0)


def test_an_owner_that_is_not_heard_gets_back_what_it_lent_and_no_other_does(cell: Cell) -> None:
    heard(cell, SILENCE_S + 120.0, "e0")
    assert (lent(cell), cell.state.standing.recalls) == (["e0", "i0"], {}), "it is waited for"
    assert [*cell.state.standing.unheard] == ["infer"]
    heard(cell, 240.0, "e0")
    assert (lent(cell), cell.job("j0").state) == (["e0"], "checkpointing")
    recall = cell.state.standing.recalls["i0"]
    assert (recall.request, recall.by) == ("", "infer")
    cell.stop_workers("j0")
    cell.wait(60.0)
    cell.acks(kind="ReturnNode")
    assert cell.state.on_loan == ["e0"]
    assert cell.job("j0").why is not None
    heard(cell, 60.0, "infer", "e0")
    assert cell.state.standing.unheard == {}


def test_it_is_said_why(cell: Cell) -> None:
    reasons: list[Reason] = []
    end_s = cell.now_s + SILENCE_S + 600.0
    while cell.now_s < end_s:
        cell.wait(60.0)
        reasons += cell.last.reasons
    said = {(one.subject, one.verb) for one in reasons if one.rule == "loans.unheard"}
    assert said == {("i0", "reclaims"), ("e0", "reclaims"), ("j0", "preempts")}


def test_one_that_is_heard_in_time_keeps_lending(cell: Cell) -> None:
    cell.wait(SILENCE_S + 60.0)
    assert [*cell.state.standing.unheard] == ["e0", "infer"]
    heard(cell, 600.0, "infer", "e0")
    assert lent(cell) == ["e0", "i0"]


def test_a_scheduler_that_was_away_hears_first(cell: Cell) -> None:
    cell.wait(SILENCE_S + 60.0)
    cell.now_s += 7200.0
    cell.feed(LeaderStarted("next", 2, "scripted", cell.settings.to_dict()))
    cell.wait(60.0)
    assert lent(cell) == ["e0", "i0"]
    heard(cell, 600.0, "infer", "e0")
    assert lent(cell) == ["e0", "i0"]


def test_an_agent_that_was_away_says_its_load_first(cell: Cell) -> None:
    settings = Settings(edge_lease_s=7200.0)
    cell.feed(LeaderStarted("next", 2, "scripted", settings.to_dict()))
    cell.feed(NodeSilent("e0", cell.now_s))
    heard(cell, SILENCE_S + 600.0, "infer")
    assert lent(cell) == ["e0", "i0"], "nothing is known of an owner out of contact"
    cell.feed(NodeHeard("e0"))
    cell.wait(60.0)
    heard(cell, 600.0, "infer", "e0")
    assert lent(cell) == ["e0", "i0"]


def test_a_leader_of_before_this_was_so_waits_as_it_did(cell: Cell) -> None:
    recorded = Settings().to_dict()
    del recorded["owner_silence_s"], recorded["short_owners_at_once"]
    assert settings_from(recorded).owner_silence_s is None
    assert not settings_from(recorded).short_owners_at_once
    assert settings_from(Settings().to_dict()) == Settings()
    cell.feed(LeaderStarted("old", 2, "scripted", recorded))
    cell.wait(2 * SILENCE_S)
    assert (lent(cell), cell.state.standing.unheard) == (["e0", "i0"], {})


@pytest.mark.parametrize("policy", ["tide", "aryl", "deepboot", "edgeflow", "fifo"])
def test_under_every_policy_that_lends_an_unheard_owner_has_all_back(policy: str) -> None:
    engine, now_s = Engine(ClusterState(), make_policy), START_S

    def feed(data: Input) -> None:
        engine.handle(Stimulus(now_s, data, Cause("/agents/a", 0, engine.state.number, now_s)))

    def answered() -> None:
        for command in list(engine.state.commands.values()):
            feed(CommandAcknowledged(command=command.id, outcome="done"))
        for job in list(engine.state.jobs.values()):
            for name, gpus in list(job.allocation.items()) if job.state == "starting" else ():
                said = {"job": job.id, "epoch": job.epoch, "node": name, "gpus": gpus, "step": 0}
                feed(WorkerStarted.model_validate(said))

    feed(LeaderStarted("x", 1, "tide" if policy == "fifo" else policy, Settings().to_dict()))
    feed(node_born("n0", gpus=1))
    kind: PoolKind = "edge" if policy == "edgeflow" else "inference"
    for number in range(3):
        feed(node_born(f"s{number}", agent="a", pool="serve", kind=kind))
    for number in range(4):
        feed(submitted(f"j{number}", gpus_min=4, gpus_max=4, total_steps=10**8))
    for _ in range(60):
        now_s += 60.0
        for number in range(3):
            feed(load(0, "serve", f"s{number}" if kind == "edge" else None))
        feed(TimePassed())
        answered()
    assert engine.state.on_loan
    if policy == "fifo":  # it lends nothing, and keeps what others borrowed until it is needed
        feed(LeaderStarted("x", 2, policy, Settings().to_dict()))
    for _ in range(60):
        now_s += 60.0
        feed(TimePassed())
        answered()
    states = {engine.state.nodes[name].loan_state for name in engine.state.on_loan}
    assert "lent" not in states


def test_nobody_is_noted_where_nothing_is_lent() -> None:
    cell = Cell().told(node_born("i0", pool="infer", kind="inference"), load(pool="infer"))
    cell.wait(2 * SILENCE_S)
    assert cell.state.standing.unheard == {}
    assert not cell.sent(StopGang)
    cell.feed(submitted("j0"))
    cell.plan(lend=["i0"])
    cell.acks(kind="LendNode")
    cell.wait(60.0)
    kinds = [type(fact) for fact in cell.last.facts]
    assert facts.OwnerUnheard in kinds, "an old word is noted before it is acted on"
    assert lent(cell) == ["i0"]


# --- owners that are short ----------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("pool", "node"), [("infer", None), ("edge", "e0")])
def test_an_owner_that_lent_what_it_needs_is_heard_before_the_next_round(
    cell: Cell, pool: str, node: str | None, at_once: bool
) -> None:
    settings = Settings(short_owners_at_once=at_once)
    cell.feed(LeaderStarted("next", 2, "scripted", settings.to_dict()))
    cell.wait(600.0)
    next_s = settings.next_round_s(cell.now_s)
    assert cell.last.wake_s == next_s

    def said(needed: int) -> float | None:
        cell.feed(load(needed, pool, node))
        return cell.last.wake_s

    soon_s = cell.now_s + settings.cycle_gap_s
    assert said(1) == (soon_s if at_once else next_s)
    cell.wait(soon_s - cell.now_s)
    assert said(2) == next_s, "a policy that leaves it so is not asked at each word"
    said(0)
    assert said(1) == (soon_s + settings.cycle_gap_s if at_once else next_s)


def test_an_owner_has_no_gpus_on_nodes_that_are_gone() -> None:
    nodes = [node_born(name, pool="infer", kind="inference") for name in ("i0", "i1", "i2")]
    cell = Cell().told(*nodes, load(1, pool="infer"), NodeDied(node="i2"))
    cell.plan(lend=["i0"])
    cell.acks(kind="LendNode")
    cell.wait(60.0)
    for needed, short in ((4, False), (8, True)):
        cell.feed(load(needed, pool="infer"))
        assert (facts.OwnerShort("infer") in cell.last.facts) == short
