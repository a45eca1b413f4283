"""The routes of `/api/v1` that answer about states: what they take, and in which form they answer.

Each goes: moment, then rows, then the answer with its marks (`gateway.request_context`).
"""

from dataclasses import fields
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Response

from explain.answer import Answer
from explain.cell import rules_of
from explain.documents import WhyDocument, why_document
from explain.ends import End
from explain.metrics import POINTS, curves_of, thinned
from explain.overview import overview as overview_of
from explain.rows import jobs_table, loans_table, nodes_of, nodes_table
from explain.spans import stays_of
from explain.tide import tide_of
from explain.turns import positions
from explain.why_text import plain_why
from gateway import cursors, journal_queries, models, views
from gateway.about import SLOT_S
from gateway.fleet import measured_at
from gateway.foreseen import forecast_of
from gateway.past import Moment, guarded
from gateway.problems import Problem, wrong_field
from gateway.request_context import (
    At,
    CursorText,
    JobId,
    Limit,
    known_parameters,
    moment_of,
)
from gateway.sight import WHOSE
from gateway.subjects import Sight, Subject
from scheduler.core.transitions import JobState, NodeState

router = APIRouter(dependencies=[Depends(known_parameters)])
Text = Annotated[
    str | None,
    Query(description="Only those whose names hold this, in upper or lower case.", max_length=256),
]
Pool = Annotated[str | None, Query(description="Only of this pool.", max_length=256)]


@router.get("/overview", response_model=models.Overview)
async def overview(at: At) -> Response:
    """Give a cell at a glance: jobs and nodes by state, GPUs by pool, loans, deadlines, sums."""
    moment = await at.moment()
    return at.answer(moment, views.told(moment, overview_of(views.reading_of(moment))))


@router.get("/rules", response_model=models.RulesAnswer)
async def rules(at: At) -> Response:
    """Say which policy decides, tenants' quotas, what is paused, and what is not to be borrowed."""
    moment = await at.moment()
    return at.answer(moment, views.told(moment, rules_of(views.reading_of(moment))))


@router.get("/tide", response_model=models.TideAnswer)
async def tide(
    at: At,
    since: Annotated[str | None, Query(description="From this moment on.", max_length=64)] = None,
    until: Annotated[str | None, Query(description="Up to this moment.", max_length=64)] = None,
    points: Annotated[int, Query(description="Rows, at most.", ge=2, le=5000)] = 600,
    forecast: Annotated[
        bool, Query(description="Also what the policy forecasts that owners will need.")
    ] = False,
) -> Response:
    """Give over time what owners need and have, what is lent, unused and used, and the queue."""
    begin_s = 0.0 if since is None else moment_of(since, "since")
    end_s = 2.0**62 if until is None else moment_of(until, "until")
    moment = await at.moment()

    async def find() -> list[Any]:
        return list(moment.feed.index.tide(moment.entries, begin_s, end_s))

    rows = await guarded(moment.feed, find)
    now = tide_of(moment.state)
    if moment.entries and begin_s <= now.at_s <= end_s:
        rows = [*(row for row in rows if row.at_s < now.at_s), now]
    rows = list(thinned(rows, points))
    complete = moment.feed.index.entries >= moment.entries
    document = {**views.framed(moment), "slot_s": SLOT_S, "complete": complete, "rows": rows}
    document["forecast"] = forecast_of(moment.state) if forecast else None
    return at.answer(moment, document, lasts=complete)


@router.get("/nodes", response_model=models.NodesPage)
async def nodes(
    at: At,
    state: Annotated[NodeState | None, Query(description="Only in this state.")] = None,
    pool: Pool = None,
    text: Text = None,
    limit: Limit = 100,
    cursor: CursorText = None,
) -> Response:
    """List nodes: pool, contact, loan, who is on each GPU; its utilisation, if asked of now."""
    asked = cursors.question("nodes", at.cell, state, pool, text)
    page = await at.page(cursor, asked)

    moment, heard = await at.settled(measured_at, None if page is None else page.entries)
    found = views.chosen_nodes(
        nodes_of(views.reading_of(moment)), state=state and state.value, pool=pool, text=text
    )
    begin = 0 if page is None else page.position
    used = {name: one.used for name, one in heard.items()}
    rows = nodes_table(views.reading_of(moment), found[begin : begin + limit], used).nodes
    shown = views.written(rows)
    more = begin + limit if begin + limit < len(found) else None
    frame = {**views.framed(moment), "total": len(found)}
    after = await at.next(moment, asked, more)
    return at.answer(moment, {**frame, "next": after, "nodes": shown})


