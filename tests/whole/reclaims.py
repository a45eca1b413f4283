"""Notices owners whose nodes are kept from them though nothing is in anybody's way."""

from collections.abc import Callable, Sequence

from bus.clock import PacedClock
from tests.whole.agents import Agent

#: After an owner needs its GPUs, and nothing is in the way any more, they are its own within so
#: long: loads are said and cycles made every minute, and a gang saves before it leaves.
RECLAIM_S = 600.0


class Reclaims:
    """Looks at the owners again and again."""

    def __init__(
        self, world: PacedClock, agents: Sequence[Agent], hindered: Callable[[Agent], bool]
    ) -> None:
        """Look by the world's clock; `hindered` tells of what is between an agent and who leads."""
        self._world, self._hindered = world, hindered
        #: By lender, since when nothing is in the way.
        self._clear_s = {agent: world.now_s() for agent in agents if agent.lends}

    def look(self) -> list[str]:
        """Name the agents whose GPUs are held for too long."""
        now_s, found = self._world.now_s(), []
        for agent, clear_s in self._clear_s.items():
            if self._hindered(agent):
                self._clear_s[agent] = now_s
            elif lent := agent.lent:
                since_s = max(clear_s, agent.needed_since_s(now_s))
                if now_s - since_s > RECLAIM_S:
                    found.append(f"{', '.join(lent)} of {agent.name} since {since_s:.0f}")
        return found
