"""The route of `/api/v1/reclaims`: nodes that were called back, and how fast they went."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from gateway import cursors, models_reclaims, views
from gateway.reclaims import reclaims as told_reclaims
from gateway.request_context import At, CursorText, Limit, known_parameters

router = APIRouter(dependencies=[Depends(known_parameters)])


@router.get("/reclaims", response_model=models_reclaims.ReclaimsPage)
async def reclaims(
    at: At,
    node: Annotated[str | None, Query(description="Only of this node.", max_length=256)] = None,
    limit: Limit = 100,
    cursor: CursorText = None,
) -> Response:
    """List nodes that were called back, newest first: when each was saved, empty, back, and due."""
    asked = cursors.question("reclaims", at.cell, node)
    page = await at.page(cursor, asked, of_entries=True)
    moment = await at.moment(None if page is None else page.entries)
    before = moment.entries if page is None else page.position
    rows, more = await told_reclaims(moment, before, limit, node)
    after = await at.next(moment, asked, more)
    return at.answer(moment, {**views.framed(moment), "reclaims": rows, "next": after})
