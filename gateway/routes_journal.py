"""The routes of `/api/v1` about the journal, two moments, and the gateway itself."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from gateway import cursors, journal_queries, models, models_health, perfetto as traces, views
from gateway.cells import OPENING, facts
from gateway.feed import Feed
from gateway.holding import Holding
from gateway.identities import Identities
from gateway.journal_queries import decisions as told_decisions
from gateway.limits import (
    READS_BURST,
    READS_PER_S,
    SEEKS_AT_ONCE,
    STREAMS_EACH,
    WAITS_EACH,
    WRITES_BURST,
    WRITES_PER_S,
)
from gateway.moments import PLACES, remembered
from gateway.past import Moment, held, raw
from gateway.problems import Problem
from gateway.request_context import (
    At,
    CellName,
    CursorText,
    Here,
    Limit,
    Who,
    known_parameters,
    moment_of,
    plain,
    tagged,
    view_of,
)
from gateway.sight import View, policy_seen
from gateway.stream import heads
from gateway.subjects import Subject
from scheduler.core.rights import MAY

router = APIRouter(dependencies=[Depends(known_parameters)])
LetterTopic = Literal["commands", "events", "requests", "telemetry"]


@router.get("/decisions", response_model=models.DecisionsPage)
async def decisions(
    at: At,
    subject: Annotated[
        str | None, Query(description="Only about this job, node or lender.", max_length=256)
    ] = None,
    rule: Annotated[
        str | None, Query(description="Only with a reason of this rule.", max_length=256)
    ] = None,
    telling: Annotated[
        bool,
        Query(
            description="Only those that gave commands or reasons, or failed. A page looks through "
            "so many entries at most, and may have fewer rows, or none, though more follow."
        ),
    ] = False,
    limit: Limit = 100,
    cursor: CursorText = None,
) -> Response:
    """List decisions, newest first: on what, what was decided, and the reasons given."""
    asked = cursors.question("decisions", at.cell, subject, rule, telling)

    async def find(moment: Moment, before: int) -> tuple[list[dict[str, object]], int | None]:
        foreign = subject is not None and at.view(moment).job(subject) != subject
        # Another tenant's job is asked for by a name that nobody has.
        about = "" if foreign else subject
        return await told_decisions(moment.feed, before, limit, about, rule, telling)

    return await at.newest_first("decisions", asked, cursor, find)


@router.get("/moments", response_model=models.MomentsAnswer)
async def moments(at: At) -> Response:
    """List what whoever looks back looks for: loans, reclaims, leaders, what people asked for."""
    moment = await at.moment()
    frame = views.framed(moment)
    rows, complete = await remembered(moment.feed, moment.entries)
    places = moment.feed.index.places(moment.entries, PLACES)
    document = {**frame, "first": moment.feed.index.first, "complete": complete}
    return at.answer(moment, {**document, "moments": rows, "places": places}, lasts=complete)


@router.get("/entries/{number}", response_model=models.EntryAnswer)
async def entry(
    number: Annotated[int, Path(description="The entry's number, from 0.", ge=0, le=2**53)],
    request: Request,
    here: Here,
    who: Who,
    cell: CellName = None,
) -> Response:
    """Give an entry of the journal whole: the stimulus, and what was decided on it."""
    feed = here.cells.live(cell)
    await here.cells.reach(feed, number + 1)
    held(feed, "number", number)
    found = await raw(feed, number)
    document = {
        "cell": feed.name,
        "entry": number,
        "at_s": found.at_s,
        "policy": found.policy,
        "stimulus": orjson.Fragment(found.stimulus),
        "decision": orjson.Fragment(found.decision),
        "digest": found.digest,
    }
    seen = View(who, ()).of(document)
    return tagged(request, who, feed.name, str(number), seen, kept=True)


_TRACE = {"content": {"application/json": {"schema": {"type": "object"}}}}


@router.get("/perfetto", response_class=StreamingResponse, responses={200: _TRACE})
async def perfetto(
    request: Request,
    here: Here,
    who: Who,
    since: Annotated[str | None, Query(description="From this moment on.", max_length=64)] = None,
    until: Annotated[str | None, Query(description="Up to this moment.", max_length=64)] = None,
    cell: CellName = None,
) -> Response:
    """Give a stretch of the log as a file for ui.perfetto.dev: who was on which GPU, and why."""
    since_s = None if since is None else moment_of(since, "since")
    until_s = None if until is None else moment_of(until, "until")
    feed = here.cells.live(cell)
    with contextlib.ExitStack() as asked:
        asked.enter_context(here.limits.seek(who.name))
        begin, end = await traces.stretch(feed, since_s, until_s)
        pieces = traces.drawn(feed, begin, end, since_s, until_s)
        first = await anext(pieces)
        held = asked.pop_all()

    async def rest() -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    packs = "gzip" in request.headers.get("accept-encoding", "")
    name = f"tidegate-{feed.cell}-{begin}-{end - 1}.json"
    headers = {
        "Cache-Control": "no-store",
        "Content-Disposition": f'attachment; filename="{name}"',
        "Vary": "Accept-Encoding, Authorization, Cookie",
        **({"Content-Encoding": "gzip"} if packs else {}),
    }
    found = traces.packed(rest()) if packs else rest()
    return Holding(held, found, media_type="application/json", headers=headers)


@router.get("/diff", response_model=models.DiffAnswer)
async def diff(
    here: Here,
    who: Who,
    request: Request,
    entry: Annotated[int, Query(description="From after this entry...", ge=0, le=2**53)],
    vs: Annotated[int, Query(description="...to after this one.", ge=0, le=2**53)],
    cell: CellName = None,
    limit: Limit = 1000,
) -> Response:
    """Say which jobs and nodes differ between two entries, field by field."""
    feed = here.cells.live(cell)
    await here.cells.reach(feed, max(entry, vs) + 1)
    moments = []
    for name, number in (("entry", entry), ("vs", vs)):
        held(feed, name, number)
        with here.limits.seek(who.name):
            state = await here.past.state(feed, number + 1)
        moments.append(Moment(feed, state, number + 1, pinned=True))
    for place, moment in enumerate(moments):
        if moment.state.number != moment.entries:  # it was the live one, which went on
            state = await here.past.state(feed, moment.entries)
            moments[place] = Moment(feed, state, moment.entries, pinned=True)
    document = view_of(who, *moments).of(views.diff(moments[0], moments[1], limit))
    return tagged(request, who, feed.name, f"{entry}-{vs}", document, kept=True)


@router.get("/dead-letters", response_model=models.LettersAnswer)
async def dead_letters(
    at: At,
    topic: Annotated[LetterTopic | None, Query(description="Only what came on this topic.")] = None,
    before: Annotated[
        int | None,
        Query(description="With topic: only before this offset.", ge=0, le=2**53),
    ] = None,
    limit: Limit = 100,
) -> Response:
    """List messages that could not be taken, newest first: the field, the reason, the bytes."""
    if before is not None and topic is None:
        raise Problem(400, "before goes with topic: each has offsets of its own; add topic",
                      parameter="before")  # fmt: skip

    async def gather(moment: Moment) -> tuple[list[dict[str, object]], int | None]:
        return await journal_queries.letters(moment, topic, before, limit)

    moment, (rows, more) = await at.settled(gather)
    # Letters go after thirty days.
    document = {**views.framed(moment), "letters": rows, "next": more}
    return at.answer(moment, document, lasts=False)


@router.get("/me", response_model=models.Me)
async def me(here: Here, who: Who) -> Response:
    """Say who asks, what it may ask for, and how much."""
    writes = here.desk.outbox is not None or bool(here.desk.others)
    verbs = [verb for verb, roles in MAY.items() if writes and who.role.value in roles]
    return plain(
        {
            "name": who.name,
            "role": who.role,
            "tenant": who.tenant,
            "via": who.via,
            "verbs": verbs,
            "signs_out": who.via == "cookie" and isinstance(here.authority, Identities),
            "limits": {
                "reads_per_s": READS_PER_S,
                "reads_burst": READS_BURST,
                "writes_per_s": WRITES_PER_S,
                "writes_burst": WRITES_BURST,
                "seeks_at_once": SEEKS_AT_ONCE,
                "streams": STREAMS_EACH,
                "waits": WAITS_EACH,
            },
        }
    )


@router.get("/cells", response_model=models_health.CellsAnswer)
async def cells(here: Here, who: Who) -> Response:
    """List the cells of the log: where each is, and who leads it by which policy."""
    return plain({"cells": [_cell(feed, who) for feed in here.cells.feeds.values()]})


def _cell(feed: Feed, who: Subject) -> dict[str, object]:
    state = None if feed.live is None else feed.live.state
    return {
        **facts(feed),
        "first": feed.index.first,
        "leader": None if state is None else state.leader.name,
        "leader_epoch": None if state is None else state.leader.epoch,
        "policy": None if state is None else policy_seen(who, state.leader.policy),
    }


@router.get("/health", response_model=models_health.Health)
async def health(here: Here) -> Response:
    """Say how the gateway is: whether it reads the log, and how far its index is."""
    feeds = here.cells.feeds.values()
    problem = here.cells.problem
    ready = all(feed.live is not None for feed in feeds) and bool(feeds)
    reading = problem in ("", OPENING) and not any(feed.problem for feed in feeds)
    return plain(
        {
            "status": "unreadable" if not reading else "ok" if ready else "starting",
            "version": here.version,
            "log": here.cells.log.name,
            "problem": problem or None,
            "cells": [
                {
                    "cell": feed.cell,
                    "entry": feed.entries - 1 if feed.entries else None,
                    "now_s": None if feed.live is None else feed.live.state.now_s,
                    "problem": feed.problem or None,
                    "index": {
                        "entries": feed.index.entries,
                        "building": feed.building,
                        "done": feed.done,
                        "bytes": feed.index.bytes,
                        "notice": feed.notice or None,
                    },
                }
                for feed in feeds
            ],
            "streams": here.limits.streams,
            "past_bytes": here.past.bytes,
        }
    )


_EVENTS = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


@router.get("/stream", response_class=StreamingResponse, responses={200: _EVENTS})
async def stream(
    request: Request,
    here: Here,
    who: Who,
    cell: CellName = None,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event seen.", max_length=64)
    ] = None,
) -> Response:
    """Follow a cell: an event `head` with each new entry's number, at most two a second."""
    feed = here.cells.feed(cell)
    held = contextlib.ExitStack()
    held.enter_context(here.limits.stream(who.name))
    return Holding(
        held,
        heads(here, feed, who, request.headers, last_event_id),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store"},
    )
