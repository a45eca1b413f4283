"""Decides on one batch of records of a tick, each in the state that those before it have made.

A record becomes a decision, or a dead letter that names its field, or nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bus.clock import Clock
from bus.contract import Message, Record
from scheduler.core.cell_moments import in_cell_time
from scheduler.core.facts import RequestRefused, SubmissionRefused
from scheduler.core.rights import Wrong, forbidden
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Decision, Stimulus
from scheduler.estimator.guard import Learning
from scheduler.intake import Intake
from scheduler.log_readers import LogReaders
from scheduler.node_admission import as_joined, unlisted
from scheduler.request_intake import unwanted
from scheduler.service_config import ServiceConfig
from scheduler.speakers import foreign
from schemas.codec import EventEnvelope, RequestEnvelope
from schemas.commands import AnyCommand
from schemas.events import JobSubmitted, NodeBorn
from schemas.programs import wrong_workdir

#: Decides, and adds to the messages what is to be stored of it.
Decide = Callable[[Stimulus, list[Message]], Decision]


@dataclass(slots=True)
class BatchDecider:
    """Decides on the records of a batch, one after another."""

    config: ServiceConfig
    clock: Clock
    intake: Intake
    learning: Learning
    state: ClusterState
    now_s: float
    ahead_s: float  #: How far that is ahead of the clock.
    decide: Decide
    messages: list[Message]  #: What is to be stored with the tick.
    #: By topic and offset, records on which deciding has failed, and how.
    poison: Mapping[tuple[str, int], str]
    log_readers: LogReaders
    #: Makes a command of what an agent is told that no journal has, at this time.
    aside: Callable[[str, AnyCommand, float], Message]
    decided: list[tuple[Stimulus, Decision]] = field(default_factory=list)

    def event(self, record: Record, envelope: EventEnvelope) -> None:
        """Decide on what an agent or a tenant says."""
        state, now_s = self.state, self.now_s
        wrong = self._poisoned(record) or foreign(state, envelope)
        if wrong is None and isinstance(envelope.data, NodeBorn):
            other = unlisted(self.config.pools, state, envelope.data)
            if other is not None:
                self._bury(record, envelope.source, other)
                if (known := as_joined(state, envelope.data)) is None:
                    return
                envelope = envelope.model_copy(update={"data": known})
        if wrong is None and isinstance(envelope.data, JobSubmitted):
            wrong = _nowhere(envelope.data)
        if wrong is not None:
            self._bury(record, envelope.source, wrong)
            return
        self.learning.hear(state, envelope.data, now_s)
        stimulus = self.intake.stimulus(state, envelope, now_s, self.ahead_s)
        if stimulus is None:
            return
        for fact in self._decide(stimulus).facts:
            if isinstance(fact, SubmissionRefused):
                self._bury(record, envelope.source, ("data.job", fact.reason))

    def request(self, record: Record, envelope: RequestEnvelope) -> None:
        """Decide on what a person asks for."""
        state, counts = self.state, self.intake.requests.counts
        clock_s, latest_s = self.now_s - self.ahead_s, self.clock.latest_s()
        request = in_cell_time(envelope.data, self.now_s, self.ahead_s)
        verb = request.args.verb
        if (wrong := self._poisoned(record)) is not None:
            counts[verb, "failed"] += 1
        elif (untaken := unwanted(state, request, clock_s, latest_s)) is not None:
            outcome, wrong = untaken
            counts[verb, outcome] += 1
        elif forbidden(state, request) is not None:
            pass  # the engine refuses it: a stranger is not told how many read what
        elif (wrong := self.log_readers.unready(request, self.now_s)) is not None:
            counts[verb, "over_rate"] += 1
        if wrong is not None:
            self._bury(record, envelope.source, wrong)
            return
        self.learning.hear(state, request, self.now_s)
        asked = self.intake.requests.stimulus(record, envelope, self.now_s, self.ahead_s)
        decision = self._decide(asked)
        refused = any(isinstance(fact, RequestRefused) for fact in decision.facts)
        counts[verb, "refused" if refused else "done"] += 1
        if not refused:
            for agent, order in self.log_readers.orders(state, request, self.now_s):
                self.messages.append(self.aside(agent, order, self.now_s))

    def _decide(self, stimulus: Stimulus) -> Decision:
        decision = self.decide(stimulus, self.messages)
        self.decided.append((stimulus, decision))
        return decision

    def _bury(self, record: Record, source: str, wrong: Wrong) -> None:
        self.messages += self.intake.bury(record, source, self.clock.now_s(), *wrong)

    def _poisoned(self, record: Record) -> Wrong | None:
        if (error := self.poison.get((record.topic, record.offset))) is None:
            return None
        return "data", f"the scheduler cannot take it: {error}; please report this"


def _nowhere(job: JobSubmitted) -> Wrong | None:
    """Find a program that would begin in a folder of no machine."""
    workdir = None if job.program is None else job.program.workdir
    wrong = wrong_workdir(workdir or "")
    return ("data.program.workdir", wrong) if wrong else None
