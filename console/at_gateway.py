"""The gateway that a context names, as verbs ask it: `tidegate_client` asks, the words are ours."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import TypeAdapter
from rich.text import Text

from console.context import way_in
from console.output import fail
from console.serve import needing
from console.source import Away, Before, Seen, Sent, Told, Tried, Wish
from explain.acts import Act
from explain.cell import CellRules
from explain.documents import WhyDocument
from explain.loan_history import PastLoan
from explain.metrics import Curves
from explain.moments import day_clock, is_simulated
from explain.overview import Glance
from explain.refusals import Refusal
from explain.rows import JobRow, Jobs, Loans, Nodes
from explain.spans import Stay
from scheduler.core.transitions import TERMINAL, JobState
from schemas.logs import LogChunk
from schemas.requests import ReadLog

if TYPE_CHECKING:
    from tidegate_client import AsyncClient, Client
    from tidegate_client.models import Overview
    from tidegate_client.parts import JobRow as ClientRow

_Found = TypeVar("_Found")
#: A scheduler that leads has answered within this, in seconds.
_ANSWER_S = 5.0


class GatewaySource:
    """A gateway, by the name of its context."""

    def __init__(self, context: str, cell: str | None) -> None:
        self.context, self.cell = context, cell

    @property
    def name(self) -> str:
        return self.context

    @property
    def now_s(self) -> float:
        with self._asking() as client:
            return client.log_now_s()

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    @cached_property
    def _client(self) -> "Client":
        with needing("console"):
            from tidegate_client import Client
        return Client.from_context(self.context, cell=self.cell)

    @cached_property
    def _now(self) -> "Overview":
        return self._client.overview()

    @contextlib.contextmanager
    def _asking(self, *, then: bool = False) -> "Iterator[Client]":
        """Give the client, `then` at the moment of the first answer; say what goes wrong."""
        with told(self.context):
            entry = self._now.entry if then else None
            yield self._client if entry is None else self._client.at(entry=entry)

    def _seen(self, it: _Found) -> Seen[_Found]:
        now_s, origin_s = self._now.now_s, self._now.origin_s
        zone = "" if is_simulated(origin_s) else " UTC"
        return Seen(it, f"as of {day_clock(now_s, origin_s)}{zone}")

    # --- looks ---

    def overview(self) -> Seen[Glance]:
        with self._asking():
            return self._seen(_read(Glance, self._now.model_dump()))

    def rules(self) -> Seen[CellRules]:
        with self._asking(then=True) as client:
            found = client.rules().model_dump()
            return self._seen(_read(CellRules, {**found, "accepted": found["accepted"] or {}}))

    def jobs(self, state: str | None, *, every: bool, turns: bool = False) -> Seen[Jobs]:
        wanted: list[str] | None = [one.value for one in JobState if one not in TERMINAL]
        if state is not None or every:
            wanted = None if state is None else [state]
        with self._asking(then=True) as client:
            rows = [row.model_dump() for row in client.jobs(state=wanted, position=turns)]
            found = Jobs(self._now.now_s, self._now.origin_s, _read(list[JobRow], rows))
            return self._seen(found)

    def job(self, name: str) -> JobRow | None:
        from tidegate_client import NotFound

        with self._asking() as client, contextlib.suppress(NotFound):
            return _row(client.job(name).row)
        return None

    def why(self, job: str, width: int) -> Told:
        with self._asking() as client:
            found = client.why(job, width=min(max(width, 40), 400))
        return Told(_read(WhyDocument, found.model_dump()), Text(found.text.rstrip("\n")))

    def stays(self, job: str) -> Seen[Sequence[Stay]]:
        with self._asking() as client:
            found = client.stays(job)
            return self._seen(_read(list[Stay], [one.model_dump() for one in found]))

    def curves(self, job: str) -> Curves:
        from tidegate_client import NotFound

        # A gateway of an earlier release has none.
        with self._asking() as client, contextlib.suppress(NotFound):
            return client.curves(job).curves
        return {}

    def nodes(self) -> Seen[Nodes]:
        # Of now, whatever was asked before: utilisation is known of no other moment.
        with self._asking() as client:
            rows = [row.model_dump() for row in client.nodes()]
            frame = {"now_s": self._now.now_s, "origin_s": self._now.origin_s}
            return self._seen(_read(Nodes, {**frame, "nodes": rows}))

    def refusals(self) -> Sequence[Refusal]:
        with self._asking() as client:
            rows = [one.model_dump() for row in client.agents() for one in row.refusals or ()]
        found: list[Refusal] = _read(list[Refusal], rows)
        return found

    def loans(self) -> Seen[Loans]:
        with self._asking(then=True) as client:
            freezes = client.rules().model_dump()["freezes"]
            found = client.loans().model_dump()
            return self._seen(_read(Loans, {**found, "freezes": freezes}))

    def loan_history(self) -> Seen[Sequence[PastLoan]]:
        with self._asking(then=True) as client:
            rows = [row.model_dump() for row in client.loan_history()]
            return self._seen(_read(list[PastLoan], rows))

    def acts(self) -> Seen[Sequence[Act]]:
        with self._asking(then=True) as client:
            rows = [row.model_dump() for row in client.requests()]
            return self._seen(_read(list[Act], rows[::-1]))

    # --- asks ---

    def taken(self, key: str) -> Before | None:
        from tidegate_client import NotFound

        with self._asking() as client, contextlib.suppress(NotFound):
            found = client.outcome(key)
            return Before(found.about, found.args, found.asked_s)
        return None

    def ask(self, wish: Wish, reason: str) -> Sent:
        if wish.args is None:
            return Sent(document={"context": self.context})
        args = _sent(wish)
        with self._asking() as client:
            done = client.ask(args.pop("verb"), reason=reason, key=wish.key, wait=_ANSWER_S, **args)
        heard = done.result == "done"
        notes = () if heard else (
            f"No scheduler has answered yet; `tidegate audit` lists {done.request} once one has.",
            *(() if done.nobody_leads is None else (f"It waits: {done.nobody_leads}.",)),
        )  # fmt: skip
        where = {"context": self.context, "request": done.request, "scheduler_online": heard}
        return Sent(notes, where)

    def tries(self, wish: Wish, reason: str, hours: float) -> Tried:
        from tidegate_client import Refused

        args, where = _sent(wish), {"context": self.context}
        with self._asking() as client:
            try:
                found = client.ask(
                    args.pop("verb"), reason=reason, key=wish.key, dry_run=True, **args
                )
            except Refused as error:
                field = error.parameter or ""
                said = _refusal(error).removeprefix("The scheduler refused it: ")
                return Tried(field, said.removeprefix(f"{_short(field)}: "), document=where)
        return Tried(document=where, notes=(found.note,) if found.note else ())

    def wire(self, job: str) -> "GatewayWire":
        with self._asking():
            if is_simulated(self._now.origin_s):
                fail(f"{job}: its workers are simulated, and write nothing.", code=1)
            from tidegate_client import AsyncClient

            client = AsyncClient.from_context(self.context, cell=self.cell)
        return GatewayWire(self.context, client, job)


class GatewayWire:
    """What a job's worker writes, as the gateway passes it on."""

    def __init__(self, context: str, client: "AsyncClient", job: str) -> None:
        self._context, self._client, self._job, self._end = context, client, job, 0

    async def job(self) -> JobRow | None:
        from tidegate_client import NotFound

        with self._told(), contextlib.suppress(NotFound):
            return _row((await self._client.job(self._job)).row)
        return None

    async def end(self) -> int:
        with self._told():
            return (await self._client.pieces(self._job, "nobody")).next

    async def ask(self, args: ReadLog) -> str:
        said = args.model_dump(mode="json")
        with self._told():
            await self._client.ask(said.pop("verb"), wait=_ANSWER_S, **said)
        return ""

    async def pieces(self, after: int, reader: str) -> tuple[Sequence[LogChunk], int]:
        with self._told():
            found = await self._client.pieces(self._job, reader, after=after)
        return [LogChunk.model_validate(one.model_dump()) for one in found.pieces], found.next

    async def close(self) -> None:
        await self._client.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        from tidegate_client import NoGateway, Unavailable

        with told(self._context):
            try:
                yield
            except (NoGateway, Unavailable) as error:
                raise Away(f"{self._context}: {str(error).rstrip('.')}") from error


