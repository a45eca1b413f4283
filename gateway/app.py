"""The application: routes behind the guard, every error a problem, and the OpenAPI document."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any, get_args

from fastapi import FastAPI, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from gateway import routes, routes_branches, routes_fleet, routes_journal, routes_requests
from gateway.guard import LOOPBACK_HOSTS, Guard
from gateway.models import ProblemDocument
from gateway.models_branches import BranchBody
from gateway.models_requests import JobFileBody, RequestBody
from gateway.pages import add_pages, lost, page
from gateway.problems import MEDIA_TYPE, Problem, response, wrong_field
from gateway.request_context import Gateway
from gateway.signing_in import add_signing_in
from schemas.values import PATTERNS_SAY

API = "/api/v1"
#: Modules of routes below it.
PARTS = (routes, routes_branches, routes_fleet, routes_journal, routes_requests)
_SAME = "You have this answer already: its ETag is that of If-None-Match."
_ANSWERS = {
    400: "A parameter is wrong; the problem names it.",
    401: "Nobody knows who asks.",
    403: "Who asks is known, and may not; of a request, the problem names the field.",
    404: "There is no such thing, or no such moment in the log.",
    421: "The request names another host.",
    429: "More than one subject may ask for; Retry-After says when to ask again.",
    500: "The gateway failed.",
    503: "The log cannot be read now, or not so far; Retry-After says when to ask again.",
}
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
#: Of a request that asks for something, besides.
_WRITTEN = {
    409: "The scheduler refused it; the problem names the field, the request and the entry.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "A field of the body is wrong, or the Idempotency-Key was used for another request.",
}


def make_app(gateway: Gateway, hosts: tuple[str, ...] = LOOPBACK_HOSTS) -> FastAPI:
    """Make the application, asked as one of `hosts`; its lifespan follows the log."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        gateway.branches.forgotten = gateway.cells.drop
        following = asyncio.create_task(gateway.cells.run())
        try:
            yield
        finally:
            gateway.closing.set()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            await gateway.branches.close()
            await gateway.verifying.close()
            await gateway.desk.close()

    app = FastAPI(
        title="Tidegate",
        version="1",
        description="What a scheduler of GPUs decided and why, now and at any moment of its log.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    for part in PARTS:
        app.include_router(part.router, prefix=API, responses=_responses())
    add_signing_in(app)
    add_pages(app)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(
        Guard,
        authority=gateway.authority,
        limits=gateway.limits,
        closing=gateway.closing,
        hosts=hosts,
    )
    plain, made = app.openapi, threading.Lock()

    def openapi() -> dict[str, Any]:
        with made:  # several may ask for it at once, each in a thread
            if app.openapi_schema is None:
                app.openapi_schema = _described(plain())
            return app.openapi_schema

    # Made when it is first asked for, which few do: it costs more than all else that starts here.
    app.openapi = openapi  # type: ignore[method-assign]
    app.add_api_route(
        f"{API}/openapi.json", _document, methods=["GET", "HEAD"], include_in_schema=False
    )
    app.state.parameters, app.state.integers = {}, {}
    for part in PARTS:
        for route in part.router.routes:
            assert isinstance(route, APIRoute)
            paths, queries = _taken(route.dependant)
            app.state.parameters[route.name] = list(queries)
            app.state.integers[route.name] = [
                name for name, kind in (paths | queries).items() if _is_integer(kind)
            ]
    return app


def _document(request: Request) -> Response:
    """Give the document; FastAPI calls this in a thread, so that nobody else waits for it."""
    return JSONResponse(request.app.openapi())


def _taken(dependant: Dependant) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the types of what a route and all that it depends on take of a path and of a query."""
    paths, queries = (
        {field.alias: field.field_info.annotation for field in fields}
        for fields in (dependant.path_params, dependant.query_params)
    )
    for other in dependant.dependencies:
        more = _taken(other)
        paths, queries = paths | more[0], queries | more[1]
    return paths, queries


def _is_integer(kind: Any) -> bool:
    return kind is int or any(map(_is_integer, get_args(kind)))


def _responses() -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {304: {"description": _SAME}}
    return found | {int(status): told for status, told in _problems(_ANSWERS).items()}


def _problems(answers: Mapping[int, str]) -> dict[str, dict[str, Any]]:
    return {
        str(status): {"description": text, "content": _PROBLEM} for status, text in answers.items()
    }


def _described(document: dict[str, Any]) -> dict[str, Any]:
    """Say what FastAPI does not know: how one is let in, and how errors look."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["ProblemDocument"] = ProblemDocument.model_json_schema(mode="serialization")
    # The routes read these bodies themselves, so FastAPI does not know their models.
    for model in (RequestBody, JobFileBody, BranchBody):
        body = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= body.pop("$defs", {}) | {model.__name__: body}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in document["paths"].values():
        for method, operation in path.items():
            operation["responses"].pop("422", None)
            if method == "post":
                operation["responses"] = _problems(_WRITTEN) | operation["responses"]
            for status, said in operation["responses"].items():
                if status >= "400":
                    said.setdefault("content", _PROBLEM)
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "cookie": {"type": "apiKey", "in": "cookie", "name": "tidegate-8321"},
    }
    document["security"] = [{"token": []}, {"cookie": []}]
    return document


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return response(error)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    name = where[1] if len(where) > 1 else where[0]
    said = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    text = PATTERNS_SAY.get(first.get("ctx", {}).get("pattern", ""), f"should be {said}")
    if first["type"] == "missing":
        text = "is missing; give it"
    return response(wrong_field(name, text, 400))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 404 and lost(request):
        return await page(request, request.query_params.get("token"), status=404)
    if error.status_code == 404:
        text = f"there is nothing here; GET {API}/openapi.json lists what there is"
        return response(Problem(404, text))
    if error.status_code == 405:
        text = f"{request.method} does nothing here; allowed are {headers.get('Allow', 'GET')}"
        return response(Problem(405, text, headers=headers))
    return response(Problem(error.status_code, str(error.detail), headers=headers))
