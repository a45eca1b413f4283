"""The body of a request that asks for something, read within bounds and checked field by field."""

import asyncio
from asyncio import FIRST_COMPLETED
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from gateway.problems import ENDS, Problem, wrong_field
from schemas import requests
from schemas.parse import Rejected, first_error, parse_object, repeated_key, shown
from schemas.values import MAX_MESSAGE_BYTES

_Model = TypeVar("_Model", bound=BaseModel)
#: A message has an envelope and who asks beside what is asked for.
BODY_MAX_BYTES = MAX_MESSAGE_BYTES - 16 * 1024
#: How long a body may take to come, in seconds: who sends none holds no connection open.
BODY_TIMEOUT_S = 20.0
#: What a request has that the gateway alone says.
_OURS = tuple(name for name in requests.Request.model_fields if name not in ("args", "reason"))
_FIELDS = ("args", "reason", "dry_run")


@dataclass(frozen=True, slots=True)
class Body:
    """What is asked for, its arguments not checked yet."""

    args: Any
    reason: Any
    dry_run: bool


async def read_body(request: Request) -> Body:
    """Read the body of a request.

    Raises:
        Problem: 408, 503, 413, 415, 400 or 422: it does not come, or not before the gateway ends,
            is too large, no JSON, or has a wrong field.
    """
    return _checked(await read_json(request))


async def read_json(request: Request) -> dict[str, Any]:
    """Read a body that is a JSON object.

    Raises:
        Problem: 408, 503, 413, 415 or 400: it does not come, or not before the gateway ends, is too
            large, or no JSON object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415,
            f"the body is {kind[:64] or 'of no type'}; send JSON, and say so: "
            "Content-Type: application/json",
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "the body is encoded; send it as it is, without Content-Encoding")
    raw = await _bytes(request)
    # A large one takes a tenth of a second: of who sends many, others' come between.
    async with request.app.state.gateway.desk.alone(f"body of {request.state.subject.name}"):
        await asyncio.sleep(0)
        found = parse_object(raw, BODY_MAX_BYTES)
        wrong = found if isinstance(found, Rejected) else repeated_key(raw, found)
    if wrong is not None:
        raise Problem(400, f"the body: {wrong.field} {wrong.reason}".replace("  ", " "),
                      parameter=wrong.field or None)  # fmt: skip
    assert isinstance(found, dict)
    return found


def documented(name: str) -> dict[str, Any]:
    """Say in the API's document what a body is that a route reads itself."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def fitting(model: type[_Model], found: dict[str, Any]) -> _Model:
    """Make a body's model of it.

    Raises:
        Problem: 422, a field is wrong.
    """
    try:
        return model.model_validate(found)
    except ValidationError as error:
        wrong = first_error(error)
        raise wrong_field(wrong.field, wrong.reason) from None


def _checked(found: dict[str, Any]) -> Body:
    for name in found:
        if name in _OURS:
            extra = "; it is the header Idempotency-Key" if name == "id" else ""
            extra = "; it is the parameter cell of the address" if name == "cell" else extra
            raise wrong_field(name, f"is the gateway's to say; leave it out{extra}")
        if name not in _FIELDS:
            raise Problem(422, f"{name[:64]!r} is no field here; there are {', '.join(_FIELDS)}",
                          parameter=name[:64])  # fmt: skip
    if "args" not in found:
        example = '{"args": {"verb": "node.cordon", "node": "..."}}'
        raise wrong_field("args", f"is missing; give the verb: {example}")
    dry_run = found.get("dry_run", False)
    if not isinstance(dry_run, bool):
        raise wrong_field("dry_run", f"should be true or false, got {shown(dry_run)}")
    return Body(found["args"], found.get("reason", ""), dry_run)


def all_taken(said: Any, taken: Any, path: str) -> None:
    """Refuse a field that was said and is in nothing that was taken of it.

    A job's description comes in events, too, whose readers pass over what only newer ones know.
    Of what a person asks for, to pass over a part would be to do something else.

    Raises:
        Problem: 422, naming the field.
    """
    if isinstance(said, dict) and isinstance(taken, dict):
        for name, part in said.items():
            if name not in taken:
                known = ", ".join(taken)
                raise wrong_field(f"{path}.{name[:64]}", f"is no field here; there are {known}")
            all_taken(part, taken[name], f"{path}.{name}")
    elif isinstance(said, list) and isinstance(taken, list):
        for number, pair in enumerate(zip(said, taken, strict=True)):
            all_taken(*pair, f"{path}[{number}]")


async def _bytes(request: Request) -> bytes:
    """Read a body, no further than it may go, and not once the gateway ends."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > BODY_MAX_BYTES:
        raise _too_large()
    closing: asyncio.Event = request.app.state.gateway.closing
    reading = asyncio.ensure_future(_whole(request))
    ending = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait((reading, ending), timeout=BODY_TIMEOUT_S, return_when=FIRST_COMPLETED)
        if reading.done():
            return reading.result()
    finally:
        reading.cancel()
        ending.cancel()
    close = {"Connection": "close"}
    if closing.is_set():
        raise Problem(503, f"{ENDS}; nothing was done: send it again", headers=close)
    raise Problem(
        408,
        f"the body did not come within {BODY_TIMEOUT_S:g} s; nothing was done: send it again",
        headers=close,
    )


async def _whole(request: Request) -> bytes:
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > BODY_MAX_BYTES:
                raise _too_large()
            parts.append(part)
    except ClientDisconnect:
        raise Problem(400, "the body was cut off; nothing was done") from None
    return b"".join(parts)


def _too_large() -> Problem:
    # The rest is not read: the connection is of no further use.
    return Problem(413, f"the body is larger than {BODY_MAX_BYTES} bytes; shorten it",
                   headers={"Connection": "close"})  # fmt: skip