@router.get("/jobs", response_model=models.JobsPage | models.SomeFields)
async def jobs(
    at: At,
    state: Annotated[
        str | None,
        Query(
            description=f"Only in one of these states, with commas between: {', '.join(JobState)}.",
            max_length=256,
        ),
    ] = None,
    tenant: Annotated[str | None, Query(description="Only this tenant's.", max_length=256)] = None,
    pool: Pool = None,
    text: Text = None,
    sort: Annotated[
        str,
        Query(
            description=f"One of {', '.join(views.SORTS)}; - before it turns it round.",
            max_length=32,
        ),
    ] = "submitted",
    fields: Annotated[
        str | None,
        Query(description="Only these fields of each row, with commas between.", max_length=1024),
    ] = None,
    position: Annotated[
        bool, Query(description="Whether to tell when its turn comes, where the policy has one.")
    ] = False,
    limit: Limit = 100,
    cursor: CursorText = None,
    skip: Annotated[
        int | None,
        Query(
            description="So many rows are passed over. Name the entry, too: else the rows may be "
            "others when the next are asked for.",
            ge=0,
            le=2**31,
        ),
    ] = None,
) -> Response:
    """List jobs: state, size, progress, slack, and why in words; finished ones too."""
    wanted = views.wanted_fields(fields)
    states = views.wanted_states(state)
    asked = cursors.question("jobs", at.cell, states, tenant, pool, text, sort)
    page = await at.page(cursor, asked)
    if page is not None and skip is not None:
        raise Problem(400, "a cursor says where its page begins; leave skip out", parameter="skip")
    begin = (skip or 0) if page is None else page.position

    def chosen(moment: Moment) -> tuple[str, ...]:
        found = views.chosen_jobs(
            moment.state,
            states=states,
            tenant=tenant,
            pool=pool,
            text=text,
            sort=sort,
            named=at.view(moment).names,
        )
        return tuple(job.id for job in found)  # the state that is answered of may be another object

    async def gather(moment: Moment) -> tuple[int, tuple[str, ...], dict[str, End]]:
        if moment.pinned:
            feed, seen_by = moment.feed, f"{at.who.name} {at.who.rights}"
            key = (feed.name, feed.generation, moment.entries, asked, seen_by)
            found = at.here.past.orders.names(key, partial(chosen, moment))
        else:
            found = chosen(moment)
        names = found[begin : begin + limit]
        rows = [moment.state.jobs[name] for name in names]
        return len(found), names, await journal_queries.ends(at, moment, rows)

    moment, gathered = await at.settled(gather, None if page is None else page.entries)
    total, names, ends = gathered
    shown = [moment.state.jobs[name] for name in names]
    turns = positions(moment.state) if position else {}
    rows: Any = jobs_table(views.reading_of(moment), shown, ends, turns).jobs
    if wanted is not None:
        # Whose a job is decides what of it is seen, so that is there until it is looked through.
        needed = dict.fromkeys((*wanted, *WHOSE))
        rows = [{name: getattr(row, name) for name in needed} for row in rows]
    frame = {**views.framed(moment), "total": total}
    document = {**frame, "jobs": views.written(rows)}
    more = begin + limit if begin + limit < total else None
    document["next"] = await at.next(moment, asked, more)
    seen = at.seen(moment, document)
    if wanted is not None:
        plain = orjson.loads(orjson.dumps(seen["jobs"]))  # some are bytes already
        seen["jobs"] = [{name: row[name] for name in wanted} for row in plain]
    return at.tagged(moment, seen)


