"""People ask for something over HTTP, and a scheduler on the same file does it."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bus.contract import Message
from bus.signing import Signer, Verifier
from bus.sqlite import SqliteBus
from explain.acts import right_unchecked
from gateway.limits import WAITS_EACH
from gateway.outbox import Outbox
from gateway.posting import _as_member
from schemas.topics import JOURNAL, REQUESTS, dead_letters
from tests.builders import submitted
from tests.console.conftest import Run
from tests.gateway.conftest import TOKEN, Serving
from tests.gateway.test_access import problem
from tests.gateway.working import CORDON, during, stored, working


async def test_what_is_asked_is_done_and_told(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        asked = served.ask(CORDON, reason="the fan is loud", headers={"Idempotency-Key": "k1"})
        done = await during(desk, asked)
        assert (done["request"], done["result"], done["via"]) == ("k1", "done", "api")
        assert (done["subject"], done["role"], done["about"]) == ("local", "operator", "n0")
        entry = await served.get(f"entries/{done['entry']}")
        assert entry["stimulus"]["data"]["request"]["reason"] == "the fan is loud"
        assert await served.get("requests/k1") == done
        again = await served.ask(
            CORDON, reason="the fan is loud", headers={"Idempotency-Key": "k1"}
        )
        assert again == done
        assert [one["id"] for one in await stored(served)] == ["k1"], "it was written once"


async def test_a_refusal_of_the_scheduler_is_a_conflict(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        asked = served.ask({**CORDON, "node": "n9"}, 409, headers={"Idempotency-Key": "k1"})
        refused = await during(desk, asked)
        assert refused["parameter"] == "args.node"
        assert "there is no node n9" in refused["detail"]
        told = await served.get("requests/k1")
        assert (told["result"], told["field"]) == ("refused", "args.node")
        assert told["entry"] == refused["entry"]
        again = await served.ask({**CORDON, "node": "n9"}, 409, headers={"Idempotency-Key": "k1"})
        assert again == refused


async def test_without_a_scheduler_it_is_pending_and_taken_later(
    tmp_path: Path, serving: Serving
) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        await desk.crash()
        answer = await served.client.post("/api/v1/requests", json={"args": CORDON})
        assert (answer.status_code, answer.json()["result"]) == (202, "pending")
        where = answer.headers["location"]
        assert (await served.client.get(where)).json() == answer.json()
        same = {"Idempotency-Key": answer.json()["request"]}
        assert (await served.ask(CORDON, 202, 0, headers=same))["result"] == "pending"
        assert len(await stored(served)) == 1
        desk.start()
        done = await during(desk, served.ask(CORDON, headers=same))
        assert (await served.client.get(where)).json() == done
        assert done["result"] == "done"


async def test_what_the_scheduler_cannot_take_is_a_dead_letter(
    tmp_path: Path, serving: Serving
) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        await desk.crash()
        await served.ask(CORDON, 202, 0, headers={"Idempotency-Key": "k1"})
        await desk.wait(100_000.0)
        desk.start()
        while (told := await during(desk, served.get("requests/k1")))["result"] == "pending":
            pass
        assert (told["result"], told["field"], told["entry"]) == ("dead_letter", "expires_s", None)
        assert "it expired" in told["refused_because"]
        refused = await served.ask(CORDON, 409, 0, headers={"Idempotency-Key": "k1"})
        assert refused["parameter"] == "expires_s"
        letters = await served.get("dead-letters", topic="requests")
        assert [letter["field"] for letter in letters["letters"]] == ["data.expires_s"]


async def test_a_dead_letter_is_told_of_though_nothing_follows_it(
    tmp_path: Path, serving: Serving
) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        await desk.crash()
        await served.ask(CORDON, 202, 0, headers={"Idempotency-Key": "k1"})
        await desk.wait(100_000.0)
        desk.start()
        while not await desk.records(dead_letters(REQUESTS).name):
            await desk.wait(1.0)
        await desk.crash()
        end = await desk.bus.end(JOURNAL.name)
        await served.until(lambda: served.feed.live is not None and served.feed.live.offset == end)
        assert (await served.get("requests/k1"))["result"] == "dead_letter"


async def test_a_request_that_is_written_twice_is_told_of_as_taken(
    tmp_path: Path, serving: Serving
) -> None:
    """As by two gateways at the same moment: one is done, and the other a dead letter."""
    async with working(tmp_path) as (desk, log), serving(log) as served:
        done = await during(desk, served.ask(CORDON, headers={"Idempotency-Key": "k1"}))
        (record,) = [one async for one in desk.bus.read(REQUESTS.name)]
        await desk.bus.publish(Message(record.topic, record.key, record.value))
        for _ in range(5):
            assert await during(desk, served.get("requests/k1")) == done


async def test_another_body_under_a_key_is_refused(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        key = {"Idempotency-Key": "k1"}
        await served.ask(CORDON, 202, 0, headers=key)
        for _ in range(2):  # while it is pending, and when it is done
            other = await served.ask({**CORDON, "node": "n1"}, 422, headers=key)
            assert other["parameter"] == "Idempotency-Key"
            await served.ask(CORDON, 422, reason="another", headers=key)
            await during(desk, served.ask(CORDON, headers=key))


async def test_two_at_once_under_a_key_write_once(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        key = {"Idempotency-Key": "k1"}
        both = asyncio.gather(*(served.ask(CORDON, headers=key) for _ in range(5)))
        answers = await during(desk, both)
        assert all(answer == answers[0] for answer in answers)
        assert len(await stored(served)) == 1


async def test_a_page_writes_with_its_cookie_and_header(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        browser = served.stranger()
        await browser.get("/", params={"token": TOKEN})
        page = {"Sec-Fetch-Site": "same-origin", "X-Tidegate": "1"}
        for left_out in page:
            headers = {name: value for name, value in page.items() if name != left_out}
            answer = await browser.post("/api/v1/requests", json={"args": CORDON}, headers=headers)
            problem(answer, 403)
        assert await stored(served) == []
        page["Prefer"] = "wait=30"
        asked = browser.post("/api/v1/requests", json={"args": CORDON}, headers=page)
        assert (await during(desk, asked)).json()["via"] == "console"


async def test_a_dry_run_says_what_would_come_of_it_and_writes_nothing(
    tmp_path: Path, serving: Serving
) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        entries = served.feed.entries
        told = await served.ask(CORDON, dry_run=True)
        assert (told["result"], told["entry"], told["note"]) == ("would_be_done", None, None)
        refused = await served.ask({**CORDON, "node": "n9"}, 409, dry_run=True)
        assert "there is no node n9" in refused["detail"]
        assert (await stored(served), served.feed.entries) == ([], entries)
        assert served.feed.live is not None
        assert served.feed.live.state.standing.cordons == {}
        served.gateway.desk.outbox = None
        told = await served.ask(CORDON, dry_run=True)
        assert told["note"].startswith(
            "It would not be passed on from here: this gateway only reads"
        )


async def test_who_waits_too_often_is_answered_at_once(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (_, log), serving(log) as served:
        limits = served.gateway.limits
        async with asyncio.timeout(20.0), contextlib.AsyncExitStack() as held:
            for _ in range(WAITS_EACH):
                assert held.enter_context(limits.wait("local"))
            with limits.wait("local") as more, limits.wait("other") as other:
                assert (more, other) == (False, True)
            headers = {"Prefer": "wait=30"}
            answer = await served.client.post(
                "/api/v1/requests", json={"args": CORDON}, headers=headers
            )
            assert (answer.status_code, answer.json()["result"]) == (202, "pending")
            assert "preference-applied" not in answer.headers, "and says that it did not wait"
            limits.waits_in_all = WAITS_EACH
            with limits.wait("other") as other:
                assert not other
        assert limits._waits.total() == 0
        assert len(await stored(served)) == 1


async def test_the_list_of_what_people_asked(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        wanted = [
            (CORDON, 200),
            ({"verb": "node.uncordon", "node": "n0"}, 200),
            ({**CORDON, "node": "n9"}, 409),
            (CORDON, 200),
            ({"verb": "job.cancel", "job": "j0"}, 200),
        ]
        for args, status in wanted:
            await during(desk, served.ask(args, status))
        whole = await served.get("requests")
        verbs = [act["verb"] for act in whole["acts"]]
        assert verbs == ["job.cancel", "node.cordon", "node.cordon", "node.uncordon",
                         "node.cordon", "job.submit"]  # fmt: skip
        assert [act["result"] for act in whole["acts"]].count("refused") == 1
        pages: list[dict[str, Any]] = []
        cursor = None
        while len(pages) < 9:
            more: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            page = await served.get("requests", limit=2, **more)
            pages += page["acts"]
            if (cursor := page["next"]) is None:
                break
        assert pages == whole["acts"]

        async def chosen(**filters: Any) -> list[int]:
            found = await served.get("requests", **filters)
            return [act["entry"] for act in found["acts"]]

        def those(**fields: str) -> list[int]:
            return [
                act["entry"]
                for act in whole["acts"]
                if all(act[name] == value for name, value in fields.items())
            ]

        assert await chosen(verb="node.cordon") == those(verb="node.cordon")
        assert await chosen(about="n0") == those(about="n0")
        assert await chosen(subject="local") == those(subject="local")
        both = {"verb": "node.cordon", "about": "n0", "subject": "local"}
        assert await chosen(**both, limit=1) == those(**both)[:1]
        assert await chosen(subject="nobody") == []
        then = whole["acts"][2]["entry"]
        assert await chosen(entry=then) == [n for n in those() if n <= then]


async def test_the_list_is_what_the_terminal_says(
    log: Path, serving: Serving, tidegate: Run
) -> None:
    async with serving(log) as served:
        listed = (await served.get("requests", limit=1000))["acts"]
    said = await asyncio.to_thread(tidegate.tells, "audit", "--log", log)
    assert listed[::-1] == said["acts"]
    assert listed


async def test_over_brokers_it_is_signed(tmp_path: Path, serving: Serving) -> None:
    key = Signer("ops", Ed25519PrivateKey.generate())
    async with working(tmp_path) as (desk, log):
        await desk.crash()
        outbox = Outbox(lambda clock: SqliteBus.open(log, clock), log, key)
        async with serving(log, outbox=outbox) as served:
            told = await served.ask(CORDON, dry_run=True)
            assert (told["result"], told["note"]) == (
                "would_be_done",
                right_unchecked("ops", CORDON["verb"]),
            )
            assert "scheduler.trusted_gateways.ops.may" in told["note"]
            refused = await served.ask({**CORDON, "node": "n9"}, 409, dry_run=True)
            assert "there is no node n9" in refused["detail"]
            await served.ask(CORDON, 202, 0)
            (record,) = [one async for one in desk.bus.read(REQUESTS.name)]
            verifier = Verifier.of({"ops": key.public()})
            assert verifier.problem(record.value or b"", record.headers) is None
            assert orjson.loads(record.value or b"")["source"] == "/gateways/ops"


async def test_a_job_of_no_tenant_is_of_who_submits_it(tmp_path: Path, serving: Serving) -> None:
    async with working(tmp_path) as (desk, log), serving(log) as served:
        spec = submitted("j5").model_dump(mode="json", exclude={"tenant"})
        done = await during(desk, served.ask({"verb": "job.submit", "spec": spec}))
        assert done["result"] == "done"
        assert (await served.get("jobs/j5"))["job"]["tenant"] == "operator"
    assert _as_member({"verb": "job.submit", "spec": spec}, "acme")["spec"]["tenant"] == "acme"
    named = {"verb": "job.submit", "spec": {**spec, "tenant": "zeta"}}
    assert _as_member(named, "acme") == named, "the rights refuse it"
