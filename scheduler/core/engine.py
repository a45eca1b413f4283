"""The decision core: `Engine.handle(stimulus) -> Decision`. Pure and synchronous.

    policy     decides what should be           (scheduler/policies)
    reconcile  turns that into what is safe now (scheduler/core/reconcile)
    evolve     folds what was decided           (scheduler/core/evolve)

Time is a field of the stimulus. Ids derive from the cell, the leader's epoch, the
number of the stimulus and an index.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from scheduler.core import (
    drains,
    due,
    facts,
    freezes,
    observe,
    observe_fleet,
    pauses,
    recalls,
    requests,
)
from scheduler.core.agenda import Agenda
from scheduler.core.carry_out import advance
from scheduler.core.changed_claims import ChangedClaims
from scheduler.core.leases import kept_leases, lease_end_s
from scheduler.core.leave import ask
from scheduler.core.loans import clear_reclaimed
from scheduler.core.reconcile import adopt
from scheduler.core.request_settings import chosen_policy
from scheduler.core.settings import Settings, settings_from
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import (
    Cause,
    CurvesLearned,
    Decision,
    LeaderStarted,
    LengthsLearned,
    NodeHeard,
    NodeSilent,
    Requested,
    Stimulus,
    SubmittedAhead,
    TimePassed,
)
from scheduler.core.transitions import InvalidTransition, NodeState
from scheduler.core.turn import Turn
from scheduler.core.view import View
from scheduler.policies.checked import Names, checked
from scheduler.policies.interface import Plan, Policy, Snapshot
from scheduler.policies.registry import make_policy
from schemas import events

#: What decides in a cycle whose own policy takes too long: simple, and fast at any size.
STAND_IN = "fifo"
#: After these claims may be ready, or can never be: GPUs, gangs or nodes have changed.
_FREEING = frozenset(
    {
        facts.GpusReleased,
        facts.GangRunning,
        facts.JobMigrating,
        facts.LoanGranted,
        facts.NodeJoined,
        facts.NodeReturned,
        facts.NodeSilenced,
        facts.LoanLost,
        facts.TargetDropped,
        facts.NodeCordoned,
        facts.DrainStarted,
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking: a plan, or why there is none."""

    plan: Plan | Exception
    cut: str = ""  #: Why the leader's policy was not heard, and another asked in its place.

    def made(self) -> Plan:
        """Give the plan, or raise why there is none."""
        if isinstance(self.plan, Exception):
            raise self.plan
        return self.plan


@dataclass(frozen=True, slots=True)
class Question:
    """A policy to be asked. Any thread may answer: it needs nothing but the snapshot."""

    policy: Policy
    snapshot: Snapshot
    names: Names
    cut: str = ""  #: Why this policy is not to be asked, but the one that stands in.

    def answer(self) -> Answer:
        """Ask."""
        policy = make_policy(STAND_IN) if self.cut else self.policy
        try:
            # While no node is in contact nothing can be decided: no policy need allow for that.
            plan = policy.plan(self.snapshot) if self.snapshot.nodes.ids else Plan()
            return Answer(checked(plan, self.names), self.cut)
        except Exception as error:  # noqa: BLE001  a policy may be anybody's; the cell goes on
            return Answer(error, self.cut)

    def cut_short(self, why: str) -> "Question":
        """Give the same question to the policy that stands in; `TimePassed.cut` records why."""
        return replace(self, cut=why)


