"""Who is let in, from where, how often; and what every answer carries."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from bus.clock import SystemClock
from gateway.guard import Guard
from gateway.limits import READS_AT_ONCE, READS_BURST, SEEKS_AT_ONCE, STREAMS_EACH, Limits
from gateway.problems import Problem
from gateway.subjects import LocalToken, Role, Subject
from tests.gateway.conftest import PORT, TOKEN, Serving, client_of


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert document["detail"]
    return document


async def test_a_stranger_is_told_how_to_come_in(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {TOKEN}"},
                        {"Cookie": f"tidegate-{PORT}={TOKEN}"}, {"Cookie": "a;b=\"c"}):  # fmt: skip
            for path in ("overview", "nothing", "openapi.json"):
                answer = await served.stranger(**headers).get(f"/api/v1/{path}")
                assert "tidegate serve" in problem(answer, 401)["detail"]
                assert answer.headers["www-authenticate"] == "Bearer"


async def test_the_address_is_exchanged_for_a_cookie(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        browser = served.stranger()
        answer = await browser.get("/", params={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert TOKEN not in cookie
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert cookie.startswith(f"tidegate-{PORT}=")  # another port's gateway has its own
        me = (await browser.get("/api/v1/me")).json()
        assert (me["role"], me["via"]) == ("operator", "cookie")
        assert (await browser.get("/")).status_code == 200
        problem(await served.stranger().get("/", params={"token": "x"}), 401)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8321", "", "127.0.0.1.evil.org"])
async def test_another_host_is_misdirected(log: Path, serving: Serving, host: str) -> None:
    async with serving(log) as served:
        for path in ("/", "/api/v1/overview"):
            problem(await served.client.get(path, headers={"Host": host}), 421)
        for known in ("localhost:8321", "[::1]:8321", "127.0.0.1"):
            answer = await served.client.get("/api/v1/me", headers={"Host": known})
            assert answer.status_code == 200


async def test_a_cookie_writes_only_from_our_own_pages(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        browser = served.stranger()
        await browser.get("/", params={"token": TOKEN})
        for site in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
            problem(await browser.post("/api/v1/overview", headers=site), 403)
        page = {"Sec-Fetch-Site": "same-origin"}
        bare = await browser.post("/api/v1/overview", headers=page)
        assert "X-Tidegate" in problem(bare, 403)["detail"]
        ours = await browser.post("/api/v1/overview", headers=page | {"X-Tidegate": "1"})
        assert "POST does nothing here" in problem(ours, 405)["detail"]
        problem(await served.client.post("/api/v1/overview"), 405)  # a token needs no page


async def test_every_answer_is_safe_for_browsers(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        for path in ("/", "/api/v1/overview", "/api/v1/nothing", "/api/v1/jobs?limit=0"):
            headers = (await served.client.get(path)).headers
            assert headers["content-security-policy"].startswith("default-src 'none'; script-src")
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "no-referrer"


#: A path, and the status, the parameter and a part of the detail of its problem.
WRONG: list[tuple[str, int, str | None, str]] = [
    ("nothing", 404, None, "openapi.json lists"),
    ("jobs/nope", 404, "job", "GET /api/v1/jobs, or `tidegate jobs --all`, lists them"),
    ("jobs/job-001", 404, "job", "nearest are job-00"),
    ("jobs/nope/why", 404, "job", "no job 'nope'"),
    ("jobs/nope/story", 404, "job", "no job 'nope'"),
    ("jobs?enrty=5", 400, "enrty", "there are state, tenant"),
    ("jobs?limit=1&limit=2", 400, "limit", "more than once"),
    ("jobs?limit=1001", 400, "limit", "less than or equal to 1000"),
    ("jobs?limit=x", 400, "limit", "a valid integer"),
    ("jobs?limit=1_0", 400, "limit", "in digits alone"),
    ("overview?entry=1_0", 400, "entry", "in digits alone"),
    ("overview?entry=%2010", 400, "entry", "in digits alone"),
    ("overview?entry=10.0", 400, "entry", "in digits alone"),
    ("overview?entry=%D9%A1", 400, "entry", "in digits alone"),
    ("overview?at=1_767_600_000", 400, "at", "ISO 8601"),
    ("overview?at=inf", 400, "at", "ISO 8601"),
    ("tide?points=1_0", 400, "points", "in digits alone"),
    ("jobs/job-0001/why?text=8_0", 400, "text", "in digits alone"),
    ("entries/1_0", 400, "number", "in digits alone"),
    ("diff?entry=1_0&vs=20", 400, "entry", "in digits alone"),
    ("diff?entry=10&vs=2_0", 400, "vs", "in digits alone"),
    ("dead-letters?topic=events&before=1_0", 400, "before", "in digits alone"),
    ("jobs?state=asleep", 400, "state", "choose among queued"),
    ("jobs?sort=colour", 400, "sort", "choose one of submitted"),
    ("jobs?fields=job,colour", 400, "fields", "there are job, tenant"),
    ("jobs?entry=-1", 400, "entry", "greater than or equal to 0"),
    ("overview?entry=1&at=5", 400, "at", "entry or at, not both"),
    ("overview?at=noon", 400, "at", "ISO 8601"),
    ("overview?at=nan", 400, "at", "ISO 8601"),
    ("overview?at=5", 404, "at", "before the log, which began at 2026-01-05"),
    ("overview?at=2999-01-01", 404, "at", "the last entry is"),
    ("overview?entry=9999999", 404, "entry", "the last entry is"),
    ("entries/9999999", 404, "number", "the last entry is"),
    ("diff?entry=1", 400, "vs", "is missing"),
    ("diff?entry=1&vs=9999999", 404, "vs", "the last entry is"),
    ("overview?cell=b", 404, "cell", "this gateway shows default"),
    ("tide?since=noon", 400, "since", "since='noon'"),
    ("dead-letters?before=5", 400, "before", "add topic"),
    (
        "dead-letters?topic=journal",
        400,
        "topic",
        "'commands', 'events', 'requests' or 'telemetry'",
    ),
]


async def test_what_is_asked_wrongly_is_told_what_to_do(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        for path, status, parameter, says in WRONG:
            served.gateway.limits._reads.clear()
            document = problem(await served.client.get(f"/api/v1/{path}"), status)
            assert document.get("parameter") == parameter, path
            assert says in document["detail"], path


async def test_an_entry_that_is_not_there_any_more_is_refused_alike(
    log: Path, serving: Serving
) -> None:
    async with serving(log) as served:
        served.feed.index.first = 10  # as that of a log whose beginning was let go
        for path, parameter in (
            ("entries/9", "number"),
            ("overview?entry=9", "entry"),
            ("diff?entry=9&vs=20", "entry"),
            ("diff?entry=20&vs=9", "vs"),
        ):
            document = problem(await served.client.get(f"/api/v1/{path}"), 404)
            assert document["parameter"] == parameter, path
            assert f"{parameter}=9 is not in the log any more" in document["detail"], path
            assert "begins at entry 10" in document["detail"], path


async def test_a_failure_of_ours_tells_no_secrets(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(log) as served:
        monkeypatch.setattr("gateway.routes.overview_of", lambda reading: 1 / 0)
        answer = await served.client.get("/api/v1/overview")
        assert "ZeroDivision" not in answer.text
        assert "health" in problem(answer, 500)["detail"]
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_who_reads_too_fast_waits(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        clock = served.gateway.clock
        clock.at_s = 1000.0  # type: ignore[attr-defined]
        for _ in range(int(READS_BURST)):
            assert (await served.client.get("/api/v1/me")).status_code == 200
        answer = await served.client.get("/api/v1/me")
        assert "20 reads a second" in problem(answer, 429)["detail"]
        assert answer.headers["retry-after"] == "1"
        clock.at_s = 1001.0  # type: ignore[attr-defined]
        for status in (*[200] * 20, 429):
            assert (await served.client.get("/api/v1/me")).status_code == status


async def test_seeks_at_a_time_are_bounded(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        who = (await served.get("me"))["name"]
        with ExitStack() as under_way:
            for _ in range(SEEKS_AT_ONCE):
                under_way.enter_context(served.gateway.limits.seek(who))
            refused = await served.raw("overview", entry=100)
            assert "past moments" in problem(refused, 429)["detail"]
            assert refused.headers["retry-after"]
        await served.get("overview", entry=100)  # none is held for ever


async def test_streams_are_bounded_by_subject_and_in_all(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        limits = served.gateway.limits
        limits.streams_in_all = STREAMS_EACH + 1
        held = [limits.stream("local") for _ in range(STREAMS_EACH)]
        for one in held:
            one.__enter__()
        answer = await served.client.get("/api/v1/stream")
        assert "8 streams" in problem(answer, 429)["detail"]
        with limits.stream("other"), pytest.raises(Problem, match="9 streams are open in all"):
            limits.stream("third").__enter__()
        for one in held:
            one.__exit__(None, None, None)
        assert limits.streams == 0


async def test_many_reads_of_one_subject_take_turns_and_anothers_comes_between() -> None:
    """A read is let go of where its answer begins: who takes it slowly keeps no place."""
    limits, slow, sent = Limits(SystemClock()), asyncio.Event(), asyncio.Event()
    at_work: Counter[str] = Counter()
    begun: Counter[str] = Counter()

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        name = scope["state"]["subject"].name
        at_work[name] += 1
        begun[name] += 1
        if name == "many":
            await slow.wait()
        at_work[name] -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if name == "many":
            await sent.wait()
        await send({"type": "http.response.body", "body": b""})

    class Named:
        stranger = ""

        async def subject(self, headers: Mapping[str, str], _: object) -> Subject:
            return Subject(headers["authorization"], Role.VIEWER)

    guard = Guard(app, Named(), limits, asyncio.Event())
    async with client_of(guard, {}) as client, asyncio.timeout(20.0):

        def ask(name: str) -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(client.get("/api/v1/me", headers={"Authorization": name}))

        many = [ask("many") for _ in range(3 * READS_AT_ONCE)]
        while begun["many"] < READS_AT_ONCE:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await ask("one")).status_code == 200
        assert begun["many"] == READS_AT_ONCE
        slow.set()
        while begun["many"] < len(many):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not any(one.done() for one in many), "though nobody has taken an answer whole"
        sent.set()
        await asyncio.gather(*many)
        many = [ask("many")]
        await asyncio.gather(*many)
    assert (limits._turns, limits._reading.total()) == ({}, 0)


@pytest.mark.parametrize("ends", [True, False])
async def test_who_waits_as_the_gateway_ends_is_told(ends: bool) -> None:
    """Its server cancels what is not answered by then, and prints what comes of that."""
    begun, closing, clock = asyncio.Event(), asyncio.Event(), SystemClock()

    async def slow(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    guard = Guard(slow, LocalToken(Role.VIEWER, PORT, TOKEN), Limits(clock), closing)
    async with client_of(guard, {}) as client:
        asking = asyncio.create_task(client.get("/"))
        await begun.wait()
        if ends:
            closing.set()
        asking.cancel()
        if ends:
            assert "the gateway ends" in problem(await asking, 503)["detail"]
        else:
            with pytest.raises(asyncio.CancelledError):
                await asking
