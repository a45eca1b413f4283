"""The routes of `/api/v1/requests`: asking for something, and what came of what people asked."""

import asyncio
import re
import secrets
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from explain import job_file as files
from explain.reading import pieces_for
from gateway import cursors, models
from gateway.about import Kind
from gateway.body import Body, documented, fitting, read_body, read_json
from gateway.models_requests import ActsPage, JobFileAnswer, JobFileBody, RequestAnswer
from gateway.outcomes import Outcome, acts, outcome, refusal
from gateway.past import guarded
from gateway.posting import NAME
from gateway.problems import Problem, used_before
from gateway.request_context import (
    At,
    CellName,
    CursorText,
    Here,
    JobId,
    Limit,
    Who,
    known_parameters,
    plain,
)
from gateway.subjects import Sight, Subject
from schemas.logs import LogChunk
from schemas.requests import Request as Asking
from schemas.topics import LOGS

router = APIRouter(dependencies=[Depends(known_parameters)])
#: So long an answer waits for the scheduler at most, in seconds.
WAIT_MOST_S = 30.0
#: How often it is looked whether there is one.
_LOOK_S = 0.2
#: Pieces of a log in one answer, of 64 KiB at most each.
_PIECES_MOST = 16
#: Pieces, others' among them, that are looked through for one answer, and their bytes.
_LOOKED_MOST, _LOOKED_BYTES = 2000, 4 * 2**20
#: Pieces that are looked through before others have their turns.
_TURN = 16
#: YAML takes a hundred times as long to read as JSON.
YAML_MAX_BYTES = 64 * 1024
#: What is wrong with a field of a form begins with its name.
_FIELD = re.compile(r"([a-z_.0-9\[\]]+): ")
_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?=[,;]|$)")
Key = Annotated[
    str | None,
    Header(
        description="The request's id, made by whoever asks. Asked again with it, the answer is of "
        "the first.",
        pattern=NAME,
    ),
]
Prefer = Annotated[
    str | None,
    Header(
        description="`wait=5`: wait so many seconds, 30 at most, for the scheduler's word.",
        max_length=256,
    ),
]
_ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"model": RequestAnswer, "description": "Written; no scheduler has said yet."}
}


@router.post(
    "/requests",
    response_model=RequestAnswer,
    openapi_extra=documented("RequestBody"),
    responses=_ACCEPTED,
)
async def ask(
    request: Request,
    here: Here,
    who: Who,
    cell: CellName = None,
    idempotency_key: Key = None,
    prefer: Prefer = None,
) -> Response:
    """Ask for something: a verb with its arguments. `202` and where to look, or what came of it."""
    body = await read_body(request)
    desk = here.desk
    feed = here.cells.live(cell)
    name = idempotency_key or f"gw-{secrets.token_hex(8)}"
    asked, log_s = await desk.made(feed, who, body, name, here.clock.now_s())
    if body.dry_run:
        desk.allowed(feed, who, asked)
        return _answer(who, desk.preview(feed, asked))
    async with desk.alone(asked.id):
        found = None
        if idempotency_key is not None:
            found = await outcome(feed, desk.mailbox(feed), asked.id)
        if found is not None and not found.is_of(asked):
            raise used_before(asked.id, "request")
        if found is None:
            desk.allowed(feed, who, asked)
            await desk.send(asked, log_s)
            found = Outcome(asked, "pending")
    with here.limits.wait(who.name) as may_wait:
        # It is written, so that whoever waits too often already is told no error: 202, and where.
        wait_s = waited(prefer) if may_wait else 0.0
        end_s = asyncio.get_running_loop().time() + wait_s
        while found.result == "pending" and asyncio.get_running_loop().time() < end_s:
            if here.closing.is_set():
                break
            await here.cells.changed(feed.cell, _LOOK_S)
            feed = here.cells.live(cell)
            found = await outcome(feed, desk.mailbox(feed), asked.id) or found
    if not found.is_of(asked):  # another gateway wrote it just before ours
        raise used_before(asked.id, "request")
    return _answer(who, found, feed.nobody, waited=wait_s)


