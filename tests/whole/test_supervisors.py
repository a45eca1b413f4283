"""A gang whose end nobody heard of ends for the next agent too, whatever was stored meanwhile."""

import pytest

from bus.clock import PacedClock
from runtime.core import AgentCore, Command
from runtime.executor import Machine
from runtime.simulated import Physics, SimulatedExecutor
from runtime.simulated_owner import SimulatedMeter
from runtime.turns import Turns
from schemas.commands import CommandData
from schemas.events import EventData, WorkerStopped
from tests.gangs import NOW_S, SPECS, agent, scale, start, stop
from tests.whole.agents import Witness
from tests.whole.supervisors import Supervisors


class DiskError(Exception):
    """The disk said that a commit failed; it is there all the same."""


class Life:
    """An agent's turns over supervisors that outlive it."""

    def __init__(self, core: AgentCore, supervisors: Supervisors) -> None:
        machine = Machine(supervisors, SimulatedMeter(SPECS, supervisors.workers))
        every_s = {"telemetry": 1e9, "progress": 1e9, "load": 1e9}
        self.core, self.fails, self.said = core, False, list[EventData]()
        self.turns = Turns(core, machine, every_s, self._say, self._save)  # type: ignore[arg-type]

    def tell(self, now_s: float, *data: CommandData) -> None:
        commands = [Command(f"c{now_s}-{at}", one, now_s) for at, one in enumerate(data)]
        self.turns.turn(now_s, commands)

    def _say(self, data: EventData, now_s: float, causation: str | None) -> None:
        self.said.append(data)

    def _save(self) -> None:
        if self.fails:
            raise DiskError


@pytest.mark.parametrize("dead_s", [5000.0, 10.0], ids=["ends alone", "runs on"])
@pytest.mark.parametrize("stops", [False, True], ids=["scaled", "scaled and stopped"])
def test_a_gang_whose_change_of_size_was_stored_and_not_done_ends(
    dead_s: float, stops: bool
) -> None:
    world, effects = PacedClock(NOW_S, None), []  # type: ignore[var-annotated]
    physics = Physics(rate_noise=0.0, failures_per_gpu_hour=0.0)
    workers = SimulatedExecutor({}, physics)
    supervisors = Supervisors(workers, Witness("a", world, effects, lambda: 0), world)
    first = Life(agent(), supervisors)
    first.turns.begin(NOW_S)
    first.tell(NOW_S, start())
    first.tell(NOW_S + 40)
    first.fails = True
    orders: list[CommandData] = [scale(epoch=2, n1=[0, 1, 2]), *([stop(2)] if stops else [])]
    with pytest.raises(DiskError):
        first.tell(NOW_S + 50, *orders)
    assert workers._gangs["j"].epoch == 1

    again_s = NOW_S + 50 + dead_s
    supervisors.look(again_s, alone=True)
    second = Life(AgentCore.from_dict("a", SPECS, first.core.to_dict()), supervisors)
    second.turns.begin(again_s)
    second.tell(again_s + 1, stop(2))
    second.tell(again_s + 200)
    assert second.core.gangs == {}
    assert any(isinstance(one, WorkerStopped) and one.epoch == 2 for one in second.said)