@contextlib.contextmanager
def told(context: str) -> Iterator[None]:
    """Say what is wrong if a gateway cannot answer, and what to do; then end."""
    with needing("console"):
        from tidegate_client import TidegateError
    try:
        yield
    except TidegateError as error:
        _end(context, error)


def _end(context: str, error: Exception) -> NoReturn:
    from tidegate_client import NoGateway, NotAllowed, NotKnown, Refused

    # A context that is not there names itself.
    said = str(error).rstrip(".").removeprefix(f"{context}: ")
    if isinstance(error, Refused):
        fail(f"{_refusal(error)}.", code=1)
    if isinstance(error, NotKnown):
        fail(f"{context}: {said}. {way_in(context)}")
    if isinstance(error, NotAllowed):
        fail(f"{context}: {_short(said)}. Ask somebody who may, or sign in as such.", code=1)
    if isinstance(error, NoGateway):
        fail(
            f"{context}: {said}. `tidegate context list` has the address of each context; "
            "--log asks a log without a gateway."
        )
    fail(f"{context}: {said}.")


def _sent(wish: Wish) -> dict[str, Any]:
    """Give what a gateway is sent, or asked about."""
    assert wish.args is not None
    args = wish.args.model_dump(mode="json")
    if wish.own:
        del args["spec"]["tenant"]  # the gateway knows
    return args


def _refusal(error: Exception) -> str:
    """Say why a scheduler refused; the rest of what the gateway says is for programs with keys."""
    said = _short(str(error).rstrip(".").partition(". Nothing was done")[0])
    # A field that it begins with stays as it is spelt.
    return said if said.partition(" ")[0].endswith(":") else f"{said[0].upper()}{said[1:]}"


def _short(said: str) -> str:
    """Name a field as it is in a job's file, not as it is in a request."""
    return re.sub(r"(^|: )args\.(spec\.)?", r"\1", said, count=1)


def _row(row: "ClientRow | None") -> JobRow | None:
    return None if row is None else _read(JobRow, row.model_dump())


def _read(kind: Any, raw: Any) -> Any:
    return TypeAdapter(kind).validate_python(raw)
