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

#: Says an event, or lets the scheduler know something: what, and of which source or message.
Say = Callable[[Input, str | Cause], None]
#: Is shown every stimulus with the decision on it.
Watch = Callable[[Stimulus, Decision], None]


class Field(Protocol):
    """What stands outside the scheduler. Moments are the engine's, in seconds."""

    @property
    def next_s(self) -> float:
        """When something happens next; inf if nothing ever does."""
        ...

    def begin(self, driver: "Driver") -> None:
        """Say what there is before time passes; keep the driver, to say more."""
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


class Driver:
    """One engine, one field, and the time that both have."""

    def __init__(
        self,
        policy: Policy,
        field: Field,
        settings: Settings,
        line: str | None = None,
        cell: str = "default",
        *,
        skips: bool = False,
        policies: Callable[[str], Policy] | None = None,
        state: ClusterState | None = None,
    ) -> None:
        """Begin with nothing, or go on from a state.

        Args:
            policy: Who decides.
            field: What it decides about.
            settings: Of the engine.
            line: The policy with its options, as a journal names it; None: its name.
            cell: What it decides for, as a journal names it.
            skips: Whether rounds are left out while there is neither a job nor a loan, as a field
                may have it that answers all commands at once.
            policies: What makes a policy of its line, if people may choose another; None: `policy`
                decides, whatever they choose.
            state: What the engine goes on from, by `resume`; None: from nothing, by `begin`.
        """
        self._field = field
        self.engine = Engine(
            ClusterState(cell=cell) if state is None else state, policies or (lambda _: policy)
        )
        self.watches: list[Watch] = []
        self.now_s = 0.0  #: The engine's moment. Nobody is asked before `START_S`.
        self.violations = 0
        self._line, self._settings, self._skips = line or policy.name, settings, skips
        self._orders: deque[Command] = deque()
        self._sequence = 0
        self._cycles = 0

    def say(self, data: Input, source: str | Cause) -> None:
        """Let the engine decide on one input now; its commands wait until the field is done."""
        if isinstance(source, str):
            self._sequence += 1
            source = Cause(source, 1, self._sequence)
        stimulus = Stimulus(self.now_s, data, source)
        decision = self.engine.handle(stimulus)
        self._orders.extend(decision.commands)
        for watch in self.watches:
            watch(stimulus, decision)

    def begin(self) -> None:
        """Let the policy lead, and the field say what there is and was."""
        led = LeaderStarted("simulator", 1, self._line, self._settings.to_dict())
        self.say(led, "scheduler")
        self._field.begin(self)
        self._obey()
        while self._field.next_s < START_S:
            self.now_s = self._field.next_s
            self._field.happen(self.now_s)
            self._obey()
        self.now_s = max(self.now_s, START_S)

    def resume(self) -> None:
        """Go on under the leader of the state, once the field has said what it is in."""
        self.now_s = self.engine.state.now_s
        self._field.begin(self)
        self._obey()

    def advance(
        self, until_s: float = math.inf, is_over: Callable[[float], bool] = lambda _: False
    ) -> None:
        """Let time pass until a moment, until `is_over` says so, or until nothing can happen."""
        in_moment = 0
        self._obey()  # what was said between two calls may have been answered
        while not is_over(self.now_s):
            next_s = min(self._field.next_s, self._wake_s())
            if next_s > until_s or next_s == math.inf:
                self.now_s = max(self.now_s, until_s) if until_s < math.inf else self.now_s
                return
            in_moment = in_moment + 1 if next_s <= self.now_s else 0
            if in_moment > _CYCLES_MOST:
                at_s = self.now_s - START_S
                raise RuntimeError(f"{self._line}: at {at_s:.0f} s it makes news without end")
            self.now_s = max(self.now_s, next_s)
            self._field.happen(self.now_s)
            self._obey()
            if self._wake_s() <= self.now_s and not is_over(self.now_s):
                self._cycle()

    def _wake_s(self) -> float:
        """Say when the engine next has something to do; inf if nothing."""
        wake_s, state, totals = self.engine.wake_s, self.engine.state, self.engine.state.totals
        if wake_s is None:
            return math.inf
        over = totals.jobs_completed + totals.jobs_failed + totals.jobs_cancelled
        if not self._skips or totals.jobs_submitted > over or state.on_loan or state.dirty:
            return wake_s
        event_s = self._field.next_s
        if event_s == math.inf:
            return wake_s
        # What comes next is seen in the round that would have seen it: one before it is held.
        return max(wake_s, self._settings.next_round_s(event_s - 2.0 * self._settings.cycle_s))

    def check(self) -> None:
        """Count what breaks a law of the state now."""
        self.violations += len(violations(self.engine.state))

    def _cycle(self) -> None:
        self._field.report(self.now_s)
        self.say(TimePassed(), "scheduler")
        self._obey()
        self._cycles += 1
        if self._cycles % _CHECKED_EVERY == 0:
            self.check()

    def _obey(self) -> None:
        while self._orders:
            self._field.obey(self._orders.popleft(), self.now_s)