@router.post("/job-file", response_model=JobFileAnswer, openapi_extra=documented("JobFileBody"))
async def job_file(request: Request, here: Here, who: Who) -> Response:
    """Read the file of a job, as `tidegate submit` does, for a form; nothing is asked for.

    Values are looked at one by one; what is missing may be said beside the file. With `form`, which
    counts before the file, nothing may be missing but `tenant` and the moment of `deadline`.
    """
    body = fitting(JobFileBody, await read_json(request))
    text = body.text.encode()
    is_yaml = not text.lstrip().startswith(b"{")
    if is_yaml and len(text) > YAML_MAX_BYTES:
        raise Problem(413, f"a file in YAML may have {YAML_MAX_BYTES} bytes here; write it in "
                      "JSON, or give it to tidegate submit", parameter="text")  # fmt: skip
    # One at a time in all, and of who sends many, one at a time waits for that.
    async with here.desk.alone(f"job file of {who.name}"), here.desk.alone("job file"):
        return await asyncio.to_thread(_read_file, text, body.form, is_yaml=is_yaml)


def _read_file(text: bytes, form: dict[str, Any] | None, *, is_yaml: bool) -> Response:
    fields: dict[str, Any] = {}
    try:
        if form is None or text.strip():
            fields = _good(files.read(text, is_yaml=is_yaml))
    except files.WrongFile as error:
        raise Problem(422, " ".join(files.all_wrong(error)), parameter="text") from None
    except ValueError as error:
        raise Problem(422, f"{error}", parameter="text") from None
    try:
        if form is not None:
            fields = files.laid_over(fields, _good(files.fields_of(form)))
            files.complete(fields)
            if "rates" not in fields and "program" not in fields:
                raise files.WrongFile(
                    "rates: say how fast it is, such as 1=300,4=1000; or give a command, whose "
                    "speed is measured."
                )
    except ValueError as error:
        named = _FIELD.match(f"{error}")
        parameter = f"form.{named[1]}" if named else "form"
        raise Problem(422, f"form.{error}" if named else f"{error}", parameter=parameter) from None
    deadline = fields.pop("deadline", None)
    after_s = None if deadline is None else files.after_s(deadline, "deadline")
    answer = {"fields": fields, "deadline_after_s": after_s}
    return Response(
        orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS), media_type="application/json"
    )


def _good(fields: dict[str, Any]) -> dict[str, Any]:
    """Give fields whose values are good, each for itself."""
    values = {name: said for name, said in fields.items() if name != "deadline"}
    late = files.no_time(fields.get("deadline"))
    if wrong := [*files.wrong_values(values), *files.no_workdir(values), *late]:
        raise files.WrongFile(*wrong)
    return fields


def waited(prefer: str | None) -> float:
    """Read how long to wait, in seconds; what is not understood is no preference (RFC 7240)."""
    found = _WAIT.search(prefer or "")
    return 0.0 if found is None else min(WAIT_MOST_S, float(found[1]))


def _answer(who: Subject, found: Outcome, nobody: str = "", waited: float = 0.0) -> Response:
    if found.result in ("refused", "dead_letter"):
        raise refusal(found.seen_by(who))
    headers = {"Location": f"/api/v1/requests/{found.asked.id}"}
    if waited:
        headers["Preference-Applied"] = f"wait={waited:.0f}"
    if found.result == "would_be_done":
        headers = {}
    status = 202 if found.result == "pending" else 200
    return plain(found.document(nobody), status, headers)


