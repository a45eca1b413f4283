"""The routes of `/api/v1` about the fleet: as a whole, who speaks for it and leads it, reclaims."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from gateway import cursors, models_fleet as models, views
from gateway.agents import agent_rows, agents_of, leaders as leaders_of
from gateway.fleet import fleet_of, measured_at
from gateway.past import Moment
from gateway.reclaims import reclaims as reclaims_of
from gateway.request_context import (
    At,
    CellName,
    CursorText,
    Here,
    Limit,
    known_parameters,
    plain,
)

router = APIRouter(dependencies=[Depends(known_parameters)])


@router.get("/fleet", response_model=models.FleetAnswer)
async def fleet(at: At) -> Response:
    """Give all nodes and who is on each GPU, as columns for a drawing; `nodes` has rows."""
    moment, heard = await at.settled(measured_at)
    # Its names are as who asks sees them already: to look through it all would be slow.
    return at.tagged(moment, fleet_of(moment, at.view(moment), heard))


@router.get("/agents", response_model=models.AgentsPage)
async def agents(
    at: At,
    text: Annotated[
        str | None,
        Query(description="Only those whose names hold this, in any case.", max_length=256),
    ] = None,
    limit: Limit = 100,
    cursor: CursorText = None,
) -> Response:
    """List agents: their nodes, newest start, contact, and, asked of now, when they were heard."""
    asked = cursors.question("agents", at.cell, text)
    page = await at.page(cursor, asked)
    begin = 0 if page is None else page.position

    async def gather(moment: Moment) -> tuple[int, list[dict[str, object]]]:
        found = agents_of(moment.state, text)
        heard = await measured_at(moment)
        return len(found), await agent_rows(
            moment, found[begin : begin + limit], heard, at.who.sight
        )

    moment, (total, rows) = await at.settled(gather, None if page is None else page.entries)
    more = begin + limit if begin + limit < total else None
    after = await at.next(moment, asked, more)
    document = {**views.framed(moment), "total": total, "next": after, "agents": rows}
    return at.answer(moment, document, lasts=moment.feed.index.entries >= moment.entries)


@router.get("/leaders", response_model=models.LeadersAnswer)
async def leaders(at: At, limit: Limit = 100, cursor: CursorText = None) -> Response:
    """List who led the cell, newest first: each start of a leader, with its entry and policy."""
    asked = cursors.question("leaders", at.cell)
    return await at.newest_first(
        "leaders", asked, cursor, lambda at, before: leaders_of(at.feed, before, limit)
    )


@router.get("/reclaims", response_model=models.ReclaimsPage)
async def reclaims(
    at: At,
    node: Annotated[str | None, Query(description="Only of this node.", max_length=256)] = None,
    limit: Limit = 100,
    cursor: CursorText = None,
) -> Response:
    """List nodes that were called back, newest first: when each was saved, empty, back, and due."""
    asked = cursors.question("reclaims", at.cell, node)
    return await at.newest_first(
        "reclaims", asked, cursor, lambda at, before: reclaims_of(at, before, limit, node)
    )


@router.get("/verified", response_model=models.VerifiedAnswer)
async def verified(here: Here, cell: CellName = None) -> Response:
    """Say whether the log decides the same again, byte for byte; the first question begins it."""
    return plain(here.verifying.said(here.cells.live(cell)))