@router.get("/jobs/{job}", response_model=models.JobAnswer)
async def job(job: JobId, at: At) -> Response:
    """Give one job. One that the state has forgotten is still told by `why` and `story`."""

    async def gather(moment: Moment) -> dict[str, End]:
        name = at.view(moment).named(job)
        known = None if name is None else moment.state.jobs.get(name)
        return await journal_queries.ends(at, moment, [known] if known else [])

    moment, ends = await at.settled(gather)
    name = at.view(moment).named(job)
    known = None if name is None else moment.state.jobs.get(name)
    if known is None:
        raise journal_queries.no_job(at, moment, job)
    (row,) = jobs_table(views.reading_of(moment), [known], ends).jobs
    return at.answer(moment, {**views.framed(moment), "job": row})


def _may_read_text(who: Subject, answer: Answer) -> bool:
    """Whether somebody may have a text as it is: nothing in it is hidden from them."""
    if who.sight is Sight.EVERYTHING:
        return True
    own = answer.job is not None and who.owns(answer.job.tenant)
    return own and who.sight is Sight.ALL_NAMES


@router.get("/jobs/{job}/why", response_model=WhyDocument | models.WhyInWords)
async def why(
    job: JobId,
    at: At,
    text: Annotated[
        int | None,
        Query(
            description="With `text`, what `tidegate why JOB` prints, so many columns wide; in "
            "short for whoever may see the answer in part alone.",
            ge=40,
            le=400,
        ),
    ] = None,
) -> Response:
    """Explain a job, as `tidegate why JOB --json` does: what it waits for, or why it was moved."""
    moment, answer = await journal_queries.why(at, job)
    document = why_document(answer)
    if text is not None:
        if at.here.lay_out is None:
            raise wrong_field("text", "this gateway has no text; leave it out", 400)
        if _may_read_text(at.who, answer):
            words = at.here.lay_out(answer, text)
        else:  # what is others' is hidden in the document, and so in what is told of it
            words = plain_why(at.seen(moment, document, own=job), text)
        told = {one.name: getattr(document, one.name) for one in fields(document)}
        document = models.WhyInWords(**told, text=words)
    return at.answer(moment, document, own=job)


@router.get("/jobs/{job}/story", response_model=models.StoryAnswer)
async def story(job: JobId, at: At) -> Response:
    """Give what happened to a job, each event with its entry and the reason behind it."""
    moment, events = await journal_queries.story(at, job)
    return at.answer(moment, {**views.framed(moment), "job": job, "events": events}, own=job)


@router.get("/jobs/{job}/stays", response_model=models.StaysAnswer)
async def stays(job: JobId, at: At) -> Response:
    """Give where a job ran, when and how large."""
    moment, found = await journal_queries.told(at, job)
    document = {**views.framed(moment), "job": job, "stays": list(stays_of(found[0]))}
    return at.answer(moment, document, own=job)


@router.get("/loans/history", response_model=models.LoanHistoryAnswer)
async def loan_history(
    at: At,
    late: Annotated[
        bool, Query(description="Only those that are later than due, or ended so.")
    ] = False,
) -> Response:
    """List every loan: when it began, was called back and was back, and how late that was."""
    moment, loans = await at.settled(journal_queries.loan_history)
    shown = [one for one in loans if one.late_s > 0.0 or not late]
    return at.answer(moment, {**views.framed(moment), "loans": shown})


@router.get("/jobs/{job}/curves", response_model=models.CurvesAnswer)
async def curves(
    job: JobId,
    at: At,
    points: Annotated[int, Query(description="Of each curve, at most.", ge=2, le=POINTS)] = POINTS,
) -> Response:
    """Give what a job reported of itself over time, such as its loss."""
    moment, found = await journal_queries.samples(at, job, points)
    complete = moment.feed.index.entries >= moment.entries
    document = {"job": job, "complete": complete, "curves": curves_of(found, points)}
    return at.answer(moment, {**views.framed(moment), **document}, lasts=complete, own=job)


@router.get("/loans", response_model=models.LoansAnswer)
async def loans(at: At) -> Response:
    """List nodes on loan: since when, when they are due back; and how lending went so far."""
    moment = await at.moment()
    found = loans_table(views.reading_of(moment))
    document = {**views.framed(moment), "loans": found.loans, "totals": found.totals}
    return at.answer(moment, document)
