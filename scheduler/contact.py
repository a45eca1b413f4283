"""Who is in contact: silence, leases, and who is asked to say all again.

The cost of a tick is in the agents that spoke in it; the whole fleet is looked through only every
`LOOK_S`, or when a link was lost. Nothing here decides: the engine is told of silence and return,
and leases are renewed only from when an agent was last heard.

An edge agent's broker says at once that its link is lost. That only makes it silent sooner: its
work goes on, and whatever is heard of the agent itself makes it alive again.
"""

from collections.abc import Iterable, Mapping

from scheduler.core.settings import Settings, settings_from
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Input, NodeHeard, NodeSilent
from scheduler.core.transitions import NodeState
from scheduler.dedupe import Dedupe
from schemas.commands import CommandData, Rebirth, RenewLease
from schemas.events import LinkLost, LinkOpened

#: The fleet is looked through for silence this often; much less than `Settings.silence_s`.
LOOK_S = 15.0
#: An agent is asked to say all again at most this often.
REBIRTH_S = 300.0
#: A lease is renewed when so much of it is over.
RENEWED = 1 / 3
_NEVER = float("-inf")


class Contact:
    """Remembers when each agent was heard, and what it was told for it."""

    def __init__(self) -> None:
        """Begin with nobody heard."""
        #: By agent, when a message of it was last taken.
        self.heard_s: dict[str, float] = {}
        self._agents: set[str] = set()  # those that have a node
        self._edge: set[str] = set()  # those of them whose nodes are all of edge pools
        self._renewed_s: dict[str, float] = {}
        self._renewed_boot: dict[str, int | None] = {}  # the start of the agent whose lease it is
        self._asked_s: dict[str, float] = {}  # to say again what is missing
        self._unsure: set[str] = set()  # agents to ask once they are heard: see `begin`
        self._greeted_s: dict[str, float] = {}  # since it was given up, to say who it is
        self._looked_s = _NEVER
        self._heard = False
        self._out = True  # at the last look, some node was not in contact
        self._session: dict[str, int] = {}  # the newest that was opened
        self._lost: dict[str, int] = {}  # agents whose link is lost, and nothing heard since
        self._lost_now = False

    def begin(self, state: ClusterState, now_s: float) -> list[Input]:
        """Count silence from now on; what was heard before a restart is not known.

        Where nobody led for so long that leases may be over, nodes are silent until they are heard:
        who has no lease starts no gang. Then each agent is asked once what it has: the log may be
        an old copy, which does not know what it lent since.
        """
        self._know(state)
        alive = [node for node in state.nodes.values() if node.state is NodeState.ALIVE]
        former = settings_from(state.leader.settings)
        # Of no agent in contact was it older when the last leader ended.
        lease_age_s = RENEWED * former.lease_s + former.silence_s + LOOK_S
        if now_s - state.now_s >= former.lease_s - lease_age_s:
            self._unsure = set(self._agents)
            return [NodeSilent(name, now_s) for name in sorted(node.id for node in alive)]
        for node in alive:
            self.heard_s.setdefault(node.agent, now_s)
        return []

    def look_again(self) -> None:
        """Look through the fleet at the next tick: whom this one greeted has not heard of it."""
        self._looked_s = _NEVER
        self._greeted_s.clear()

    def hear(self, agents: Iterable[str], now_s: float) -> None:
        """Note who spoke."""
        for agent in agents:
            self.heard_s[agent] = now_s
            self._lost.pop(agent, None)
            self._heard = True

    def links(self, news: Iterable[LinkOpened | LinkLost]) -> None:
        """Note links that opened and were lost; a loss is old news if a newer one was opened."""
        for word in news:
            agent, session = word.agent, word.session
            newest = self._session.get(agent, -1)
            if isinstance(word, LinkOpened):
                self._session[agent] = max(newest, session)
                if session > self._lost.get(agent, session):
                    del self._lost[agent]
                    self._heard = True  # look: it may count as heard again
            elif session >= newest:
                self._lost[agent] = session
                self._lost_now = True

    def changes(
        self, state: ClusterState, now_s: float, silence_s: float, read_s: float
    ) -> list[Input]:
        """Find nodes that fell silent, now and then, or were heard again, at once.

        Args:
            state: The nodes there are.
            now_s: The present moment.
            silence_s: Unheard for longer than this, a node is silent.
            read_s: All that was stored by then has been read; what waits to be is no silence.
        """
        heard, self._heard = self._heard, False
        lost, self._lost_now = self._lost_now, False
        if now_s < self._looked_s + LOOK_S and not (heard and self._out) and not lost:
            return []
        before_s, self._looked_s = self._looked_s, now_s
        self._out = any(node.state is not NodeState.ALIVE for node in state.nodes.values())
        self._know(state)
        known = (self.heard_s, self._session, self._lost, self._asked_s)
        if max(len(one) for one in known) > 1000 + 2 * len(self._agents):
            self._forget_strangers()
        found: list[Input] = []
        given_up: dict[str, float] = {}
        for name in sorted(state.nodes):
            node = state.nodes[name]
            heard_s = self.heard_s.get(node.agent)
            if heard_s is None:
                if node.state is NodeState.ALIVE:
                    self.heard_s[node.agent] = now_s
                continue  # those that were silent are still: their leases run on
            if node.state is NodeState.DEAD:
                # Its agent speaks though it was given up: who are you?
                spoke = heard_s > before_s or heard_s >= now_s
                if spoke and _may(self._greeted_s, node.agent, now_s):
                    found.append(NodeHeard(node.id))
                given_up[node.agent] = self._greeted_s.get(node.agent, _NEVER)
                continue
            if read_s - heard_s > silence_s or node.agent in self._lost:
                if node.state is NodeState.ALIVE:
                    found.append(NodeSilent(node.id, heard_s))
                    self._out = True
            elif node.state is NodeState.UNKNOWN:
                found.append(NodeHeard(node.id))
        # Who came back is asked at once when it is given up again.
        self._greeted_s = given_up
        return found

    def orders(
        self,
        state: ClusterState,
        spoke: Iterable[str],
        successors: Mapping[str, str],
        dedupe: Dedupe,
        now_s: float,
        settings: Settings,
    ) -> list[tuple[str, CommandData]]:
        """Renew leases of agents that spoke; ask those with gaps to say all again.

        So are those that may have another's node, now that it was given up.
        """
        given: list[tuple[str, CommandData]] = []
        # Long leases are renewed as often as short ones: whoever falls silent has most of its own.
        every_s = RENEWED * settings.lease_s
        spoke = list(spoke)
        if not self._agents.issuperset(spoke):
            # Born in this very tick, or a stranger, who has nothing that could have a lease.
            self._know(state)
        for agent in spoke:
            heard_s = self.heard_s.get(agent, now_s)
            boot = dedupe.boot(f"/agents/{agent}")
            renewed_s = self._renewed_s.get(agent, _NEVER)
            if agent in self._agents and (
                heard_s > renewed_s + every_s or boot != self._renewed_boot.get(agent)
            ):
                self._renewed_s[agent], self._renewed_boot[agent] = heard_s, boot
                lease_s = settings.lease_of("edge" if agent in self._edge else "training")
                given.append((agent, RenewLease(until_s=heard_s + lease_s, boot=boot)))
            missing = dedupe.missing(f"/agents/{agent}")
            if agent in self._unsure and _may(self._asked_s, agent, now_s):
                self._unsure.discard(agent)
                given.append((agent, Rebirth(reason="nobody led for a while")))
            elif missing and _may(self._asked_s, agent, now_s):
                given.append((agent, Rebirth(reason=f"{missing} messages missing")))
        for agent, node in successors.items():
            if _may(self._asked_s, agent, now_s):
                given.append((agent, Rebirth(reason=f"{node} is free for another agent")))
        return given

    def _know(self, state: ClusterState) -> None:
        """Note who looks after what. An agent has one lease: of several kinds, the shorter."""
        nodes, pools = state.nodes.values(), state.pools
        self._agents = {node.agent for node in nodes}
        self._edge = self._agents - {n.agent for n in nodes if pools[n.pool].kind != "edge"}

    def _forget_strangers(self) -> None:
        """A flood of made-up agents must not fill the memory, nor push out real ones."""
        for boot in [name for name in self._renewed_boot if name not in self._agents]:
            del self._renewed_boot[boot]
        for seconds in (self.heard_s, self._renewed_s, self._asked_s):
            for agent in [name for name in seconds if name not in self._agents]:
                del seconds[agent]
        for sessions in (self._session, self._lost):
            for agent in [name for name in sessions if name not in self._agents]:
                del sessions[agent]


def _may(asked_s: dict[str, float], agent: str, now_s: float) -> bool:
    """Whether it may be asked, and from now on was."""
    if now_s < asked_s.get(agent, _NEVER) + REBIRTH_S:
        return False
    asked_s[agent] = now_s
    return True