class Engine:
    """Decides for one cell.

    A plan is checked before anything of it is done. If adopting it fails in spite of that, there
    is a bug in the engine; what was decided until then stands, since each fact is folded as it is
    recorded and one that cannot follow changes nothing. The failure is recorded as the policy's:
    raised again, it would end every life of the scheduler at the same entry.
    """

    #: Raise what no fold accepts while a plan is adopted: for tests, which shall find such bugs.
    strict: ClassVar[bool] = False

    def __init__(self, state: ClusterState, make_policy: Callable[[str], Policy]) -> None:
        """Go on from a state; the policy is the one that the state's leader named.

        It is made when it is first asked: a leader that takes over may name another, and not know
        that one.
        """
        self.state = state
        self._make_policy = make_policy
        self._view = View()
        self._policy: Policy | None = None
        self._settings = Settings()
        self._agenda = Agenda(state, self._settings)
        self._changed_claims = ChangedClaims()
        self._turn = self._new_turn()  # the present one
        self._seen = 0  # so many of its facts are known to view and agenda
        self._timed = False  # it is of a cycle
        self._names: Names | None = None  # of the last snapshot that a policy was asked about
        if state.leader.policy:
            self._adopt_settings()

    def _adopt_leader(self) -> None:
        self._policy = self._make_policy(self.state.leader.policy)
        self._adopt_settings()

    def _adopt_settings(self) -> None:
        self._settings = settings_from(self.state.leader.settings)
        self._agenda = Agenda(self.state, self._settings)

    def _new_turn(self) -> Turn:
        return Turn(self.state, self._settings, self._changed_claims, self._make_policy)

    def _see(self) -> None:
        """Show view and agenda what was folded since, before they are read."""
        if new := self._turn.facts[self._seen :]:
            self._seen += len(new)
            self._view.saw(new)
            self._agenda.saw(new)

    @property
    def settings(self) -> Settings:
        """The limits in force."""
        return self._settings

    @property
    def wake_s(self) -> float | None:
        """When time alone will have made something due; None while nothing is."""
        if self.state.starts_deferred:
            return self.state.now_s
        ask_s = self._ask_s
        if ask_s is None:
            return None
        state = self.state
        standing = state.standing
        if not (standing.drains or standing.pauses or standing.freezes):
            return ask_s
        ends_s = (drains.due_s(state), pauses.due_s(state), freezes.due_s(state))
        return min([ask_s, *(end_s for end_s in ends_s if end_s is not None)])

    @property
    def _ask_s(self) -> float | None:
        """When the policy is to be asked."""
        state = self.state
        if not (state.nodes or state.jobs):
            return None
        if state.dirty and not self._settings.rounds_only:
            return min(state.next_cycle_s, state.last_cycle_s + self._settings.cycle_gap_s)
        return state.next_cycle_s

    def handle(self, stimulus: Stimulus) -> Decision:
        """Decide on one stimulus.

        Raises:
            InvalidTransition: a bug, but not while a plan is adopted, see the class; the stimulus
                must not be taken further.
        """
        question = self.begin(stimulus)
        return self.finish(None if question is None else question.answer())

    def begin(self, stimulus: Stimulus) -> "Question | None":
        """Do the first part of `handle`: all until the policy is asked, if it is.

        Returns:
            What to ask; `finish` takes the answer. None if nothing is asked now.

        Raises:
            InvalidTransition: as `handle`.
        """
        state = self.state
        state.advance(stimulus.at_s)
        self._see()
        turn = self._turn = self._new_turn()
        self._seen = 0
        self._timed = isinstance(stimulus.data, TimePassed)
        if not isinstance(stimulus.data, TimePassed):
            self._take(turn, stimulus)
            return None
        due.overdue(turn, self._agenda, self._see)
        pauses.end_pauses(turn)
        freezes.advance(turn)
        recalls.advance(turn)
        clear_reclaimed(turn)
        advance(turn)
        drains.advance(turn)
        ask_s = self._ask_s
        if ask_s is None or state.now_s < ask_s or not state.leader.policy:
            return None
        if self._policy is None:
            self._policy = self._make_policy(state.leader.policy)
        snapshot = self.snapshot()
        self._names = Names(snapshot, self._view.named(), self._names)
        return Question(self._policy, snapshot, self._names, stimulus.data.cut)

    def finish(self, answer: "Answer | None") -> Decision:
        """Do the rest of `handle`.

        Raises:
            InvalidTransition: as `handle`.
        """
        turn, state = self._turn, self.state
        if answer is not None:
            self._adopt(turn, answer)
        elif not self._timed and not _FREEING.isdisjoint(map(type, turn.facts)):
            clear_reclaimed(turn, anew=False)
            advance(turn, anew=False)
            drains.advance(turn)
        self._changed_claims.end_turn(state, turn.facts)
        state.number += 1
        return Decision(tuple(turn.facts), tuple(turn.commands), tuple(turn.reasons), self.wake_s)

    def snapshot(self) -> Snapshot:
        """Give the columns that a policy would see now."""
        self._see()
        return self._view.snapshot(self.state)

    def catch_up(self) -> None:
        """Do what the next cycle would have to do first; call it where nobody waits for a plan.

        It changes no decision: what is kept beside the state follows from the state.
        """
        self._see()
        self._turn, self._seen = self._new_turn(), 0  # the last one is freed, with its facts
        self._view.catch_up(self.state)
        self._agenda.catch_up()

    def _take(self, turn: Turn, stimulus: Stimulus) -> None:
        data = stimulus.data
        if isinstance(data, LeaderStarted):
            kept = kept_leases(turn.state, settings_from(data.settings))
            line = chosen_policy(turn, data)
            settings = {**data.settings, **kept}
            turn.emit(facts.LeaderChanged(data.leader, data.leader_epoch, line, settings))
            self._adopt_leader()
        elif (report := _REPORTS.get(type(data))) is not None:
            before = turn.state.leader.policy
            report(turn, data)
            if turn.state.leader.policy != before:
                self._adopt_leader()
        else:
            _SENT[type(data)](turn, data, stimulus.cause)

    def _adopt(self, turn: Turn, answer: "Answer") -> None:
        """Make what was answered the plan of this cycle."""
        name = "" if self._policy is None else self._policy.name
        if answer.cut:
            turn.emit(facts.PolicyFailed(name, answer.cut))
        try:
            adopt(turn, self._view.explained(answer.made()))
        except Exception as error:  # a policy may be anybody's; the cell goes on
            if self.strict and isinstance(error, InvalidTransition):
                raise
            why = f"{type(error).__name__}: {error}"[:500].encode(errors="replace").decode()
            turn.emit(facts.PolicyFailed(name, why))
        clear_reclaimed(turn)
        turn.emit(facts.CycleRan(name, self._settings.next_round_s(turn.state.now_s)))
        recalls.clear_recalled(turn)
        drains.advance(turn)


