"""The published document is what the code says, and the answers are what the document says."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings, strategies
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from bus.clock import SystemClock
from bus.sqlite import SqliteBus
from gateway import app as gateway_app, openapi
from gateway.app import make_app
from gateway.branches import Branches
from gateway.cells import Cells
from gateway.limits import Limits
from gateway.log import ServedLog
from gateway.outbox import Outbox
from gateway.past import Past
from gateway.posting import Desk
from gateway.request_context import Gateway
from gateway.subjects import Role, Sight, Subject
from gateway.verifying import Verifying
from schemas.requests import VERB_NAMES
from tests.gateway.conftest import opened
from tests.gateway.test_sight import As
from tests.patience import PATIENCE_S

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
#: Of each route.
_EXAMPLES = 15


def test_the_published_document_is_up_to_date() -> None:
    assert openapi.main(["--check"]) == 0, "run python -m gateway.openapi"


def test_every_read_takes_a_moment_and_every_error_is_a_problem() -> None:
    document = openapi.make().openapi()
    assert document["openapi"].startswith("3.1")
    momentless = {"/me", "/cells", "/health", "/stream", "/entries/{number}", "/diff"}
    momentless |= {"/requests/{request_id}", "/jobs/{job}/output", "/perfetto", "/verified"}
    momentless |= {"/branches", "/branches/{branch_id}", "/branches/{branch_id}/log"}
    verbs = {"/requests": {"post"}, "/branches": {"post"}, "/branches/{branch_id}": {"delete"}}
    assert set(document["paths"].pop("/api/v1/job-file")) == {"post"}
    for path, operations in document["paths"].items():
        assert set(operations) == {"get"} | verbs.get(path.removeprefix("/api/v1"), set())
        names = {one["name"] for one in operations["get"].get("parameters", ())}
        if path.removeprefix("/api/v1") not in momentless:
            assert {"entry", "at", "cell"} <= names, path
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if status >= "400":
                    assert list(answer["content"]) == ["application/problem+json"]


def test_all_verbs_are_in_the_document() -> None:
    document = openapi.make().openapi()
    body = document["components"]["schemas"]["RequestBody"]
    assert set(body["properties"]["args"]["discriminator"]["mapping"]) == set(VERB_NAMES)
    assert not {"subject", "role", "tenant"} & set(body["properties"])


def test_a_start_knows_what_routes_take_and_makes_no_document() -> None:
    """It costs half a second of a start."""
    app = openapi.make()
    assert app.openapi_schema is None
    operations = [one for path in app.openapi()["paths"].values() for one in path.values()]
    taken = {one["operationId"]: one.get("parameters", ()) for one in operations}
    assert app.state.parameters == {
        route: [one["name"] for one in told if one["in"] == "query"]
        for route, told in taken.items()
    }
    assert app.state.integers == {
        route: [one["name"] for one in told if _is_integer(one["schema"])]
        for route, told in taken.items()
    }


def test_who_asks_for_the_document_while_it_is_made_gets_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described, begun = gateway_app._described, threading.Event()

    def slowly(document: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        time.sleep(0.2)
        return described(document)

    monkeypatch.setattr(gateway_app, "_described", slowly)
    app = openapi.make()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(app.openapi)
        assert begun.wait(PATIENCE_S)
        assert "securitySchemes" in app.openapi()["components"]
        assert first.result() is app.openapi()


def _is_integer(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "integer" or any(map(_is_integer, schema.get("anyOf", ())))


class Party:
    """An authority that knows each of its subjects by a token of its name."""

    stranger = "nobody"
    subjects: Mapping[str, Subject] = {
        "Bearer viewer": As(Role.VIEWER, Sight.ALL_NAMES, None).who,
        "Bearer tenant": As(Role.TENANT, Sight.OWN_NAMES, "vision").who,
        "Bearer operator": As(Role.OPERATOR, Sight.EVERYTHING, None).who,
        "Bearer admin": As(Role.ADMIN, Sight.EVERYTHING, None).who,
    }

    async def subject(
        self, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> Subject | None:
        return self.subjects.get(headers.get("authorization", ""))


@pytest.fixture
def url(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A gateway on a port, in a thread."""
    for name in ("read", "write"):
        monkeypatch.setattr(Limits, name, lambda self, subject: None)
    clock, listener = SystemClock(), socket.create_server(("127.0.0.1", 0))
    served = ServedLog(str(log), lambda: SqliteBus.open_readonly(log, clock), log, log.parent)
    desk = Desk(Outbox(lambda clock: SqliteBus.open(log, clock), log))
    cells = Cells(served, clock)
    opening = partial(opened, log)
    branches, verifying = Branches(opening, 0), Verifying(opening)
    branches.forecasts.patience_s = 0.0  # nothing runs here: tests/process has that
    gateway = Gateway(
        cells, Past(), Limits(clock), Party(), clock, "test", branches, verifying, desk
    )
    server = uvicorn.Server(uvicorn.Config(make_app(gateway), log_level="critical"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    deadline_s = time.monotonic() + PATIENCE_S
    while not (gateway.cells.feeds and gateway.cells.problem == ""):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_drawn_requests_are_answered_as_the_document_says(url: str) -> None:
    """Also those that break it: wrong types, bounds, names and values; subjects take turns."""
    schema = schemathesis.openapi.from_dict(openapi.make().openapi())
    schema.config.update(base_url=url)
    asked, came_in, tokens = 0, set[str](), itertools.cycle(Party.subjects)
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        if operation.path.endswith("/stream"):  # it would last
            continue
        both = [operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]

        @given(case=strategies.one_of(both))
        @settings(
            max_examples=_EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            token = next(tokens)
            given = case.call_and_validate(headers={"Authorization": token}, checks=CHECKS)
            came_in.update({token} if given.status_code == 200 else ())
            answer = case.call_and_validate(checks=CHECKS)  # a stranger
            assert answer.status_code in (400, 401, 405), answer.status_code

        ask()
    assert asked > 100
    assert came_in == set(Party.subjects)
