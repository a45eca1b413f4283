"""What all reads share: finding the moment asked for, cursors, and ETags and caching of answers."""

import asyncio
import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, Path, Query, Request, Response

from bus.clock import Clock
from explain.answer import Answer
from gateway import cursors, sight
from gateway.branches import BRANCH, Branches
from gateway.cells import Cells
from gateway.cursors import Cursor
from gateway.limits import Limits
from gateway.past import Moment, Past, beyond, held, last_before, raw
from gateway.posting import Desk
from gateway.problems import Problem, wrong_field
from gateway.sight import View
from gateway.subjects import Authority, Subject
from gateway.verifying import Verifying
from gateway.views import framed

_Found = TypeVar("_Found")
#: Routes that a branch does not have: they change the cell, or have its log worked on.
_NOT_OF_BRANCHES = ("ask", "request", "output", "begin_branch", "forecast", "verified")
#: Lays an answer out as text with so many columns.
LayOut = Callable[[Answer, int], str]
#: Attempts to answer from the live state while it changes; then a state is folded for the answer.
_TRIES = 3
_FOREVER = "private, max-age=31536000, immutable"
_is_whole = re.compile(r"-?[0-9]{1,19}", re.ASCII).fullmatch
_is_seconds = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII).fullmatch
CellName = Annotated[
    str | None,
    Query(
        description="Which cell; if not given, `default`, or the only one. `branch-ID` is a branch "
        "that is done.",
        max_length=256,
    ),
]
EntryNumber = Annotated[
    int | None,
    Query(
        description="The state as it was after this entry; such answers never change.",
        ge=0,
        le=2**53,
    ),
]
AtText = Annotated[
    str | None,
    Query(
        description="The state as it was at this moment of the log: seconds since the Unix epoch, "
        "or ISO 8601, in UTC unless it says otherwise.",
        max_length=64,
        examples=["2026-01-05T06:30:00Z"],
    ),
]
Limit = Annotated[int, Query(description="Rows of a page, at most.", ge=1, le=1000)]
JobId = Annotated[str, Path(description="The job's id.", max_length=256)]
CursorText = Annotated[
    str | None,
    Query(description="`next` of the page before; all pages are of one state.", max_length=512),
]


@dataclass(frozen=True, slots=True)
class Gateway:
    """All that routes need."""

    cells: Cells
    past: Past
    limits: Limits
    authority: Authority
    clock: Clock
    version: str
    branches: Branches
    verifying: Verifying
    desk: Desk = field(default_factory=Desk)
    #: How a terminal shows why a job is as it is.
    lay_out: LayOut | None = None
    #: Set when the gateway ends: streams, which would last, end too.
    closing: asyncio.Event = field(default_factory=asyncio.Event)


def gateway_of(request: Request) -> Gateway:
    """Give the gateway that a request came to."""
    found: Gateway = request.app.state.gateway
    return found


def subject_of(request: Request) -> Subject:
    """Give who asks."""
    found: Subject = request.state.subject
    return found


async def known_parameters(request: Request) -> None:
    """Refuse parameters that a route does not have: a misspelt `entry` would mean now.

    A cell that is a branch is opened, for who may see it.

    Raises:
        Problem: 400, naming the parameter; 404 or 409, there is no such branch, or not yet.
    """
    sight.allow(request.scope["route"].name, subject_of(request))
    known = request.app.state.parameters[request.scope["route"].name]
    given = {**request.query_params, **request.path_params}
    for name in request.app.state.integers[request.scope["route"].name]:
        # Python takes 1_0, too, and digits of other scripts.
        if name in given and not _is_whole(given[name]):
            raise wrong_field(name, "should be a valid integer, in digits alone", 400)
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "this route takes none"
            raise Problem(400, f"there is no parameter {name[:64]!r}; {there}",
                          parameter=name[:64])  # fmt: skip
        if names.count(name) > 1:
            raise Problem(400, f"{name} is given more than once; give it once", parameter=name)
    cell = request.query_params.get("cell", "")
    here = gateway_of(request)
    if cell.startswith(BRANCH) and cell not in here.cells.feeds:
        await _open_branch(here, subject_of(request), request.scope["route"].name, cell)


