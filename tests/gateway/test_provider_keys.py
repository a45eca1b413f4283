"""The keys of a provider: kept, followed when they change, and waited for by few."""

import asyncio

import httpx
import pytest

from gateway import provider
from gateway.identities import Identities
from tests.gateway.conftest import Frozen
from tests.gateway.issuing import (
    BINDINGS,
    NOW_S,
    Issuer,
    ask,
    identities,
    key,
    told,
)


async def test_keys_are_kept_and_follow_a_rotation(
    people: Identities, issuer: Issuer, clock: Frozen
) -> None:
    old = issuer.token()
    for _ in range(5):
        await ask(people, old)
    assert issuer.asked.count("/jwks") == 1
    clock.at_s = NOW_S + 11
    issuer.keys = [key("two")]
    assert await ask(people, issuer.token()) is not None, "a new key is asked for at once"
    assert issuer.asked.count("/jwks") == 2
    await told(people, old)
    for number in range(5):
        await told(people, issuer.token(key(f"unknown-{number}")))
    assert issuer.asked.count("/jwks") == 2, "unknown names do not make it ask all the time"
    issuer.away = True
    clock.at_s = NOW_S + 1000
    assert await ask(people, issuer.token()) is not None, "its absence ends no work"


async def test_keys_follow_a_rotation_after_the_clock_was_set_back(
    people: Identities, issuer: Issuer, clock: Frozen
) -> None:
    """A machine may begin with a clock that is years ahead, and be put right."""
    clock.at_s = NOW_S + 1e8
    assert await ask(people, issuer.token()) is not None
    clock.at_s = NOW_S
    old = issuer.token()
    issuer.keys = [key("two")]
    assert await ask(people, issuer.token()) is not None
    await told(people, old)


async def test_without_its_keys_nobody_is_believed(issuer: Issuer) -> None:
    people = identities({"bindings": BINDINGS}, issuer)
    issuer.away = True
    await told(people, issuer.token(), 503)
    issuer.away = False
    for says in ({"issuer": "https://evil.example"}, {"jwks_uri": "http://id.example.org/jwks"}):
        issuer.says = says
        await told(identities({"bindings": BINDINGS}, issuer), issuer.token(), 503)


class Slow(httpx.AsyncBaseTransport):
    """A provider that says nothing until it is let."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer, self.let, self.asked = issuer, asyncio.Event(), 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        await self.let.wait()
        return await self.issuer.transport.handle_async_request(request)


async def test_a_slow_provider_delays_only_who_needs_a_new_key(
    people: Identities, issuer: Issuer, clock: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = issuer.token()
    assert await ask(people, known) is not None
    assert people.provider is not None
    people.provider._transport = slow = Slow(issuer)
    clock.at_s = NOW_S + 601  # its keys are to be asked for again
    known = issuer.token()
    issuer.keys = [*issuer.keys, key("two")]
    newer = issuer.token(issuer.keys[1])
    waiting = asyncio.ensure_future(ask(people, newer))
    async with asyncio.timeout(5.0):
        for _ in range(20):
            assert await ask(people, known) is not None
        assert not waiting.done()
        slow.let.set()
        assert await waiting is not None
    assert slow.asked == 1, "one question for all"

    monkeypatch.setattr(provider, "_TIMEOUT_S", 0.05)
    slow.let.clear()
    clock.at_s = NOW_S + 650
    third = issuer.token(key("three"))
    for _ in range(2):  # it waits for the provider, and is told at once that it was asked just now
        said = await told(people, third, 503)
        assert "a key that is not known yet" in said
        assert "does not answer" in said
    assert slow.asked == 2
    assert await ask(people, known) is not None
