"""A log, opened here, as verbs ask it."""

import difflib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import orjson

from bus.clock import SystemClock
from bus.contract import Bus
from console.dry_run import previewed
from console.output import fail
from console.panel import panel
from console.reading import ask_log, located, open_to_write, read_bus
from console.request import Addressed, left_unchecked, signer_of
from console.response import ANSWER_S, publish_and_hear
from console.source import Before, Seen, Sent, Told, Tried, Wish
from explain.acts import BY_PEOPLE, Act, act_of, refusal
from explain.answer import Answer, Reading
from explain.cell import CellRules, rules_of
from explain.documents import why_document
from explain.ends import End, Ends
from explain.loan_history import WANTED, PastLoan, loans_in
from explain.metrics import Curves
from explain.overview import Glance, overview
from explain.reading import (
    entries,
    pieces_for,
    read_curves,
    read_ends,
    read_measured,
    read_refusals,
    read_story,
)
from explain.refusals import Refusal
from explain.rows import (
    JobRow,
    Jobs,
    Loans,
    Nodes,
    jobs_of,
    jobs_table,
    loans_table,
    nodes_of,
    nodes_table,
)
from explain.spans import Stay, stays_of
from explain.story import Story
from explain.turns import positions
from scheduler.blame import blamed_on
from scheduler.core.trial import refused
from schemas.journal import JournalEntry
from schemas.logs import LogChunk
from schemas.requests import ReadLog, Request
from schemas.topics import LOGS

_Found = TypeVar("_Found")
#: How the journal names what people cause.
_BY_PEOPLE = tuple(f'"kind":"{kind}"'.encode() for kind in BY_PEOPLE)


@dataclass
class LogSource:
    """A log; all answers are of the state that the first one found."""

    log: str
    cell: str | None
    sign: str | None = field(default=None, kw_only=True)
    acts_on_it: bool = field(default=False, kw_only=True)

    @property
    def name(self) -> str:
        return self.addressed.log if self.acts_on_it else self.located

    @property
    def now_s(self) -> float:
        return self.addressed.now_s

    def close(self) -> None:
        pass

    @cached_property
    def located(self) -> str:
        """Its full address."""
        return located(self.log)

    @cached_property
    def addressed(self) -> Addressed:
        """The log as what something is asked of."""
        return Addressed.of(self.located, self.cell)

    @cached_property
    def reading(self) -> Reading:
        """The state that answers are of."""
        if self.acts_on_it:
            return self.addressed.reading
        return ask_log(self.located, self.cell, lambda bus: read_bus(bus, self.cell))

    def _seen(self, it: _Found) -> Seen[_Found]:
        reading = self.reading
        return Seen(it, reading.as_of(), reading.age(SystemClock().now_s()))

    def _ask(self, ask: Callable[[Bus], Awaitable[_Found]]) -> _Found:
        return ask_log(self.located, self.cell, ask)

    # --- looks ---

    def overview(self) -> Seen[Glance]:
        return self._seen(overview(self.reading))

    def rules(self) -> Seen[CellRules]:
        return self._seen(rules_of(self.reading))

    def jobs(self, state: str | None, *, every: bool, turns: bool = False) -> Seen[Jobs]:
        reading = self.reading
        found = jobs_of(reading, state, every=every)
        over = {job.id for job in found if Ends.tells_of(job)}
        ends: dict[str, End] = {}
        if over:  # it is a pass over the journal, which most questions do without
            end = reading.state.number
            ends = self._ask(lambda bus: read_ends(bus, reading.cell, over, end))
        places = positions(reading.state) if turns else {}
        return self._seen(jobs_table(reading, found, ends, places))

    def job(self, name: str) -> JobRow | None:
        known = self.reading.state.jobs.get(name)
        return None if known is None else jobs_table(self.reading, [known], {}).jobs[0]

    def why(self, job: str, width: int) -> Told:
        reading, answer = self.reading, Answer.of(self.reading, self._story(job))
        if answer is None:
            fail(_unknown(job, list(reading.state.jobs)))
        age = reading.age(SystemClock().now_s())
        return Told(why_document(answer), panel(answer), age)

    def stays(self, job: str) -> Seen[Sequence[Stay]]:
        story = self._story(job)
        if not story.events:
            fail(_unknown(job, list(self.reading.state.jobs)))
        return self._seen(list(stays_of(story)))

    def curves(self, job: str) -> Curves:
        reading = self.reading
        end = reading.state.number
        return self._ask(lambda bus: read_curves(bus, reading.cell, job, end))

    def _story(self, job: str) -> Story:
        reading = self.reading
        end = reading.state.number
        return self._ask(lambda bus: read_story(bus, reading.cell, job, end))

    def nodes(self) -> Seen[Nodes]:
        found = nodes_of(self.reading)
        heard = self._ask(lambda bus: read_measured(bus, [*self.reading.state.nodes]))
        used = {name: one.used for name, one in heard.items()}
        return self._seen(nodes_table(self.reading, found, used))

    def refusals(self) -> Sequence[Refusal]:
        return self._ask(lambda bus: read_refusals(bus, self.reading))

    def loans(self) -> Seen[Loans]:
        return self._seen(loans_table(self.reading))

    def loan_history(self) -> Seen[Sequence[PastLoan]]:
        reading = self.reading

        async def ask(bus: Bus) -> list[JournalEntry]:
            found = entries(bus, reading.cell, WANTED, reading.state.number)
            return [entry async for entry in found]

        pools = {name: node.pool for name, node in reading.state.nodes.items()}
        with blamed_on(None):
            return self._seen(loans_in(self._ask(ask), pools, reading.state.now_s))

    def acts(self) -> Seen[Sequence[Act]]:
        reading = self.reading

        async def ask(bus: Bus) -> list[Act]:
            found: list[Act] = []
            async for entry in entries(bus, reading.cell, _BY_PEOPLE, reading.state.number):
                with blamed_on(entry.number):
                    act = act_of(entry.number, entry.at_s, entry.stimulus, entry.decision)
                found += [] if act is None else [act]
            return found

        return self._seen(self._ask(ask))

    # --- asks ---

    def taken(self, key: str) -> Before | None:
        reading = self.reading
        if key not in reading.state.standing.taken:
            return None

        async def ask(bus: Bus) -> Before:
            async for entry in entries(bus, reading.cell, _BY_PEOPLE, reading.state.number):
                with blamed_on(entry.number):
                    request = entry.stimulus["data"].get("request", {})
                    if request.get("id") != key:
                        continue
                    if why := refusal(entry.decision):
                        fail(f"The scheduler refused it before: {why}.", code=1)
                    asked = Request.model_validate_json(orjson.dumps(request))
                    return Before(asked.about, asked.args.model_dump(mode="json"), asked.asked_s)
            return Before()

        return self._ask(ask)

    def ask(self, wish: Wish, reason: str) -> Sent:
        if wish.args is not None:
            self.addressed.ask(wish, reason, self.sign)
        return self.addressed.sent()

    def tries(self, wish: Wish, reason: str, hours: float) -> Tried:
        at, signer = self.addressed, signer_of(self.sign)
        asked = at.request(wish, reason, "dry-run")
        where = {"log": at.log, "scheduler_online": at.online}
        wrong = refused(at.reading.state, asked)
        if wrong is not None:
            return Tried(*wrong, document=where)
        notes = left_unchecked(at.log, wish, signer)
        if not hours:
            return Tried(document=where, notes=notes)
        cell = at.reading.cell
        found, origin_s, why = previewed(at.log, cell, asked, asked.asked_s, hours)
        if why:
            notes = (f"What follows cannot be simulated: {why}.", *notes)
        return Tried(document=where, preview=found, origin_s=origin_s, notes=notes)

    def wire(self, job: str) -> "LogWire":
        if self.addressed.reading.simulated:
            fail(f"{job}: its workers are simulated, and write nothing.", code=1)
        if not self.addressed.online:
            fail(
                "No scheduler runs on this log now, and it takes one to ask agents for logs: start "
                f"one and ask again. `tidegate why {job}` says where its agent keeps them.",
                code=1,
            )
        return LogWire(self.addressed, job, self.sign)


