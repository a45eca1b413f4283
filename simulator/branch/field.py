"""The field of a branch: its jobs go on from a state, and all else is as the log recorded it."""

import heapq
import math
from collections import deque
from collections.abc import Callable
from functools import partial

from scheduler.core import facts
from scheduler.core.lenders import agent_of, lender_id
from scheduler.core.state import ClusterState, slot_s
from scheduler.core.stimuli import (
    Cause,
    Command,
    CurvesLearned,
    Decision,
    Input,
    LeaderStarted,
    NodeHeard,
    NodeSilent,
    Stimulus,
)
from scheduler.core.transitions import NodeState
from schemas.commands import LendNode, Rebirth, ReturnNode, ScaleGang, StartGang, StopGang
from schemas.events import (
    CommandAcknowledged,
    InferenceLoad,
    NodeBorn,
    NodeDied,
    WorkerFailed,
)
from simulator.branch.arrivals import arrivals_of
from simulator.branch.change import Change
from simulator.branch.draws import Draws
from simulator.branch.origin import Origin
from simulator.branch.owners import Shortfall, yesterday
from simulator.branch.places import Places
from simulator.branch.recorded_gangs import RecordedGangs
from simulator.branch.requests import requested
from simulator.driver import Driver

#: Between going back and serving again, in seconds; no log tells it.
WARM_UP_S = 30.0
_Act = Callable[[float], None]


