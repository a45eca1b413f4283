"""One branch: the real engine, the one driver, and what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import orjson

from explain.tide import Tide
from scheduler.core.facts import (
    CycleRan,
    GpusReleased,
    JobCompleted,
    PolicyFailed,
    RequestRefused,
)
from scheduler.core.restore import state_from_dict
from scheduler.core.settings import settings_from
from scheduler.core.state import ClusterState, Totals
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.policies.registry import make_policy
from simulator.branch.change import Change
from simulator.branch.deeds import Deed, deeds_of
from simulator.branch.draws import Draws
from simulator.branch.field import BranchField
from simulator.branch.origin import BranchError, Origin, waiting
from simulator.branch.tides import Tides
from simulator.driver import Driver

Watch = Callable[[ClusterState, Stimulus, Decision], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a stretch of time; GPU hours, hours, and counts."""

    done: int
    mean_jct_h: float | None
    deadlines_met: int
    preemptions: int
    migrations: int
    loans: int
    reclaims: int
    reclaims_late: int
    used_gpu_h: float
    lent_gpu_h: float
    short_gpu_h: float
    waiting: int


@dataclass(slots=True)
class Branch:
    """A branch that was run."""

    state: ClusterState
    deeds: list[Deed]
    outcome: Outcome
    at_record_end: Outcome  #: The same, until the log ends that it began from.
    violations: int
    #: By job that was done, when, and its deadline if it has one.
    ended: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    #: By node that gangs left, when its last one first did.
    emptied: dict[str, float] = field(default_factory=dict)
    tide: list[Tide] = field(default_factory=list)


def outcome(
    before: Totals, after: ClusterState | Totals, short_gpu_s: float, waiting: int
) -> Outcome:
    """Say what came of the time between two states."""
    ends = after.totals if isinstance(after, ClusterState) else after
    done = ends.jobs_completed - before.jobs_completed
    jct_s = ends.jct_s - before.jct_s
    met = ends.deadlines_met - before.deadlines_met
    return Outcome(
        done=done,
        mean_jct_h=jct_s / done / 3600.0 if done else None,
        deadlines_met=met,
        preemptions=ends.preemptions - before.preemptions,
        migrations=ends.migrations - before.migrations,
        loans=ends.loans_granted - before.loans_granted,
        reclaims=ends.loans_reclaimed - before.loans_reclaimed,
        reclaims_late=ends.reclaims_late - before.reclaims_late,
        used_gpu_h=(ends.training_gpu_s - before.training_gpu_s) / 3600.0,
        lent_gpu_h=(ends.loaned_gpu_s - before.loaned_gpu_s) / 3600.0,
        short_gpu_h=short_gpu_s / 3600.0,
        waiting=waiting,
    )


def recorded(origin: Origin) -> Outcome:
    """Say what the log tells of the time of the branch, as far as it goes."""
    record = origin.record
    before = state_from_dict(orjson.loads(origin.state)).totals
    return outcome(before, record.totals, record.short_gpu_s, record.waiting)


#: The least and the most; None of what no run has.
Range = tuple[float, float] | None


def ranges(outcomes: Sequence[Outcome], less: Sequence[Outcome] | None = None) -> dict[str, Range]:
    """Give the range of each part of outcomes of several runs.

    Args:
        outcomes: One of each run.
        less: What is taken from them, run by run: then ranges are those of the differences.
    """
    given = [asdict(one) for one in outcomes]
    taken = [dict.fromkeys(one, 0) for one in given] if less is None else list(map(asdict, less))
    found: dict[str, Range] = {}
    for name in given[0]:
        pairs = [(mine[name], other[name]) for mine, other in zip(given, taken, strict=True)]
        values = [mine - other for mine, other in pairs if None not in (mine, other)]
        found[name] = (min(values), max(values)) if values else None
    return found


def branch(
    origin: Origin,
    change: Change | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> Branch:
    """Go on from a moment of a log, as it was or with a change.

    Args:
        origin: The moment.
        change: What is done otherwise; None: nothing, and this is the control.
        seed: Of what is drawn, alike in all branches of a seed; 0: nothing is.
        watch: Shown the state after each decision.

    Raises:
        BranchError: the change cannot be, a request of it is refused, or its policy cannot decide.
    """
    change = change or Change()
    state = state_from_dict(orjson.loads(origin.state))
    if not state.leader.policy:
        raise BranchError("entry", "nobody leads the cell at this entry yet; name a later one")
    change.check(state)
    before = state_from_dict(orjson.loads(origin.state)).totals
    field_ = BranchField(state, origin, change, Draws(seed))
    driver = Driver(
        make_policy(state.leader.policy),
        field_,
        settings_from(state.leader.settings),
        state.leader.policy,
        skips=origin.behaviour.tells_curves,
        policies=make_policy,
        state=state,
    )
    seen, tides = _Seen(state, change.policy), Tides(origin.at_s, origin.until_s)
    tides.look(state)
    driver.watches.append(seen.saw)
    driver.watches.append(lambda _stimulus, _decision: tides.look(state))
    if watch is not None:
        driver.watches.append(lambda stimulus, decision: watch(state, stimulus, decision))
    driver.resume()
    for refused in seen.refused:  # nothing else was asked for until now
        raise BranchError("requests", f"{refused.field}: {refused.reason}")
    middle_s = min(max(origin.record.until_s, origin.at_s), origin.until_s)
    outcomes = []
    for end_s in (middle_s, origin.until_s):
        driver.advance(end_s)
        state.advance(end_s)
        waits = waiting(state)
        outcomes.append(outcome(before, state, field_.short.until(end_s), waits))
    driver.check()
    tides.close(state)
    return Branch(
        state,
        seen.deeds,
        outcomes[1],
        outcomes[0],
        driver.violations,
        ended=seen.ended,
        emptied=seen.emptied,
        tide=tides.rows,
    )


class _Seen:
    """Takes note of what is done."""

    def __init__(self, state: ClusterState, policy: str | None) -> None:
        self._state, self._untried = state, policy
        self.deeds: list[Deed] = []
        self.refused: list[RequestRefused] = []
        self.ended: dict[str, tuple[float, float | None]] = {}
        self.emptied: dict[str, float] = {}

    def saw(self, stimulus: Stimulus, decision: Decision) -> None:
        state, at_s = self._state, stimulus.at_s
        for fact in decision.facts:
            if self._untried is not None and isinstance(fact, PolicyFailed):
                why = f"{self._untried} cannot decide: {fact.error}; choose another"
                raise BranchError("policy", why)
            if isinstance(fact, CycleRan) and any(job.end_s is None for job in state.jobs.values()):
                self._untried = None  # it can; a failure from now on is part of the branch
            if isinstance(fact, JobCompleted):
                self.ended[fact.job] = at_s, state.jobs[fact.job].deadline_s
            elif isinstance(fact, GpusReleased) and not any(state.nodes[fact.node].holder):
                self.emptied.setdefault(fact.node, at_s)
        self.deeds += deeds_of(at_s, state.number - 1, decision.facts)
        self.refused += [fact for fact in decision.facts if isinstance(fact, RequestRefused)]