@router.get("/requests/{request_id}", response_model=RequestAnswer)
async def request(
    request_id: Annotated[str, Path(description="The request's id.", max_length=256)],
    here: Here,
    who: Who,
    cell: CellName = None,
) -> Response:
    """Say what came of a request: pending, done, refused, or a dead letter; where and why."""
    feed = here.cells.live(cell)
    found = await outcome(feed, here.desk.mailbox(feed), request_id)
    if found is None or not sees(who, found.asked):
        raise Problem(
            404,
            f"there is no request {request_id[:128]!r}; one that was never answered may be asked "
            "again with the same Idempotency-Key, and GET /api/v1/requests lists those taken",
            parameter="request_id",
        )
    return plain(found.seen_by(who).document(feed.nobody))


@router.get("/jobs/{job}/output", response_model=models.PiecesAnswer)
async def output(
    job: JobId,
    here: Here,
    who: Who,
    reader: Annotated[
        str, Query(description="As the request `job.logs` named it.", pattern=NAME, max_length=128)
    ],
    after: Annotated[
        int | None, Query(description="`next` of the answer before; else the end.", ge=0, le=2**53)
    ] = None,
    cell: CellName = None,
) -> Response:
    """Give what a worker wrote, as far as its agent has sent it to a reader since `after`.

    Take `next` of a first answer, ask by `job.logs` for a reader of a name of its own, then go on
    from there. Who may ask for that may have this.
    """
    feed = here.cells.live(cell)
    now_s = here.clock.now_s()
    args = {"verb": "job.logs", "job": job, "reader": reader, "from_byte": 0, "max_bytes": 1}
    body = Body({**args, "until_s": now_s}, "", dry_run=False)
    try:
        asked, _ = await here.desk.made(feed, who, body, "output", now_s)
        here.desk.allowed(feed, who, asked)
    except Problem as problem:
        if problem.status not in (403, 422):
            raise
        raise Problem(
            404,
            "there is no such job, or its output is not for you: its tenant, operators and admins "
            "read it",
            parameter="job",
        ) from None

    async def find() -> dict[str, Any]:
        begin = after if after is not None else await feed.log.bus.end(LOGS.name)
        pieces, looked, looked_bytes = list[LogChunk](), 0, 0
        async for offset, size, piece in pieces_for(feed.log.bus, begin, reader, job):
            begin, looked, looked_bytes = offset, looked + 1, looked_bytes + size
            pieces += [] if piece is None else [piece]
            if len(pieces) == _PIECES_MOST or looked == _LOOKED_MOST:
                break
            if looked_bytes >= _LOOKED_BYTES:
                break
            if looked % _TURN == 0:
                await asyncio.sleep(0)
        return {"pieces": [piece.model_dump() for piece in pieces], "next": begin}

    return plain(await guarded(feed, find))


def sees(who: Subject, asked: Asking) -> bool:
    """Whether somebody may know of a request: its own, its tenant's, or, if it sees all, any."""
    if who.sight is Sight.EVERYTHING:
        return True
    return asked.subject == who.name or who.owns(asked.tenant)


@router.get("/requests", response_model=ActsPage)
async def requests(
    at: At,
    who: Who,
    subject: Annotated[
        str | None, Query(description="Only what this subject asked for.", max_length=256)
    ] = None,
    verb: Annotated[str | None, Query(description="Only this verb.", max_length=64)] = None,
    about: Annotated[
        str | None, Query(description="Only about this job, node or tenant.", max_length=256)
    ] = None,
    limit: Limit = 100,
    cursor: CursorText = None,
) -> Response:
    """List what people asked for, newest first: who, when, what, and what came of it.

    Operators and admins see all of it, others what they themselves asked for.
    """
    if who.sight is not Sight.EVERYTHING:
        if subject not in (None, who.name):
            raise Problem(
                403,
                "operators and admins see what others asked for; leave subject out to see what "
                "you asked for",
                parameter="subject",
            )
        subject = who.name
    asked = cursors.question("requests", at.cell, subject, verb, about)
    wanted = {Kind.ASKER: subject or "", Kind.VERB: verb or "", Kind.ASKED_OF: about or ""}
    return await at.newest_first(
        "acts", asked, cursor, lambda at, before: acts(at.feed, who, before, limit, wanted)
    )
