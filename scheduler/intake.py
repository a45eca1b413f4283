"""From records to stimuli: decode once, check who speaks, take each message once, reduce.

What cannot be read or is not its sender's to say becomes a dead letter with the field named, is
counted, and delays nothing.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bus.allowance import Allowance, Rates
from bus.contract import Message, Record
from bus.letters import dead_letter
from scheduler.core.cell_moments import submission_in_cell_time
from scheduler.core.state import ClusterState, Node
from scheduler.core.stimuli import Cause, Stimulus
from scheduler.core.transitions import NodeState
from scheduler.dedupe import SOURCES_MAX, Dedupe, Verdict
from scheduler.gateways import Gateways
from scheduler.relevance import stimulus_of
from scheduler.request_intake import RequestIntake
from scheduler.service_options import SOURCE_RATES
from scheduler.speakers import AGENT_PREFIX, Wrong, account_of, out_of_turn
from scheduler.telemetry import Telemetry
from schemas.codec import EventEnvelope, Rejected, RequestEnvelope, decode_event
from schemas.envelope import moment
from schemas.events import (
    JobCancelled,
    JobSubmitted,
    LinkLost,
    LinkOpened,
    NodeBorn,
    NodeMeasured,
)
from schemas.topics import EVENTS, REQUESTS, TELEMETRY

#: Telemetry is folded by so many: what is let go of soon never burdens the garbage collector,
#: which doubled the cost of a batch of 2,000.
_FOLD = 64
#: Of what was refused, the newest so many are kept for whoever tells operators of it.
_REFUSED_KEPT = 20
#: An event whose own clock is further ahead than this is refused: its figures have no age.
FUTURE_S = 3600.0


@dataclass(slots=True)
class Batch:
    """What a batch of records comes to."""

    candidates: list[tuple[Record, EventEnvelope]] = field(default_factory=list)
    requests: list[tuple[Record, RequestEnvelope]] = field(default_factory=list)
    dead: list[Message] = field(default_factory=list)
    #: Word of agents' links: those opened, and by agent the loss that nothing it said came after.
    opened: list[LinkOpened] = field(default_factory=list)
    lost: dict[str, LinkLost] = field(default_factory=dict)


#: What an intake has counted, by name, and of requests by verb and outcome; what it refused.
Noted = tuple[Counter[str], Counter[tuple[str, str]], deque[tuple[Record, str, str]]]


class Intake:
    """Reads records for one cell."""

    def __init__(
        self,
        cell: str,
        group: str,
        dedupe: Dedupe,
        rates: Rates = SOURCE_RATES,
        *,
        gateways: Gateways | None = None,
        accept_unsigned: bool = True,
        behind_s: float = 0.0,
    ) -> None:
        """Go on with what was taken before.

        Args:
            cell: The cell.
            group: Who reads, as dead letters name it.
            dedupe: What was taken before.
            rates: How much each source may say.
            gateways: Who signs people's requests; None: the log is a file, and nobody does.
            accept_unsigned: Whether people may submit and cancel by events, too.
            behind_s: For how long nobody has read what is said.
        """
        self.cell = cell
        self.requests = RequestIntake(cell, gateways)
        self._accept_unsigned = accept_unsigned
        self._allowance = Allowance(rates, behind_s)
        self.group = group
        self.dedupe = dedupe
        self.telemetry = Telemetry()
        self.counts: Counter[str] = Counter()
        #: What was refused of late, with field and reason; to be taken from here by who tells.
        self.refused: deque[tuple[Record, str, str]] = deque(maxlen=_REFUSED_KEPT)
        #: By source, boot and sequence of its newest event: telemetry goes another way.
        self._overtaken: set[str] = set()  # births of this batch
        self._newest: dict[str, tuple[int, int]] = {}
        self._again = False  #: What is read next was counted against its sources before.
        self.spoke: list[str] = []  #: Agents heard in the newest batch.
        #: How far our clock is behind the bus's, by all that the newest batch had, in seconds.
        self.behind_s = 0.0
        #: Agents that measured, in the newest batch, a node which another had when it was given up.
        self.successors: dict[str, str] = {}

    def read(
        self,
        records: Sequence[Record],
        state: ClusterState,
        now_s: float,
        latest_s: float | None = None,
    ) -> Batch:
        """Decode and judge a batch; telemetry is folded here and goes no further.

        Args:
            records: The batch.
            state: The cell's.
            now_s: The time.
            latest_s: The latest that it may be, if that is not sure; whoever says that it is much
                later is wrong.
        """
        batch, gaps = Batch(), self.dedupe.gaps
        self._overtaken.clear()
        self.successors.clear()
        measured: list[tuple[float, NodeMeasured]] = []
        node: Node | None = None
        taken: dict[str, None] = {}
        if records:
            stored_s = min(record.time_s for record in records)
            self.behind_s = max(0.0, stored_s - (latest_s or now_s))
        for record in records:
            if record.value is None:
                continue
            if record.topic == REQUESTS.name:
                self._ask(batch, record, now_s)
                continue
            envelope = decode_event(record.value)
            if isinstance(envelope, Rejected):
                why = f"{envelope.kind}: {envelope.reason}"
                batch.dead += self.bury(record, "", now_s, envelope.field, why)
                continue
            data, source, said_s = envelope.data, envelope.source, envelope.time_s
            account = account_of(source)
            if not self._may_say(account, len(record.value), now_s):
                self.counts["over_rate"] += 1
                why = "says more than one may; say it again, slower"
                batch.dead += self.bury(record, source, now_s, "source", why)
                continue
            # The broker's clock may be right where this machine's is far behind.
            wrong = self._misplaced(envelope, said_s, max(latest_s or now_s, record.time_s))
            if isinstance(data, LinkOpened | LinkLost) and wrong is None:
                self._link(batch, data)
                continue
            sequence = int(envelope.sequence)
            if wrong is not None:
                batch.dead += self.bury(record, source, now_s, *wrong)
                continue
            if isinstance(data, NodeMeasured):
                node = state.nodes.get(data.node)
                if node is None:
                    self.counts["unknown_nodes"] += 1  # its birth may be behind it
                elif source != AGENT_PREFIX + node.agent:
                    if node.state is NodeState.DEAD:
                        self.successors[source.removeprefix(AGENT_PREFIX)] = node.id
                    why = f"{data.node} is {node.agent}'s"
                    batch.dead += self.bury(record, source, now_s, "data.node", why)
                    continue
            verdict = self.dedupe.take(
                source,
                envelope.bootid,
                sequence,
                min(said_s, now_s),
                telemetry=record.topic == TELEMETRY.name,
            )
            if verdict is not Verdict.FRESH:
                self.counts[verdict] += 1
                if verdict is Verdict.DUPLICATE:
                    continue
                if verdict is Verdict.FORGOTTEN:
                    batch.dead += self.bury(record, source, now_s, "time", self._forgotten(source))
                    continue
            taken[source] = None
            if batch.lost:
                batch.lost.pop(source.removeprefix(AGENT_PREFIX), None)
            if isinstance(data, NodeMeasured):
                if node is None:
                    continue
                measured.append((said_s, data))
                if len(measured) == _FOLD:
                    self.telemetry.fold(measured)
                    measured.clear()
            else:
                self._note_order(record, envelope)
                batch.candidates.append((record, envelope))
        self._again = False
        self.counts["events"] += len(records)
        self.counts["gaps"] += self.dedupe.gaps - gaps
        self.spoke = [
            source.removeprefix(AGENT_PREFIX) for source in taken if source.startswith(AGENT_PREFIX)
        ]
        if measured:
            self.telemetry.fold(measured)
        return batch

    def _may_say(self, account: str, size: int, now_s: float) -> bool:
        return self._again or self._allowance.take(account, size, now_s)

    def _ask(self, batch: Batch, record: Record, now_s: float) -> None:
        """Judge a request; what may be taken goes on to the engine."""
        asked = self.requests.read(record)
        outcome, wrong, size = asked.outcome, asked.wrong, len(record.value or b"")
        if not self._may_say(account_of(asked.source), size, now_s):
            self.counts["over_rate"] += 1
            outcome, wrong = "over_rate", ("source", "says more than one may; say it again, slower")
        if wrong is not None or asked.envelope is None:
            verb = "" if asked.envelope is None else asked.envelope.data.args.verb
            self.requests.counts[verb, outcome] += 1
            batch.dead += self.bury(record, asked.source, now_s, *(wrong or ("", "is empty")))
        else:
            batch.requests.append((record, asked.envelope))

    def _link(self, batch: Batch, data: LinkOpened | LinkLost) -> None:
        """Note word of a link. Its session orders it, so that it needs no sequence of its own."""
        self.counts["links"] += 1
        if isinstance(data, LinkOpened):
            batch.opened.append(data)
        else:
            batch.lost[data.agent] = data

    def noted(self) -> Noted:
        """Give what was counted and refused so far."""
        return self.counts.copy(), self.requests.counts.copy(), self.refused.copy()

    def note_again(self, noted: Noted) -> None:
        """Go back to what was counted and refused then: what came since does not count."""
        self.counts, self.requests.counts, self.refused = noted

    def go_back(self, dedupe: Dedupe) -> None:
        """Forget what a tick that did not count has taken."""
        self.dedupe, self._again = dedupe, True
        self._newest.clear()

    @property
    def newest(self) -> dict[str, tuple[int, int]]:
        """Boot and number of the newest event of each agent: only agents say who was born."""
        return {one: at for one, at in self._newest.items() if one.startswith(AGENT_PREFIX)}

    def heard_before(self, newest: Mapping[str, tuple[int, int]]) -> None:
        """Go on from what leaders before heard last of each source: boot and number of an event."""
        self._newest = dict(newest)

    def _note_order(self, record: Record, envelope: EventEnvelope) -> None:
        if record.topic != EVENTS.name:
            return
        source, bootid, sequence = envelope.source, envelope.bootid, int(envelope.sequence)
        boot, newest = self._newest.pop(source, (bootid, -1))
        is_old = bootid < (self.dedupe.boot(source) or 0)
        if is_old or (bootid == boot and sequence < newest):
            if newest >= 0:  # else nothing newer of it came as an event
                self._newest[source] = boot, newest
            if isinstance(envelope.data, NodeBorn):
                self._overtaken.add(envelope.id)
            return
        self._newest[source] = bootid, sequence
        if len(self._newest) > SOURCES_MAX:
            del self._newest[next(iter(self._newest))]

    def _forgotten(self, source: str) -> str:
        until = moment(self.dedupe.forgotten_s(source)).isoformat()
        return f"is not after {until}: who said it is not known since, so it may have been taken"

    def stimulus(
        self, state: ClusterState, envelope: EventEnvelope, now_s: float, ahead_s: float
    ) -> Stimulus | None:
        """Give the stimulus of an event, None if the engine need not know.

        Args:
            state: The cell's.
            envelope: The event.
            now_s: The time of the cell.
            ahead_s: How far that is ahead of the clock, by which a job's deadline is said.
        """
        data = stimulus_of(state, envelope.data, now_s, envelope.source)
        if data is None:
            return None
        if isinstance(data, NodeBorn):
            node = state.nodes.get(data.node)
            if envelope.id in self._overtaken and node is not None:
                if node.state is not NodeState.DEAD:
                    # What it says was held has been contradicted by what overtook it.
                    self.counts["births_overtaken"] += 1
                    return None
            self.dedupe.forgive(envelope.source, envelope.bootid, int(envelope.sequence))
        elif isinstance(data, JobSubmitted):
            data = submission_in_cell_time(data, now_s, ahead_s)
        said_s, sequence = min(envelope.time_s, now_s), int(envelope.sequence)
        return Stimulus(now_s, data, Cause(envelope.source, envelope.bootid, sequence, said_s))

    def _misplaced(self, envelope: EventEnvelope, said_s: float, latest_s: float) -> Wrong | None:
        """Find what makes a well-formed event not its sender's to send here."""
        if envelope.cell != self.cell:
            return "cell", f"is {envelope.cell}, this is {self.cell}"
        if said_s > latest_s + FUTURE_S:
            return "time", "is more than an hour ahead of the clocks of scheduler and bus"
        if not self._accept_unsigned and isinstance(envelope.data, JobSubmitted | JobCancelled):
            return "type", f"{envelope.type} is not taken as an event: ask for it by a request"
        return out_of_turn(envelope)

    def bury(
        self, record: Record, source: str, now_s: float, field_name: str, reason: str
    ) -> list[Message]:
        """Count a record as refused; give its dead letter, none if its source has had enough."""
        self.refused.append((record, field_name, reason))
        if not self._allowance.take_letter(account_of(source), now_s):
            self.counts["letters_dropped"] += 1
            return []
        self.counts["dead_letters"] += 1
        return [dead_letter(record, field_name, reason, self.group)]