async def _open_branch(here: Gateway, who: Subject, route: str, cell: str) -> None:
    kept = here.branches.one(who, cell.removeprefix(BRANCH), parameter="cell")
    if route in _NOT_OF_BRANCHES:
        raise Problem(
            422,
            "a branch is only to be looked at; ask this of the cell that was branched: leave cell "
            "out, or name another",
            parameter="cell",
        )
    path = await here.branches.log(kept, who)
    if cell not in here.cells.branches:
        here.cells.add_branch(cell, path, kept.cell)
    await here.cells.has_read(cell)


Here = Annotated[Gateway, Depends(gateway_of)]
Who = Annotated[Subject, Depends(subject_of)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A moment of a cell, as a request names it."""

    here: Here
    who: Who
    request: Request
    cell: CellName = None
    entry: EntryNumber = None
    at: AtText = None

    async def moment(self, entries: int | None = None) -> Moment:
        """Find the moment; `entries`, of a cursor, says which if the request does not.

        Raises:
            Problem: there is no such moment, or it cannot be found now.
        """
        feed = self.here.cells.live(self.cell)
        if self.entry is not None and self.at is not None:
            raise Problem(400, "give entry or at, not both: each names a moment", parameter="at")
        wanted = entries
        if self.entry is not None:
            await self.here.cells.reach(feed, self.entry + 1)
            held(feed, "entry", self.entry)
            wanted = self.entry + 1
        elif self.at is not None and entries is None:
            at_s = moment_of(self.at)
            state = feed.live.state if feed.live else None
            if state is not None and at_s > state.now_s:
                await self.here.cells.reach(feed)
            if state is None or not feed.entries or at_s > state.now_s:
                raise beyond(feed, "at", self.at)
            with self.here.limits.seek(self.who.name):
                wanted = await last_before(feed, at_s) + 1
            if not wanted:
                begun = datetime.fromtimestamp(feed.origin_s, UTC).isoformat()
                raise Problem(404, f"at={self.at} is before the log, which began at {begun}",
                              parameter="at")  # fmt: skip
        if wanted is not None and feed.index.first:
            held(feed, "entry", wanted - 1)
        if wanted is None:
            assert feed.live is not None
            return Moment(feed, feed.live.state, feed.entries, pinned=False)
        state = self.here.past.known(feed, wanted)
        if state is None:
            with self.here.limits.seek(self.who.name):
                state = await self.here.past.state(feed, wanted)
        return Moment(feed, state, wanted, pinned=self.entry is not None or entries is not None)

    async def settled(
        self, gather: Callable[[Moment], Awaitable[_Found]], entries: int | None = None
    ) -> tuple[Moment, _Found]:
        """Read what an answer needs beside the state, both of one moment.

        The live state goes on while something is read; the answer is then of a newer one.
        """
        moment = await self.moment(entries)
        found = await gather(moment)
        for _ in range(_TRIES):
            if moment.state.number == moment.entries:
                return moment, found
            moment = await self.moment(entries)
            found = await gather(moment)
        with self.here.limits.seek(self.who.name):
            state = await self.here.past.state(moment.feed, moment.entries)
        return Moment(moment.feed, state, moment.entries, moment.pinned), found

    async def page(
        self, text: str | None, question: str, *, of_entries: bool = False
    ) -> Cursor | None:
        """Read the cursor, if there is one; `of_entries`: its position is an entry's number.

        Raises:
            Problem: 400, it is torn, or of another question or log.
        """
        if text is None:
            return None
        cursor = cursors.read(text, question)
        feed = self.here.cells.live(self.cell)
        if self.entry is not None and self.entry + 1 != cursor.entries:
            raise cursors.bad("the cursor is of another entry; leave entry or cursor out")
        await self.here.cells.reach(feed, cursor.entries)
        if cursor.entries > feed.entries:
            raise cursors.foreign()
        if cursor.entries and (await raw(feed, cursor.entries - 1)).digest[:16] != cursor.log:
            raise cursors.foreign()
        if of_entries and cursor.position > cursor.entries:
            raise cursors.changed()  # no page of ours ends beyond the moment that it is of
        return cursor

    async def next(self, moment: Moment, question: str, position: int | None) -> str | None:
        """Write the cursor of the next page; None after the last."""
        if position is None:
            return None
        digest = (await raw(moment.feed, moment.entries - 1)).digest[:16] if moment.entries else ""
        return Cursor(question, moment.entries, digest, position).text()

    async def newest_first(
        self,
        name: str,
        question: str,
        cursor: str | None,
        find: Callable[[Moment, int], Awaitable[tuple[Sequence[Any], int | None]]],
    ) -> Response:
        """Answer with a page of what entries tell of, the newest first.

        Args:
            name: What the rows are called.
            question: As `gateway.cursors.question` names it.
            cursor: Of this page, as it was asked for.
            find: Gives rows before an entry, and before which the next page begins.
        """
        page = await self.page(cursor, question, of_entries=True)
        moment = await self.moment(None if page is None else page.entries)
        frame = framed(moment)  # the live state goes on while entries are read
        rows, more = await find(moment, moment.entries if page is None else page.position)
        after = await self.next(moment, question, more)
        return self.answer(moment, {**frame, name: rows, "next": after})

    def answer(
        self, moment: Moment, document: Any, *, lasts: bool = True, own: str | None = None
    ) -> Response:
        """Give the answer; one of a named entry may be kept for ever, unless it does not last.

        `own` is a job of the asker's own tenant, which the state may have forgotten.
        """
        return self.tagged(moment, self.seen(moment, document, own=own), lasts=lasts)

    def tagged(self, moment: Moment, seen: Any, *, lasts: bool = True) -> Response:
        """Give an answer that is as who asks sees it already; see `answer`."""
        entry = "none" if moment.entry is None else str(moment.entry)
        kept = moment.pinned and lasts
        return tagged(self.request, self.who, moment.feed.name, entry, seen, kept=kept)

    def seen(self, moment: Moment, document: Any, *, own: str | None = None) -> Any:
        """Give an answer as who asks sees it; `own` as for `answer`."""
        view = self.view(moment)
        if own is not None:
            view = replace(view, own_jobs=frozenset((own,)))
        return view.of(document)

    def view(self, *moments: Moment) -> View:
        """Give how who asks sees these moments."""
        return view_of(self.who, *moments)


#: What a route takes that answers of a moment.
At = Annotated[Asked, Depends(Asked)]


def view_of(who: Subject, *moments: Moment) -> View:
    """Give how somebody sees moments of a cell; the live state knows newer jobs."""
    states = [moment.state for moment in moments]
    live = moments[0].feed.live
    if live is not None and live.state is not states[0]:
        states.append(live.state)
    return View(who, tuple(states))


def tagged(
    request: Request, who: Subject, cell: str, entry: str, document: Any, *, kept: bool
) -> Response:
    """Answer with an ETag, or 304 if the asker has the answer already."""
    body = orjson.dumps(document)
    of = hashlib.blake2b(body, digest_size=9).hexdigest()
    tag = f'"{cell}.{entry}.{who.rights}.{of}"'
    headers = {
        "ETag": tag,
        "Cache-Control": _FOREVER if kept else "no-store",
        "Vary": "Authorization, Cookie",
        "Tidegate-Entry": entry,
    }
    had = request.headers.get("if-none-match", "")
    if had.strip() == "*" or tag in [one.strip().removeprefix("W/") for one in had.split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def plain(
    document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with what is true now, and no longer."""
    return Response(orjson.dumps(document), status, headers, "application/json")


def moment_of(text: str, name: str = "at") -> float:
    """Read a moment, the value of the parameter of this name.

    Raises:
        Problem: 400, it is none.
    """
    try:
        if _is_seconds(text):
            found = float(text)
        else:
            read = datetime.fromisoformat(text)
            found = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise Problem(
            400,
            f"{name}={text!r} is no moment; write seconds since the Unix epoch, or ISO 8601 such "
            "as 2026-01-05T06:30:00Z (a + must be written %2B)",
            parameter=name,
        )
    return found