class LogWire:
    """What a job's worker writes, read from the log to which its agent sends it."""

    def __init__(self, at: Addressed, job: str, sign: str | None) -> None:
        self._at, self._job, self._sign = at, job, sign
        self._bus = open_to_write(at.log, at.clock, at.reading.cell)

    async def job(self) -> JobRow | None:
        reading = await read_bus(self._bus, self._at.reading.cell)
        known = reading.state.jobs.get(self._job)
        return None if known is None else jobs_table(reading, [known], {}).jobs[0]

    async def end(self) -> int:
        return await self._bus.end(LOGS.name)

    async def ask(self, args: ReadLog) -> str:
        wish = Wish(args, "", {}, life_s=args.until_s - self._at.clock.now_s())
        message, source = self._at.written(wish, "", self._sign)
        return await publish_and_hear(self._bus, message, source, ANSWER_S)

    async def pieces(self, after: int, reader: str) -> tuple[Sequence[LogChunk], int]:
        found: list[LogChunk] = []
        async for offset, _, piece in pieces_for(self._bus, after, reader, self._job):
            after = offset
            found += [] if piece is None else [piece]
        return found, after

    async def close(self) -> None:
        await self._bus.close()


def _unknown(job: str, known: list[str]) -> str:
    if not known:
        return f"{job}: the log holds no job yet; `tidegate submit` adds one."
    near = difflib.get_close_matches(job, known, n=3, cutoff=0.5)
    if near:
        return f"{job}: no such job in this log. Nearest: {', '.join(near)}."
    return (
        f"{job}: no such job in this log. `tidegate jobs --all` lists all {len(known)}; one that "
        "was just submitted is among them once a scheduler has taken it up."
    )
