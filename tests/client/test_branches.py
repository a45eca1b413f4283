"""Branches, asked for by both clients of a gateway: begun, waited for, listed and ended."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.client.conftest import URL, running, waiting
from tests.gateway.conftest import TOKEN, Served, Serving
from tests.patience import PATIENCE_S
from tidegate_client import (
    AsyncClient,
    BadRequest,
    BranchFailed,
    Client,
    Conflict,
    NotFound,
    TimedOut,
)


async def test_a_branch_is_begun_waited_for_listed_and_ended(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        entry = served.feed.entries // 2

        def ask(client: Client) -> None:
            begun = client.at(entry=entry).branches.begin(hours=0.1, policy="fifo")
            assert (begun.cell, begun.asked["entry"], begun.result) == ("default", entry, None)
            found = client.branches.wait(begun.branch, timeout=PATIENCE_S)
            assert (found.state, found.done, found.asked_by) == ("done", 1.0, "local")
            assert found.result is not None
            assert {"control", "branch"} <= found.result.keys()
            listed = client.branches()
            assert [(one.branch, one.result) for one in listed] == [(begun.branch, None)]
            assert client.branches.end(begun.branch).branch == begun.branch
            with pytest.raises(NotFound):
                client.branches.one(begun.branch)

        await asyncio.to_thread(ask, waiting(served))


async def test_what_cannot_be_branched_says_which_part(log: Path, serving: Serving) -> None:
    async with serving(log, at_once=0) as served, running(served) as client:
        with pytest.raises(BadRequest) as refused:
            await client.branches.begin(policy="fofi")
        assert refused.value.parameter == "change.policy"
        assert "nearest: fifo" in refused.value.detail
        with pytest.raises(ValueError, match="begins at an entry"):
            await client.at("06:30").branches.begin()
        assert served.feed.live is not None
        like = next(iter(served.feed.live.state.jobs))
        waits = await client.branches.begin(jobs={like: 2})
        with pytest.raises(TimedOut, match="is waiting after 0 s"):
            await client.branches.wait(waits.branch, timeout=0.0)


class Lossy(httpx.AsyncBaseTransport):
    """Carries what is asked, and loses the first answer."""

    def __init__(self, served: Served) -> None:
        self.inner, self.lost = httpx.ASGITransport(served.app), False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self.inner.handle_async_request(request)
        if not self.lost:
            self.lost = True
            raise httpx.ReadError("the connection was lost")
        return answer


async def test_a_branch_whose_answer_is_lost_is_begun_once(log: Path, serving: Serving) -> None:
    async with serving(log, at_once=0) as served:
        lossy = Lossy(served)
        async with AsyncClient(URL, TOKEN, transport=lossy) as client:
            begun = await client.branches.begin(policy="fifo")
            assert lossy.lost
            assert [one.branch for one in await client.branches()] == [begun.branch]


async def test_with_a_key_a_branch_is_begun_once(log: Path, serving: Serving) -> None:
    async with serving(log, at_once=0) as served, running(served) as client:
        begin = client.branches.begin
        many = await asyncio.gather(*(begin(policy="fifo", key="k1") for _ in range(3)))
        assert len({one.branch for one in many}) == 1
        again = await client.at(entry=many[0].asked["entry"]).branches.begin(
            policy="fifo", key="k1"
        )
        assert again.branch == many[0].branch
        with pytest.raises(Conflict, match="k1 was used for another branch"):
            await begin(policy="sjf", key="k1")
        assert (await begin(policy="sjf", key="k2")).branch != again.branch
        assert (await begin(policy="fifo")).branch != again.branch


def test_one_that_fails_says_why() -> None:
    said = {"branch": "b1", "cell": "default", "state": "failed", "problem": "too many hours"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=said))
    client = Client("http://127.0.0.1:1", "t", transport=transport)
    with client, pytest.raises(BranchFailed, match="b1 is failed: too many hours"):
        client.branches.wait("b1")
