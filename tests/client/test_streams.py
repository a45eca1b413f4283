"""Streams that break: what came in part comes anew, and what stands before a gateway is borne."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from tidegate_client import AsyncClient, Client, NotAllowed, Unavailable, aio, client
from tidegate_client.events import Head

URL = "http://127.0.0.1:1"
#: One event, and another whose end is cut off.
WHOLE = b'id: 4\nevent: head\ndata: {"cell": "a", "entry": 4}\n\n'
PART = b'id: 5\nevent: head\ndata: {"cell": "a", "entry": 5}\n'


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Gives some bytes, and breaks."""

    def __init__(self, said: bytes) -> None:
        self.said = said

    def __iter__(self) -> Iterator[bytes]:
        yield self.said
        raise httpx.ReadError("cut")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.said
        raise httpx.ReadError("cut")


def heads(answers: list[httpx.Response], most: int) -> tuple[list[Head], list[httpx.Request]]:
    """Follow a gateway that answers so, until so many heads came."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answers.pop(0)

    found = []
    with Client(URL, transport=httpx.MockTransport(answer)) as one:
        for head in one.stream():
            found.append(head)
            if len(found) == most:
                break
    return found, asked


def async_heads(answers: list[httpx.Response], most: int) -> tuple[list[Head], list[httpx.Request]]:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answers.pop(0)

    async def follow() -> list[Head]:
        found = []
        async with AsyncClient(URL, transport=httpx.MockTransport(answer)) as one:
            async for head in one.stream():
                found.append(head)
                if len(found) == most:
                    break
        return found

    return asyncio.run(follow()), asked


Following = Callable[[list[httpx.Response], int], tuple[list[Head], list[httpx.Request]]]
both = pytest.mark.parametrize("follow", [heads, async_heads])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client, aio):
        monkeypatch.setattr(module, "AGAIN_S", 0.0)


def cut(said: bytes) -> httpx.Response:
    return httpx.Response(200, stream=Cut(said))


def away(status: int, **headers: Any) -> httpx.Response:
    return httpx.Response(status, text="away", headers=headers)


@both
def test_an_event_that_was_cut_off_comes_anew(follow: Following) -> None:
    found, asked = follow([cut(WHOLE + PART), cut(PART + b"\n")], 2)
    assert [one.entry for one in found] == [4, 5]
    assert asked[1].headers["last-event-id"] == "4", "the other was not told yet"


@both
def test_a_stream_outlives_what_a_proxy_says_while_the_gateway_is_away(follow: Following) -> None:
    found, asked = follow([cut(WHOLE), away(502), away(503), away(429), cut(PART + b"\n")], 2)
    assert [one.entry for one in found] == [4, 5]
    assert len(asked) == 5


@both
def test_it_is_not_borne_for_ever(follow: Following) -> None:
    answers = [away(503) for _ in range(20)]
    with pytest.raises(Unavailable, match="away"):
        follow(answers, 1)
    assert 20 - len(answers) < 10
    answers = [away(403) for _ in range(20)]
    with pytest.raises(NotAllowed):
        follow(answers, 1)
    assert len(answers) == 19