class BranchField:
    """Ideal agents and owners that go on from a state, and what the log recorded from outside."""

    def __init__(self, state: ClusterState, origin: Origin, change: Change, draws: Draws) -> None:
        """Prepare; `state` is the engine's."""
        self._state, self._origin, self._change, self._draws = state, origin, change, draws
        self.places = Places(state)
        arrivals, known, rest = arrivals_of(state, origin, change.jobs)
        self._future = deque(rest)
        self._gangs = RecordedGangs(state, arrivals, known, self.places, origin.behaviour, draws)
        self._heap: list[tuple[float, int, _Act]] = []
        self._pushed = 0
        self._serves: dict[str, bool] = {}
        #: By lender, what it needed last by the log, whatever the branch makes of that.
        self._needed = {name: lender.gpus_needed for name, lender in state.lenders.items()}
        self._silent: dict[str, tuple[deque[Command], deque[tuple[Input, Cause]]]] = {}
        self._boots = {f"/agents/{node.agent}": node.bootid for node in state.nodes.values()}
        for lender in state.lenders.values():
            self._boots[lender.source] = max(lender.bootid, self._boots.get(lender.source, 0))
        self._said = max((one.sequence for one in state.lenders.values()), default=0) + 10**9
        self.short = Shortfall()
        self._driver: Driver

    # --- time ---------------------------------------------------------------------------------

    @property
    def next_s(self) -> float:
        """When something happens next."""
        heap_s = self._heap[0][0] if self._heap else math.inf
        future_s = self._future[0].at_s if self._future else math.inf
        return min(self._gangs.next_s, heap_s, future_s)

    def happen(self, now_s: float) -> None:
        """Let jobs go on, then what the log recorded happen, then what was put off until now."""
        self._gangs.happen(now_s)
        while self._future and self._future[0].at_s <= now_s:
            self._recorded(self._future.popleft(), now_s)
        while self._heap and self._heap[0][0] <= now_s:
            heapq.heappop(self._heap)[2](now_s)

    def report(self, now_s: float) -> None:
        """Send the reports of jobs that a policy is to know of."""
        self._gangs.report(now_s)

    def _then(self, at_s: float, act: _Act) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, self._pushed, act))

    # --- the beginning ------------------------------------------------------------------------

    def begin(self, driver: Driver) -> None:
        """Continue all that is under way in the state, and make the change."""
        self._driver, now_s, state = driver, driver.now_s, self._state
        driver.watches.append(self._saw)
        self._gangs.begin(self._say)
        for node in state.nodes.values():
            if state.pools[node.pool].kind != "training":
                warm_s = (node.returned_s or 0.0) + WARM_UP_S
                back = node.loan_state is None and node.state is not NodeState.DEAD
                self._serves[node.id] = back and warm_s <= now_s
                if back and warm_s > now_s:
                    self._then(warm_s, partial(self._serve, node.id))
            if node.state is NodeState.UNKNOWN:
                self._silent.setdefault(node.agent, (deque(), deque()))
        for lender in state.lenders.values():
            self.short.needs(lender.id, lender.gpus_needed, self._has(lender.id), now_s)
        self._gangs.resume(now_s)
        for command in [*state.commands.values()]:
            sent = Command(command.id, command.agent, _Sent(command.kind), command.expires_s)  # type: ignore[arg-type]
            if command.kind == "LendNode":
                due_s = max(now_s, command.sent_s + self._origin.behaviour.drain_s)
                self._then(due_s, partial(self._acknowledge, sent))
            elif command.agent not in self._silent:
                self._acknowledge(sent, now_s)
                if command.kind == "Rebirth":
                    self._say_again(command.agent)
        self._make_change(now_s)
        self._repeat(now_s)

    def _make_change(self, now_s: float) -> None:
        change, leader = self._change, self._state.leader
        if change.policy is not None or change.settings:
            settings = {**leader.settings, **change.settings}
            line, epoch = change.policy or leader.policy, leader.epoch + 1
            pinned = change.policy is not None
            began = LeaderStarted("branch", epoch, line, settings, pinned=pinned)
            self._driver.say(began, Cause("scheduler"))
        for node in change.lose:
            self._die(NodeDied(node=node, reason="lost in this branch"), now_s)
        for born in change.born(self.places):
            self._born(born, now_s)
        if change.demand != 1.0:
            for lender in [*self._state.lenders.values()]:
                self._needs(lender.id, lender.gpus_needed, now_s)
        for number, verb in enumerate(change.requests):
            self._driver.say(*requested(verb, number, self._state))

    # --- what is said -------------------------------------------------------------------------

    def _say(self, data: Input, source: str | Cause) -> None:
        if isinstance(source, str):
            self._said += 1
            boot = self._boots.get(source, 1)
            source = Cause(source, boot, self._said, self._driver.now_s)
        agent = source.source.rpartition("/")[2]
        if agent in self._silent:
            self._silent[agent][1].append((data, source))
            return
        self._driver.say(data, source)

    def _recorded(self, one: Stimulus, now_s: float) -> None:
        data = one.data
        match data:
            case InferenceLoad():
                source = one.cause.source
                lender = data.node or lender_id(self._state, data.pool, agent_of(source))
                self._needs(lender, float(data.gpus_needed), now_s, data, source)
            case NodeBorn():
                self._reborn(data, one.cause, now_s)
            case NodeDied():
                self._die(data, now_s)
            case NodeSilent():
                node = self._state.nodes.get(data.node)
                if node is not None:
                    self._driver.say(data, one.cause)
                    self._silent.setdefault(node.agent, (deque(), deque()))
            case NodeHeard():
                self._driver.say(data, one.cause)
                if (node := self._state.nodes.get(data.node)) is not None:
                    self._hear(node.agent)
            case WorkerFailed():
                if data.node not in self._change.lose:
                    self._gangs.fail(data.job, data.error, now_s)
            case LeaderStarted():
                self._lead(data, one.cause)
            case CurvesLearned():
                # What is left follows from steps, which are others here.
                if not self._origin.behaviour.tells_curves:
                    curves = {job: {**curve, "left": None} for job, curve in data.curves.items()}
                    self._driver.say(CurvesLearned(curves), one.cause)  # type: ignore[arg-type]
            case _:
                self._driver.say(data, one.cause)

    def _lead(self, data: LeaderStarted, cause: Cause) -> None:
        change = self._change
        epoch = max(data.leader_epoch, self._state.leader.epoch + 1)
        line = change.policy or data.policy
        settings = {**data.settings, **change.settings}
        pinned = data.pinned or change.policy is not None
        self._driver.say(LeaderStarted(data.leader, epoch, line, settings, pinned), cause)

    def _hear(self, agent: str) -> None:
        commands, words = self._silent.pop(agent, (deque(), deque()))
        for data, cause in words:
            self._driver.say(data, cause)
        for command in commands:
            self.obey(command, self._driver.now_s)

    # --- nodes --------------------------------------------------------------------------------

    def _born(self, born: NodeBorn, now_s: float) -> None:
        if born.node in self._change.lose and born.node in self.places.at:
            return
        self.places.add(born)
        node = self._state.nodes.get(born.node)
        serves = node is None or node.loan is None
        self._tell(born.node)  # before that, whose it is has no name of its own
        self._serve_as(born.node, serves, now_s)

    def _reborn(self, born: NodeBorn, cause: Cause, now_s: float) -> None:
        """Take a birth of the log. Gangs are lost if the agent began anew and lists none.

        Workers outlive an agent (ADR 11): one that began anew and lists gangs has lost nothing, nor
        has one that says again, in the same boot, what it has.
        """
        node = self._state.nodes.get(born.node)
        began_anew = node is not None and cause.bootid > node.bootid
        self._boots[cause.source] = cause.bootid
        self._hear(born.agent)
        if began_anew and not born.held and born.node not in self._change.lose:
            self._gangs.kill(born.node, now_s)
        self._born(born, now_s)

    def _tell(self, name: str) -> None:
        node = self._state.nodes.get(name)
        loan = node.loan if node is not None and node.loan_state not in (None, "lending") else None
        held = self._gangs.held_on(name)
        born = self.places[name].model_copy(update={"held": held, "loan": loan})
        self._say(born, f"/agents/{born.agent}")

    def _say_again(self, agent: str) -> None:
        for place in self.places.of_agent(agent):
            node = self._state.nodes.get(place.node)
            if node is not None and node.state is not NodeState.DEAD:
                self._tell(place.node)

    def _die(self, data: NodeDied, now_s: float) -> None:
        if data.node not in self.places.at:
            return
        self._gangs.kill(data.node, now_s)
        self._serve_as(data.node, False, now_s)
        self._say(data, f"/agents/{self.places[data.node].agent}")

    def _saw(self, _: Stimulus, decision: Decision) -> None:
        """End the workers of a silent node once its lease has ended; follow lenders' names."""
        for fact in decision.facts:
            if isinstance(fact, facts.LenderRenamed):
                self.short.renamed(fact.lender, fact.to, self._driver.now_s)
                if fact.lender in self._needed:
                    self._needed.setdefault(fact.to, self._needed.pop(fact.lender))
            if isinstance(fact, facts.NodeLost) and fact.node in self.places.at:
                if self.places[fact.node].agent in self._silent:
                    self._gangs.kill(fact.node, self._driver.now_s)

    # --- owners -------------------------------------------------------------------------------

    def _has(self, lender: str) -> float:
        mine = self._nodes_of(lender)
        return float(sum(one.gpu_count for one in mine if self._serves.get(one.node)))

    def _nodes_of(self, lender: str) -> list[NodeBorn]:
        """List the nodes of an edge server, a pool, or what one agent has in a pool."""
        if lender in self.places.at:
            return [self.places[lender]]
        pool, _, agent = lender.partition("@")
        return [one for one in self.places.in_pool(pool) if not agent or one.agent == agent]

    def _serve(self, node: str, now_s: float) -> None:
        known = self._state.nodes.get(node)
        if known is not None and known.loan_state is None and known.state is not NodeState.DEAD:
            self._serve_as(node, True, now_s)

    def _serve_as(self, node: str, serves: bool, now_s: float) -> None:
        if self.places[node].pool_kind == "training":
            return
        self._serves[node] = serves
        lender = self._lender_of(node)
        self.short.has(lender, self._has(lender), now_s)

    def _lender_of(self, node: str) -> str:
        place = self.places[node]
        if place.pool_kind == "edge":
            return node
        return lender_id(self._state, place.pool, place.agent)

    def _needs(
        self,
        lender: str,
        need: float,
        now_s: float,
        said: InferenceLoad | None = None,
        source: str = "",
    ) -> None:
        edge = lender in self.places.at
        if not edge and lender.partition("@")[0] not in self._state.pools:
            return
        if not (theirs := self._nodes_of(lender)):
            return
        first, known = theirs[0], self._state.lenders.get(lender)
        if not source:
            source = "" if known is None else known.source
        source = source or f"/agents/{first.agent}"
        if not edge:  # known as before, if it has not spoken since another came or went
            lender = lender_id(self._state, first.pool, agent_of(source))
        if said is not None:
            self._needed[lender] = need
        gpus, has = math.ceil(need * self._change.demand - 1e-9), self._has(lender)
        self.short.needs(lender, float(gpus), has, now_s)
        short_s = 0.0 if known is None else known.shortfall_gpu_s
        self._say(
            InferenceLoad.model_construct(
                pool=first.pool,
                node=lender if edge else None,
                requests_running=0 if said is None else said.requests_running,
                requests_waiting=0 if said is None else said.requests_waiting,
                request_rate_per_s=0.0 if said is None else said.request_rate_per_s,
                gpus_needed=gpus,
                gpus_serving=int(has),
                shortfall_gpu_s=short_s,
            ),
            source,
        )

    def _repeat(self, now_s: float) -> None:
        """After the end of the log, let owners need what they needed a day before."""
        length_s = slot_s(self._state)
        from_s = max(now_s, self._origin.record.until_s)
        slot = int(from_s // length_s) + 1
        if slot * length_s <= self._origin.until_s:
            self._then(slot * length_s, partial(self._slot, slot))

    def _slot(self, slot: int, now_s: float) -> None:
        for lender in [*self._state.lenders]:
            need = yesterday(self._origin.needs, lender, slot, self._needed.get(lender, 0.0))
            self._needs(lender, need * self._draws.need(lender, now_s), now_s)
        length_s = slot_s(self._state)
        if (slot + 1) * length_s <= self._origin.until_s:
            self._then((slot + 1) * length_s, partial(self._slot, slot + 1))

    # --- commands -----------------------------------------------------------------------------

    def obey(self, command: Command, now_s: float) -> None:
        """Carry out a command, at once or later, or keep it for an agent that is silent."""
        data = command.data
        if command.agent in self._silent:
            self._silent[command.agent][0].append(command)
            return
        if isinstance(data, LendNode):
            self._serve_as(data.node, False, now_s)
            self._then(now_s + self._origin.behaviour.drain_s, partial(self._acknowledge, command))
            return
        if isinstance(data, ReturnNode):
            self._then(now_s + WARM_UP_S, partial(self._serve, data.node))
        self._acknowledge(command, now_s)
        match data:
            case StartGang() if data.job in self._gangs.at:
                self._gangs.start(data, now_s)
            case ScaleGang() if data.job in self._gangs.at:
                self._gangs.scale(data, now_s)
            case StopGang() if data.job in self._gangs.at:
                self._gangs.stop(data, now_s)
            case Rebirth():
                self._say_again(command.agent)
            case _:
                pass

    def _acknowledge(self, command: Command, now_s: float) -> None:
        done = CommandAcknowledged.model_construct(command=command.id, outcome="done")
        self._say(done, f"/agents/{command.agent}")


class _Sent:
    """An open command of the log, without what it orders: the state has that."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
