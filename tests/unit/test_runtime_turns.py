"""When an agent reports, whatever becomes of its clock, and in which order."""

from dataclasses import replace

from runtime.core import Command
from runtime.executor import Machine
from runtime.simulated import Physics, SimulatedExecutor
from runtime.simulated_owner import SimulatedMeter, simulated_machine
from runtime.turns import Report, Turns
from scheduler.core.stimuli import Cause
from schemas.commands import Rebirth
from schemas.events import CommandAcknowledged, EventData, InferenceLoad, NodeBorn
from tests.builders import Cell, progressed, submitted
from tests.gangs import NOW_S, SPECS, agent

EVERY_S: dict[Report, float] = {"telemetry": 60.0, "progress": 60.0, "load": 60.0}


def test_it_is_heard_although_its_clock_is_set_back() -> None:
    """It said nothing of its owner's load for as long as that, and its nodes were lost."""
    said: list[float] = []
    workers = SimulatedExecutor({}, Physics())
    machine = Machine(workers, SimulatedMeter(SPECS, workers))
    turns = Turns(
        agent(), machine, EVERY_S, lambda data, now_s, causation: said.append(now_s), lambda: None
    )
    turns.begin(NOW_S)
    said.clear()
    assert 0.0 < turns.left_s(NOW_S) <= 60.0
    back_s = NOW_S - 7200.0
    assert turns.left_s(back_s) == 0.0, "who waits until it is due waits for two hours"
    turns.turn(back_s, ())
    assert said == [back_s] * len(SPECS)
    left_s = turns.left_s(back_s)
    assert 0.0 < left_s <= 60.0
    turns.turn(back_s + left_s - 1.0, ())
    assert len(said) == len(SPECS), "once a period, as ever"
    turns.turn(back_s + left_s, ())
    assert len(said) == 2 * len(SPECS)


def test_nodes_that_nobody_owns_can_be_lent_some_seconds_after_the_start() -> None:
    said: list[tuple[float, EventData]] = []
    machine = replace(simulated_machine(SPECS, NOW_S, demand=lambda _: 0.0), first_load_s=5.0)
    turns = Turns(
        agent(), machine, EVERY_S, lambda data, now_s, _: said.append((now_s, data)), lambda: None
    )
    turns.begin(NOW_S)
    while (now_s := turns.due_s) <= NOW_S + 180.0:
        turns.turn(now_s, ())
    loads = [now_s - NOW_S for now_s, data in said if isinstance(data, InferenceLoad)]
    assert 0.0 < loads[0] <= 5.0
    assert 0.0 < loads[1] <= 60.0
    assert loads[2] - loads[1] == 60.0


def test_no_node_is_given_up_whose_birth_was_lost_once_its_agent_names_it() -> None:
    """The answer to who asks comes after the births that it asks for."""
    cell = Cell().told(*(spec.born("a") for spec in SPECS), submitted(gpus_max=2))
    first, other = (spec.node for spec in SPECS)
    cell.run("j0", SPECS[0].pool, **{first: 2})
    said: list[EventData] = []
    workers = SimulatedExecutor({}, Physics())
    machine = Machine(workers, SimulatedMeter(SPECS, workers))
    turns = Turns(
        agent(), machine, EVERY_S, lambda data, now_s, causation: said.append(data), lambda: None
    )
    turns.begin(NOW_S)
    cell.reborn(*(born for born in said if isinstance(born, NodeBorn) and born.node == other))
    said.clear()
    cell.feed(progressed(5, "j0", cell.job().epoch + 1), Cause("/agents/a", cell.bootid, 1))
    (asked,) = cell.state.opened("Rebirth", "a")
    turns.turn(NOW_S, [Command(asked.id, Rebirth(), NOW_S, None)])
    for data in said:
        if isinstance(data, NodeBorn | CommandAcknowledged):
            cell.feed(data)
            assert cell.state.nodes[first].state == "alive"
    assert not cell.state.is_open("Rebirth", "a")