def _silent(turn: Turn, data: NodeSilent) -> None:
    node = turn.state.nodes.get(data.node)
    if node is not None and node.state is NodeState.ALIVE:
        end_s = lease_end_s(turn.state, turn.settings, node, data.last_heard_s)
        turn.emit(facts.NodeSilenced(node.id, max(end_s, turn.state.now_s)))


def _heard(turn: Turn, data: NodeHeard) -> None:
    node = turn.state.nodes.get(data.node)
    if node is None or node.state is NodeState.ALIVE:
        return
    if node.state is NodeState.UNKNOWN:
        turn.emit(facts.NodeReturned(node.id))
    else:
        ask(turn, node, "your lease ended while you were not heard")


#: What takes the other stimuli in, by their kinds; the latter, with the message it came in.
_REPORTS: dict[type[Any], Callable[[Turn, Any], None]] = {
    NodeSilent: _silent,
    NodeHeard: _heard,
    CurvesLearned: observe.learned,
    LengthsLearned: observe.lengths_learned,
    Requested: requests.requested,
    events.WorkerStarted: observe.worker_started,
    events.WorkerStopped: observe.worker_left,
    events.WorkerFailed: observe.worker_left,
    events.CheckpointCommitted: observe.checkpoint_saved,
    events.OutputsKept: observe.outputs_kept,
    events.CheckpointFailed: observe.checkpoint_missed,
    events.JobSubmitted: observe.submitted,
    SubmittedAhead: observe.submitted,
    events.JobCancelled: observe.cancelled,
}
_SENT: dict[type[Any], Callable[[Turn, Any, Cause], None]] = {
    events.CommandAcknowledged: observe.acknowledged,
    events.JobProgressed: observe.progressed,
    events.InferenceLoad: observe_fleet.load,
    events.NodeBorn: observe_fleet.node_born,
    events.NodeDied: observe_fleet.node_died,
}
