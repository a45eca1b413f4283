"""An agent's turns: take the machine's reports and the commands, store, act, report.

Nothing takes effect before it is stored. The caller provides bus and store: a service has real
ones (`runtime.service`), the simulator has neither.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from bus.steady import STEP_S
from runtime.core import Action, AgentCore, Birth, Command, Outputs, Stimulus, Tick
from runtime.executor import Machine
from schemas.events import EventData

_TICK = Tick()

#: What an agent reports by itself.
Report = Literal["telemetry", "progress", "load"]
#: Takes an event to publish, its moment, and the id of the command that caused it.
Say = Callable[[EventData, float, str | None], None]


class Turns:
    """Runs a core and its machine together."""

    def __init__(
        self,
        core: AgentCore,
        machine: Machine,
        every_s: Mapping[Report, float],
        say: Say,
        save: Callable[[], None],
    ) -> None:
        """Put the parts together.

        Args:
            core: Decides.
            machine: Carries out the core's actions, and reports.
            every_s: How often each report is made. Moments are aligned, so that all
                agents report together.
            say: Takes what is to be published, in order, once it is saved.
            save: Writes down what the core changed and what was said.
        """
        self.core, self.machine = core, machine
        self._every_s = {
            name: period_s
            for name, period_s in every_s.items()
            if name != "load" or machine.owner is not None
        }
        self._say, self._save = say, save
        self._actions: list[Action] = []
        self._report_s: dict[Report, float] = {}

    def begin(self, now_s: float) -> None:
        """Report the agent's birth."""
        self._take(Birth(self.machine.executor.running()), now_s)
        self._flush(now_s)
        self._report_s = {name: _next(now_s, every) for name, every in self._every_s.items()}
        if "load" in self._report_s:
            first_s = _next(now_s, self.machine.first_load_s)
            self._report_s["load"] = min(self._report_s["load"], first_s)

    def turn(self, now_s: float, commands: Iterable[Command]) -> None:
        """Handle everything that is due; each command is read when its turn comes."""
        self._learn(now_s)
        for command in commands:
            self._take(command, now_s)
        self._take(_TICK, now_s)
        if self._actions:
            self._flush(now_s)
            self._learn(now_s)
        self._report(now_s)
        self._flush(now_s)

    def farewell(self, reason: str, now_s: float) -> None:
        """Report that every node leaves for good."""
        self._collect(self.core.farewell(reason, now_s), now_s)
        self._flush(now_s)

    @property
    def due_s(self) -> float:
        """When the next turn is due even if no command comes."""
        due_s = min(*self._report_s.values(), self.machine.next_due_s())
        lease_s = self.core.next_due_s()
        return due_s if lease_s is None else min(due_s, lease_s)

    def left_s(self, now_s: float) -> float:
        """Give for how long nothing is due; 0 also once the clock was set back."""
        left_s = self.due_s - now_s
        return left_s if 0.0 < left_s <= min(self._every_s.values()) + STEP_S else 0.0

    def _learn(self, now_s: float) -> None:
        """Tell the core what the machine reports, until it has no more to say."""
        while reports := self.machine.advance(now_s):
            for report in reports:
                self._take(report, now_s)
            if not self._actions:
                return
            self._flush(now_s)

    def _take(self, stimulus: Stimulus, now_s: float) -> None:
        self._collect(self.core.handle(stimulus, now_s), now_s)

    def _collect(self, outputs: Outputs, now_s: float) -> None:
        for said in outputs.events:
            self._say(said.data, now_s, said.causation)
        # After the births that a scheduler asks for: a node that has none by then is given up.
        for ack in outputs.acks:
            self._say(ack.data, now_s, ack.causation)
        self._actions += outputs.actions

    def _flush(self, now_s: float) -> None:
        """Store what the turn changed, then carry out its actions."""
        self._save()
        actions, self._actions = self._actions, []
        for action in actions:
            self.machine.act(action, now_s)

    def _report(self, now_s: float) -> None:
        machine = self.machine
        for name, every_s in self._every_s.items():
            # One that is more than a period away was planned before the clock was set back: nobody
            # would hear of the agent for as long as that.
            if now_s < self._report_s[name] <= now_s + every_s + STEP_S:
                continue
            self._report_s[name] = _next(now_s, every_s)
            if name == "progress":
                for progress in machine.executor.progress(now_s):
                    self._take(progress, now_s)
            elif name == "telemetry":
                for measured in machine.meter.measure(now_s, every_s):
                    self._say(measured, now_s, None)
            elif machine.owner is not None:
                for load in machine.owner.loads(now_s):
                    self._say(load, now_s, None)


def _next(now_s: float, period_s: float) -> float:
    """The next multiple of the period after now."""
    return (math.floor(now_s / period_s) + 1) * period_s
