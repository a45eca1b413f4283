"""One cell of a scheduler process: its terms as leader, and the metrics that outlive a term."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from bus.clock import Clock
from bus.contract import Bus, BusError, Fenced, Record, Unreadable
from scheduler.core import facts
from scheduler.core.stimuli import Decision, LeaderStarted, Stimulus
from scheduler.outgoing import Signs
from scheduler.request_intake import FORGED
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from services.cell_samples import state_samples, use_samples
from services.decisions import tell_decisions
from services.logs import Log
from services.metrics import Sample, histogram
from services.probe import ANSWER_S
from services.refusals import Refusals

#: Measurements that are older say nothing of now; agents measure once a minute.
MEASURED_S = 300.0
#: A clock that is no further behind the bus's is within what leases allow for.
BEHIND_S = 60.0
#: Who has led for so long can read its log again; a damaged place is met sooner.
READS_S = 60.0
_Duration = Literal["decision", "transaction", "reclaim", "queueing"]
_find_source = re.compile(rb'"source"\s*:\s*"([^"\\]*)"').search


class CellLeadership:
    """A cell that this process may lead, again and again."""

    def __init__(
        self,
        config: ServiceConfig,
        open_bus: Callable[[], Bus],
        clock: Clock,
        signer: Signs | None,
        log: Log,
    ) -> None:
        self.config = config
        self._open_bus, self._clock, self._signer = open_bus, clock, signer
        self.log = log.bind(cell=config.cell)
        self._tell = tell_decisions(self.log)
        self.service: SchedulerService | None = None
        self.takeovers = 0
        self._before: Counter[str] = Counter()
        self._asked_before: Counter[tuple[str, str]] = Counter()
        self._lag = 0
        self._trouble = self._unreadable = ""
        self._led_since_s = 0.0
        self._reclaims: dict[str, float] = {}
        self._refusals = Refusals(self.log, "event refused")
        self._durations = {
            name: histogram(f"tidegate_{name}_seconds", config.cell) for name in get_args(_Duration)
        }

    @property
    def leads(self) -> bool:
        """Whether this process leads the cell, as far as it knows."""
        service = self.service
        return service is not None and service.leads

    def new_term(self) -> "LeaderTerm":
        """Make one term as leader."""
        bus = self._open_bus()
        service = SchedulerService(
            bus,
            self._clock,
            self.config,
            watch=self._watch,
            signer=self._signer,
            stopwatch=self._time,
        )
        return LeaderTerm(self, bus, service)

    def cannot(self, why: str) -> None:
        """Log that this process cannot lead, once for each reason."""
        if why != self._unreadable:
            self._unreadable = why
            self.log.error("cannot lead; the cell is left to a scheduler that can", error=why)

    def end_term(self) -> None:
        """Keep the counts of the term that ends."""
        self._before, self._asked_before = self._counts(), self._asked()
        self.service, self._trouble = None, ""
        self._reclaims.clear()

    async def refresh(self) -> None:
        """Ask how far behind it is; so an idle leader notices, too, when the bus is down."""
        self._refusals.tell(self._refused(), self._counts()["dead_letters"])
        if self.service is None or not self.service.leads:
            return
        if self._unreadable and self._clock.now_s() - self._led_since_s >= READS_S:
            self._unreadable = ""
            self.log.info("leads", epoch=self.service.engine.state.leader.epoch)
        try:
            async with asyncio.timeout(ANSWER_S):
                self._lag = await self.service.lag()
            self._trouble = ""
        except TimeoutError:
            self._trouble = f"the bus did not answer for {ANSWER_S:.0f} s"
        except BusError as error:
            self._trouble = str(error)

    @property
    def problem(self) -> str:
        """Why this process does not serve its cell well; empty if it does."""
        if not self.leads:
            return f"cell {self.config.cell} is assigned to this process, which does not lead yet"
        return f"cell {self.config.cell}: {trouble}" if (trouble := self._trouble_now()) else ""

    def _trouble_now(self) -> str:
        behind_s = 0.0 if self.service is None else self.service.intake.behind_s
        if self._trouble or behind_s <= BEHIND_S:
            return self._trouble
        return (
            f"this machine's clock is {behind_s:.0f} s behind the bus's, so that leases end before "
            "they are read, and agents stop their gangs; set the clock right, or let another lead"
        )

    # --- watching ------------------------------------------------------------------------------

    def _time(self, what: _Duration, seconds: float) -> None:
        self._durations[what].labels(self.config.cell).observe(seconds)

    def _watch(self, stimulus: Stimulus, decision: Decision) -> None:
        if isinstance(stimulus.data, LeaderStarted):
            self.takeovers += 1
            self._led_since_s = self._clock.now_s()
            if not self._unreadable:  # else it may end in a moment, as the term before did
                self.log.info("leads", epoch=stimulus.data.leader_epoch)
        for fact in decision.facts:
            if isinstance(fact, facts.GangStarting):
                self._started(fact.job, stimulus.at_s)
            elif isinstance(fact, facts.ReclaimStarted):
                self._reclaims[fact.node] = stimulus.at_s
            elif isinstance(fact, facts.LoanReturned | facts.LoanLost):
                began_s = self._reclaims.pop(fact.node, None)
                if began_s is not None and isinstance(fact, facts.LoanReturned):
                    self._time("reclaim", stimulus.at_s - began_s)
        self._tell(stimulus, decision)

    def _refused(self) -> Iterator[dict[str, str]]:
        """Take what the intake refused: source, reason, and the topic of the dead letter."""
        intake = getattr(self.service, "intake", None)
        while intake is not None and intake.refused:
            record, field, reason = intake.refused.popleft()
            yield {
                "source": _source_of(record),
                "field": field,
                "reason": reason,
                "dead_letter_in": f"{record.topic}.dlq",
            }

    def _started(self, name: str, at_s: float) -> None:
        job = None if self.service is None else self.service.engine.state.jobs.get(name)
        if job is not None and job.first_start_s == at_s:
            self._time("queueing", at_s - job.submit_s)

    # --- figures -------------------------------------------------------------------------------

    def _counts(self) -> Counter[str]:
        """Count since the process began."""
        counts, service = self._before.copy(), self.service
        if service is not None and hasattr(service, "intake"):
            counts.update(service.intake.counts.copy())  # the event loop goes on counting
            counts["invariant_violations"] += service.invariant_violations
            counts["learning_failures"] += service.learning.failures
        return counts

    def _asked(self) -> Counter[tuple[str, str]]:
        """Count requests by verb and outcome since the process began."""
        intake = getattr(self.service, "intake", None)
        return self._asked_before + (Counter() if intake is None else intake.requests.counts.copy())

    def samples(self) -> Iterable[Sample]:
        """Give the metrics of the cell; those of its state only while this process leads."""
        cell, service = self.config.cell, self.service
        counts = self._counts()
        for name in ("events", "duplicates", "invariant_violations", "learning_failures"):
            yield Sample(f"tidegate_{name}_total", counts[name], (cell,))
        yield Sample("tidegate_over_rate_total", counts["over_rate"], (cell,))
        yield Sample("tidegate_dead_letters_dropped_total", counts["letters_dropped"], (cell,))
        yield Sample("tidegate_sequence_gaps_total", counts["gaps"], (cell,))
        yield Sample("tidegate_dead_letters_total", counts["dead_letters"], (cell, "scheduler"))
        for (verb, outcome), count in (dict.fromkeys(FORGED, 0) | self._asked()).items():
            yield Sample("tidegate_requests_total", count, (cell, verb, outcome))
        for name, durations in self._durations.items():
            yield Sample(f"tidegate_{name}_seconds", durations)
        yield Sample("tidegate_leader", float(self.leads), (cell,))
        if service is not None and service.leads:
            yield Sample("tidegate_event_lag", self._lag, (cell,))
            yield Sample("tidegate_cell_ahead_seconds", service.time.ahead_s, (cell,))
            yield from state_samples(cell, service.engine.state)
            since_s = self._clock.now_s() - MEASURED_S
            yield from use_samples(cell, service.engine.state, service.intake.telemetry, since_s)


def _source_of(record: Record) -> str:
    """Give the source that the record names, even if the rest is unreadable; else its key."""
    found = _find_source(record.value or b"")
    return record.key if found is None else found[1].decode(errors="replace")


class LeaderTerm:
    """One term as leader, from taking the cell over to giving it back or losing it."""

    def __init__(self, cell: CellLeadership, bus: Bus, service: SchedulerService) -> None:
        self._cell, self._bus, self._service = cell, bus, service

    async def run(self) -> None:
        """Lead until `stop`.

        Raises:
            Fenced: another process has taken the cell over.
        """
        cell = self._cell
        cell.service, before = self._service, cell.takeovers
        try:
            await self._service.run()
            cell.log.info("gave the cell back")
        except Fenced:
            cell.log.warning("fenced: another scheduler took the cell over")
            raise
        except Unreadable as error:
            cell.cannot(str(error))
            raise
        except BusError as error:
            # Readiness says why it cannot begin; here it would come every second.
            say = cell.log.warning if cell.takeovers > before else cell.log.debug
            say("leads no longer", error=str(error) or type(error).__name__)
            raise
        finally:
            cell.end_term()
            with contextlib.suppress(BusError):
                await self._bus.close()

    def stop(self) -> None:
        """Finish the tick, write a snapshot, give the cell back."""
        self._service.stop()
