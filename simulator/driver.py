"""The one driver: the real engine in virtual time, and a field that it decides for.

A field is what stands outside the scheduler: agents, owners, tenants. It says events and obeys
commands. `simulator.ideal` is a field of agents that do at once, or after the time that a physics
names, what they are told; `simulator.cores` is one of real agent cores. The driver hands what the
field says to the engine, what the engine orders to the field, and lets time pass in between. It
keeps no state of its own that a decision depends on, so that a journal of the run replays alike.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from scheduler.core.engine import Engine
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import (
    Cause,
    Command,
    Decision,
    Input,
    LeaderStarted,
    Stimulus,
    TimePassed,
)
from scheduler.core.validate import violations
from scheduler.policies.interface import Policy

#: The moment of the engine at which a run begins: what owners needed in the two days before it
#: can be told to the engine, which has no time below 0.
START_S = 172_800.0
#: A policy that makes news at every decision would be asked for ever in one moment.
_CYCLES_MOST = 1000
#: The laws of the state are checked at every so many cycles.
_CHECKED_EVERY = 500

#: Says an event, or lets the scheduler know something, from a source.
Say = Callable[[Input, str], None]
#: Is shown every stimulus with the decision on it.
Watch = Callable[[Stimulus, Decision], None]


class Field(Protocol):
    """What stands outside the scheduler. Moments are the engine's, in seconds."""

    @property
    def next_s(self) -> float:
        """When something happens next; inf if nothing ever does."""
        ...

    def begin(self, say: Say) -> None:
        """Say what there is before time passes; keep `say` for later."""
        ...

    def happen(self, now_s: float) -> None:
        """Let everything happen that is due by now."""
        ...

    def obey(self, command: Command, now_s: float) -> None:
        """Take a command."""
        ...

    def report(self, now_s: float) -> None:
        """Say how things are: a policy is about to be asked."""
        ...

    def is_over(self, now_s: float) -> bool:
        """Whether nothing is left to be seen."""
        ...


class Driver:
    """One engine, one field, and the time that both have."""

    def __init__(
        self,
        policy: Policy,
        field: Field,
        settings: Settings,
        line: str | None = None,
        cell: str = "default",
    ) -> None:
        """Begin with nothing.

        Args:
            policy: Who decides.
            field: What it decides about.
            settings: Of the engine.
            line: The policy with its options, as a journal names it; None: its name.
            cell: What it decides for, as a journal names it.
        """
        self.engine = Engine(ClusterState(cell=cell), lambda _: policy)
        self.watches: list[Watch] = []
        self.now_s = 0.0
        self.violations = 0
        self._field = field
        self._line, self._settings = line or policy.name, settings
        self._orders: deque[Command] = deque()
        self._sequence = 0
        self._cycles = 0

    def say(self, data: Input, source: str) -> None:
        """Let the engine decide on one input now; its commands wait until the field is done."""
        self._sequence += 1
        stimulus = Stimulus(self.now_s, data, Cause(source, 1, self._sequence))
        decision = self.engine.handle(stimulus)
        self._orders.extend(decision.commands)
        for watch in self.watches:
            watch(stimulus, decision)

    def run(self, horizon_s: float = math.inf) -> float:
        """Run until the field is over, or to the horizon; return the last moment."""
        self.say(LeaderStarted("simulator", 1, self._line, self._settings.to_dict()), "scheduler")
        self._field.begin(self.say)
        self._obey()
        while self._field.next_s < START_S:
            self.now_s = self._field.next_s
            self._field.happen(self.now_s)
            self._obey()
        self.now_s = START_S
        in_moment = 0
        while not self._field.is_over(self.now_s):
            wake_s = self.engine.wake_s
            next_s = min(self._field.next_s, math.inf if wake_s is None else wake_s)
            if next_s > horizon_s or next_s == math.inf:
                self.now_s = max(self.now_s, horizon_s) if horizon_s < math.inf else self.now_s
                break
            in_moment = in_moment + 1 if next_s <= self.now_s else 0
            if in_moment > _CYCLES_MOST:
                at_s = self.now_s - START_S
                raise RuntimeError(f"{self._line}: at {at_s:.0f} s it makes news without end")
            self.now_s = max(self.now_s, next_s)
            self._field.happen(self.now_s)
            self._obey()
            wake_s = self.engine.wake_s
            is_due = wake_s is not None and wake_s <= self.now_s
            if is_due and not self._field.is_over(self.now_s):
                self._cycle()
        self.violations += len(violations(self.engine.state))
        return self.now_s

    def _cycle(self) -> None:
        self._field.report(self.now_s)
        self.say(TimePassed(), "scheduler")
        self._obey()
        self._cycles += 1
        if self._cycles % _CHECKED_EVERY == 0:
            self.violations += len(violations(self.engine.state))

    def _obey(self) -> None:
        while self._orders:
            self._field.obey(self._orders.popleft(), self.now_s)
