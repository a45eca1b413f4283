"""The routes of `/api/v1/branches`: what would come of a change; and when a job will end."""

import os
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from gateway import journal_queries, models_branches as models
from gateway.body import documented, fitting, read_json
from gateway.branches import KeptBranch, before_any_leader, change_of, check
from gateway.feed import Feed
from gateway.models_branches import HOURS_LEAST, HOURS_MOST, RUNS_MOST, BranchBody
from gateway.past import held
from gateway.posting import NAME
from gateway.problems import ENDS, Problem, later
from gateway.request_context import (
    At,
    CellName,
    Gateway,
    Here,
    JobId,
    Who,
    known_parameters,
    plain,
    tagged,
)
from gateway.subjects import Sight, Subject
from scheduler.core.transitions import TERMINAL

router = APIRouter(dependencies=[Depends(known_parameters)])
_PIECE_BYTES = 64 * 1024
BranchId = Annotated[str, Path(description="The branch's id.", max_length=64)]
Key = Annotated[
    str | None,
    Header(
        description="Made by whoever asks. Asked again with it, the answer is of the first.",
        pattern=NAME,
    ),
]
_CANNOT: dict[int | str, dict[str, Any]] = {409: {"description": "It cannot be branched there."}}
_COMING: dict[int | str, dict[str, Any]] = {
    202: {"model": models.ForecastComing, "description": "It is being worked out."},
    **_CANNOT,
}
_LOG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}},
    409: {"description": "It is not done, or cannot be a log."},
}


@router.post(
    "/branches",
    status_code=202,
    response_model=models.BranchAnswer,
    openapi_extra=documented("BranchBody"),
    responses=_CANNOT,
)
async def begin_branch(
    request: Request, here: Here, who: Who, cell: CellName = None, idempotency_key: Key = None
) -> Response:
    """Try something: go on from an entry with a change, beside a control. `202`, and where to look.

    The real engine decides, with ideal agents, in a process of its own; nothing is written to the
    log. One of yours runs at a time, others wait. What is kept ends with the gateway.
    """
    _may_branch(who)
    body = fitting(BranchBody, await read_json(request))
    feed = here.cells.live(cell)
    kept = here.branches.begun(feed, who, body, idempotency_key)
    if kept is None:
        kept = await _begun(here, who, feed, body, idempotency_key)
    return plain(kept.document(whole=True), 202, {"Location": f"/api/v1/branches/{kept.id}"})


async def _begun(
    here: Gateway, who: Subject, feed: Feed, body: BranchBody, key: str | None
) -> KeptBranch:
    if body.entry is not None:
        await here.cells.reach(feed, body.entry + 1)
    entry = feed.entries - 1 if body.entry is None else body.entry
    if not feed.entries:
        raise before_any_leader()
    held(feed, "entry", entry)
    with here.limits.seek(who.name):
        state = await here.past.state(feed, entry + 1)
    check(change_of(body.change), state)
    return await here.branches.ask(feed, who, body, entry, here.clock.now_s(), key)


def _may_branch(who: Subject) -> None:
    if who.sight is Sight.OWN_NAMES:
        raise Problem(
            403,
            "a branch decides on the jobs of all tenants and tells what comes of them, so it is "
            "not for who sees only its own; GET /api/v1/jobs/ID/forecast says when yours will end",
        )


@router.get("/branches", response_model=models.BranchesAnswer)
async def branches(here: Here, who: Who) -> Response:
    """List your branches, newest first; operators and admins see everybody's."""
    seen = here.branches.seen(who)
    return plain({"branches": [one.document(whole=False) for one in seen]})


@router.get("/branches/{branch_id}", response_model=models.BranchAnswer)
async def branch(branch_id: BranchId, here: Here, who: Who) -> Response:
    """Say how far a branch is, and what came of it."""
    return plain(here.branches.one(who, branch_id).document(whole=True))


@router.delete("/branches/{branch_id}", response_model=models.BranchAnswer)
async def end_branch(branch_id: BranchId, here: Here, who: Who) -> Response:
    """End a branch that waits or runs; forget one that is over. The answer is as it was last."""
    kept = here.branches.one(who, branch_id)
    here.branches.end(kept)
    return plain(kept.document(whole=True))


@router.get("/branches/{branch_id}/log", response_class=StreamingResponse, responses=_LOG)
async def branch_log(branch_id: BranchId, here: Here, who: Who) -> Response:
    """Give a branch as a log: the entries before, then its own. `tidegate replay` takes it."""
    kept = here.branches.one(who, branch_id)
    path = await here.branches.log(kept, who)
    # Opened at once: it goes when the branch is forgotten, which whoever reads it need not notice.
    file = path.open("rb")
    headers = {
        "Content-Length": str(os.fstat(file.fileno()).st_size),
        "Content-Disposition": f'attachment; filename="branch-{kept.id}.db"',
    }
    return StreamingResponse(_pieces(file), headers=headers, media_type="application/octet-stream")


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


@router.get("/jobs/{job}/forecast", response_model=models.ForecastAnswer, responses=_COMING)
async def forecast(
    job: JobId,
    at: At,
    runs: Annotated[
        int,
        Query(description="Runs; all but the first draw what nobody measured.", ge=1, le=RUNS_MOST),
    ] = 8,
    hours: Annotated[
        float, Query(description="How far to look.", ge=HOURS_LEAST, le=HOURS_MOST)
    ] = 12.0,
) -> Response:
    """Say when a job will start and end: a range over several runs of a branch without change.

    It is worked out for all jobs of the moment at once. Without `entry`, it may be a minute old.
    """
    moment = await at.moment()
    view, state, feed = at.view(moment), moment.state, moment.feed
    name = view.named(job)
    if at.who.sight is Sight.OWN_NAMES and name is not None and not view.own(name):
        raise Problem(403, "this is another tenant's job: its tenant and operators may ask when it "
                      "will end")  # fmt: skip
    known = None if name is None else state.jobs.get(name)
    if known is None:
        raise journal_queries.no_job(at, moment, job)
    if moment.entry is None or not state.leader.policy:
        raise before_any_leader()
    frame = {"cell": feed.cell, "origin_s": feed.origin_s, "job": job, "runs": runs,
             "hours": hours}  # fmt: skip
    if known.state in TERMINAL:
        document = {**frame, "entry": moment.entry, "now_s": state.now_s, "starts": None,
                    "ends": None, "took_s": 0.0}  # fmt: skip
        return tagged(at.request, at.who, feed.cell, str(moment.entry), document, kept=False)
    found = await at.here.branches.forecasts.ask(
        feed, at.who, moment, known.id, hours, runs, at.here.clock.now_s()
    )
    if not await found.computation.over(at.here.branches.forecasts.patience_s):
        coming = {"cell": feed.cell, "entry": found.entry, "job": job}
        return plain({**coming, "done": found.computation.done}, 202, {"Retry-After": "1"})
    if found.computation.state == "failed":
        raise Problem(409, f"it cannot be foretold: {found.computation.problem}")
    if found.computation.state == "ended":
        raise later(ENDS, 5.0)
    document = {**frame, **found.of(known.id)}
    return tagged(at.request, at.who, feed.cell, str(found.entry), document, kept=False)
