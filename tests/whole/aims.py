"""Blows that wait for a moment in the life of a job or a loan, and strike whom it is about.

Such moments last for seconds: few blows would fall into one by chance.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from bus.clock import PacedClock
from scheduler.core.state import ClusterState
from tests.whole.agents import Agent
from tests.whole.storm import Blow
from tests.whole.tenants import Tenants

#: One that waited in vain for so long strikes all the same, wherever it does.
AIM_S = 900.0
#: It strikes at once or up to so much later.
AFTER_S = 30.0


class Aims:
    """The blows that wait."""

    def __init__(
        self,
        world: PacedClock,
        agents: Sequence[Agent],
        tenants: Tenants,
        later: Callable[[float, Callable[[], object]], None],
        strike: Callable[[Blow], None],
    ) -> None:
        self._world, self._agents, self._tenants = world, agents, tenants
        self._later, self._strike = later, strike
        self._waiting: dict[str, list[Blow]] = defaultdict(list)

    def wait(self, blow: Blow, until_s: float) -> None:
        """Let a blow wait for its moment, until `until_s` at most."""
        self._waiting[blow.aim].append(blow)
        end_s = min(until_s, self._world.now_s() + AIM_S)
        self._later(end_s, partial(self._give_up, blow))

    def see(self, facts: Sequence[object], state: ClusterState | None) -> None:
        """Look whether somebody waits for what was decided."""
        for fact in facts if any(self._waiting.values()) else ():
            waiting = self._waiting.get(type(fact).__name__)
            if waiting:
                blow = waiting.pop(0)
                part = (blow.who >> 8) / 256.0
                at_s = self._world.now_s() + AFTER_S * part**3
                self._later(at_s, partial(self._strike, self._aimed(blow, fact, state)))

    def _give_up(self, blow: Blow) -> None:
        if blow in self._waiting[blow.aim]:
            self._waiting[blow.aim].remove(blow)
            self._strike(replace(blow, aim=""))

    def _aimed(self, blow: Blow, fact: object, state: ClusterState | None) -> Blow:
        """Turn a blow on whom the fact is about: its job, or the agent whose machine that has."""
        job = getattr(fact, "job", None)
        if blow.kind == "cancelled":
            names = self._tenants.names
            which, of = (names.index(job), len(names)) if job in names else (0, 1)
        else:
            node = getattr(fact, "node", None) or self._node(job, fact, state)
            have = [
                index
                for index, agent in enumerate(self._agents)
                if any(spec.node == node for spec in agent.place.specs)
            ]
            which, of = (have[0], len(self._agents)) if have else (0, 1)
            devices = [index for index, agent in enumerate(self._agents) if agent.over_mqtt]
            if blow.kind == "mqtt_held" and which in devices and have:
                return replace(blow, aim="", who=blow.who % 7 + 7 * devices.index(which))
        return replace(blow, aim="", who=blow.who - blow.who % of + which)

    def _node(self, job: str | None, fact: object, state: ClusterState | None) -> str | None:
        allocation = getattr(fact, "allocation", None)
        if not allocation and state is not None and job in state.jobs:
            known = state.jobs[job]
            allocation = known.allocation or known.target
        return min(allocation) if allocation else None
