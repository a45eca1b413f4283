"""Who is believed: tokens of a provider, people who sign in, robots; and what they may do then."""

import asyncio
import base64
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from gateway import provider
from gateway.identities import Identities, digest, new_token
from gateway.limits import SIGN_INS_BURST, Limits
from gateway.problems import Problem
from gateway.subjects import Role, Sight, Subject
from services.gateway_section import AuthSection
from tests.gateway.conftest import Frozen, Serving
from tests.gateway.issuing import ISSUER, Issuer, identities, key
from tests.gateway.test_access import problem

BINDINGS = [
    {"subject": "olga", "role": "operator"},
    {"group": "acme-team", "role": "tenant", "tenant": "acme"},
    {"group": "everybody", "role": "viewer"},
]
NOW_S = 1_800_000_000.0


@pytest.fixture
def clock() -> Frozen:
    found = Frozen()
    found.at_s = NOW_S
    return found


@pytest.fixture
def issuer(clock: Frozen) -> Issuer:
    return Issuer(clock)


@pytest.fixture
def people(issuer: Issuer) -> Identities:
    return identities({"bindings": BINDINGS}, issuer)


async def ask(who: Identities, token: str) -> Subject | None:
    return plainly(await who.subject({"authorization": f"Bearer {token}"}, {}))


def plainly(who: Subject | None) -> Subject | None:
    """Leave out what it sees, which is tested elsewhere."""
    return who and replace(who, sight=Sight.EVERYTHING, veil=b"")


async def told(who: Identities, token: str, status: int = 401) -> str:
    with pytest.raises(Problem) as found:
        await ask(who, token)
    assert found.value.status == status
    return found.value.detail


# --- tokens of the provider ----------------------------------------------------------------------


async def test_bindings_say_what_a_person_may_do(people: Identities, issuer: Issuer) -> None:
    assert await ask(people, issuer.token()) == Subject("anna", Role.TENANT, "acme")
    found = await ask(people, issuer.token(sub="olga", groups=["acme-team"]))
    assert found == Subject("olga", Role.OPERATOR), "the first that fits counts"
    assert await ask(people, issuer.token(groups="everybody")) == Subject("anna", Role.VIEWER)
    assert "acme" not in await told(people, issuer.token(groups=["others"]), 403)
    said = await told(people, issuer.token(groups={"a": 1}), 403)
    assert "you are anna" in said
    assert "gateway.auth.bindings" in said


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": int(NOW_S) - 31}, "has expired"),
        ({"exp": None}, "not believed"),
        ({"exp": "soon"}, "not believed"),
        ({"iss": "https://evil.example"}, f"it is not of {ISSUER}"),
        ({"iss": None}, f"it is not of {ISSUER}"),
        ({"aud": "another"}, "it is not made for tidegate"),
        ({"aud": None}, "it is not made for tidegate"),
        ({"aud": ["a", "b"]}, "it is not made for tidegate"),
        ({"nbf": int(NOW_S) + 31}, "it is not valid yet"),
        ({"sub": None}, "not believed"),
    ],
)
async def test_a_token_must_be_of_now_from_there_and_for_us(
    people: Identities, issuer: Issuer, claims: dict[str, Any], says: str
) -> None:
    assert says in await told(people, issuer.token(**claims))
    assert await ask(people, issuer.token(aud=["other", "tidegate"])) is not None
    assert await ask(people, issuer.token(exp=int(NOW_S) - 29)) is not None, "clocks differ"


async def test_only_the_providers_keys_sign(people: Identities, issuer: Issuer) -> None:
    good = issuer.token()
    head, body, mark = good.split(".")
    other = base64.urlsafe_b64encode(json.dumps(issuer.claims(sub="olga")).encode()).decode()
    forged = key("one")  # by another's key under a name that the provider has
    for token in (
        f"{head}.{other.rstrip('=')}.{mark}",
        f"{head}.{body}.{mark[:-4]}AAAA",
        issuer.token(forged),
        _unsigned(issuer.claims()),
        f"{_unsigned(issuer.claims())}{mark}",
        # A public key is no secret: taken as one, anybody could sign.
        _confused(issuer),
        "a.b.c",
        "x",
        "",
        "x" * 20_000,
    ):
        await told(people, token)
    assert await ask(people, good) is not None


def _confused(issuer: Issuer) -> str:
    public = issuer.keys[0]
    assert isinstance(public, ECKey)
    body = issuer.token().split(".")[1]
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').decode().rstrip("=")
    by = hmac.new(public.as_pem(private=False), f"{head}.{body}".encode(), "sha256").digest()
    return f"{head}.{body}.{base64.urlsafe_b64encode(by).decode().rstrip('=')}"


def _unsigned(claims: Mapping[str, Any]) -> str:
    parts = ({"alg": "none", "kid": "one"}, claims)
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join(text.rstrip("=") for text in texts) + "."


async def test_a_shared_secret_among_its_keys_signs_nothing(
    people: Identities, issuer: Issuer
) -> None:
    shared = OctKey.generate_key(256, {"kid": "shared"})
    issuer.keys.append(shared)
    await told(people, issuer.token(shared, "HS256"))
    rsa = RSAKey.generate_key(2048, {"kid": "rsa"})
    issuer.keys.append(rsa)
    people.provider._clock.at_s += 11  # type: ignore[union-attr]
    assert await ask(people, issuer.token(rsa, "PS256")) is not None


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


async def test_who_signs_in_too_often_waits_and_nobody_else(
    log: Path, serving: Serving, people: Identities, issuer: Issuer
) -> None:
    async with serving(log, authority=people) as served:
        stranger = served.stranger()
        served.gateway.clock.at_s = 1000.0  # type: ignore[attr-defined]
        for _ in range(int(SIGN_INS_BURST)):
            assert (await stranger.get("/login")).status_code == 303
        for path in ("/login", "/callback?code=c&state=s"):
            answer = await stranger.get(path)
            assert "sign-ins a second" in problem(answer, 429)["detail"]
            assert answer.headers["retry-after"] == "1"
        assert issuer.asked.count("/token") == 0
        bearer = served.stranger(Authorization=f"Bearer {issuer.token()}")
        assert (await bearer.get("/api/v1/me")).status_code == 200
        served.gateway.clock.at_s = 1001.0  # type: ignore[attr-defined]
        assert (await stranger.get("/login")).status_code == 303


def test_an_address_is_counted_by_what_one_machine_has(clock: Frozen) -> None:
    limits = Limits(clock)
    for number in range(int(SIGN_INS_BURST)):
        limits.sign_in(f"2001:db8::{number:x}")
    with pytest.raises(Problem):
        limits.sign_in("2001:db8::ffff:1")
    limits.sign_in("2001:db8:1::1")
    limits.sign_in("192.0.2.1")
    limits.sign_in("")  # a socket without an address


async def test_a_name_must_be_one(issuer: Issuer) -> None:
    people = identities({"bindings": BINDINGS, "name_claim": "email"}, issuer)
    for email in (None, 5, "a b@example.org", "robot:ci", ""):
        await told(people, issuer.token(email=email), 403)
    not_so: tuple[object, ...] = (False, "false", 0, [])
    for no in not_so:
        token = issuer.token(email="anna@example.org", email_verified=no)
        assert "not verified" in await told(people, token, 403)
    for yes in (True, "true"):
        token = issuer.token(email="anna@example.org", email_verified=yes)
        found = await ask(people, token)
        assert found is not None
        assert found.name == "anna@example.org"
    assert await ask(people, issuer.token(email="anna@example.org")) is not None, "it does not say"


@pytest.mark.parametrize(
    "field", [{"crit": 5}, {"enc": []}, {"alg": []}, {"kid": {}}, {"zip": "DEF"}, {"typ": []}]
)
async def test_a_header_of_any_form_is_only_not_believed(
    people: Identities, field: dict[str, Any]
) -> None:
    signed, sealed = {"alg": "RS256"}, {"alg": "dir", "enc": "A256GCM"}
    await told(people, ".".join((part(signed | field), part({"sub": "olga"}), "AA")))
    cookie = ".".join((part(sealed | field), "", "AA", "AA", "AA"))
    assert await people.subject({}, {people.cookie_name("session"): cookie}) is None


def part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


# --- signing in ----------------------------------------------------------------------------------


async def test_somebody_signs_in_and_out(
    log: Path, serving: Serving, people: Identities, issuer: Issuer, clock: Frozen
) -> None:
    async with serving(log, authority=people) as served:
        browser = served.stranger()
        browser.base_url = httpx.URL("https://127.0.0.1:8321")
        assert "/login" in problem(await browser.get("/api/v1/me"), 401)["detail"]
        page = await browser.get("/login")
        asked = parse_qs(urlsplit(page.headers["location"]).query)
        assert page.headers["location"].startswith(f"{ISSUER}/auth?")
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["redirect_uri"] == ["https://tidegate.example.org/callback"]
        cookie = page.headers["set-cookie"]
        for part in ("__Host-tidegate-sign-in=", "HttpOnly", "Secure", "SameSite=lax", "Path=/"):
            assert part in cookie
        assert asked["state"][0] not in cookie
        back = {"code": "c", "state": asked["state"][0]}

        # Another browser, another state, another sign-in's token: none of them comes in.
        problem(await served.stranger().get("/callback", params=back), 400)
        problem(await browser.get("/callback", params=back | {"state": "x"}), 400)
        problem(await browser.get("/callback", params=back | {"error": "denied"}), 403)
        outside = await served.stranger().get("/jobs/job-1")
        assert outside.status_code == 401
        assert "href='/login'" in outside.text
        issuer.id_token = issuer.token(nonce="another")
        assert (
            "another sign-in" in problem(await browser.get("/callback", params=back), 401)["detail"]
        )
        issuer.id_token = issuer.token(nonce=asked["nonce"][0], groups=["others"])
        assert "you are anna" in problem(await browser.get("/callback", params=back), 403)["detail"]

        issuer.id_token = issuer.token(nonce=asked["nonce"][0])
        done = await browser.get("/callback", params=back)
        assert (done.status_code, done.headers["location"]) == (303, "/")
        session = next(one for one in done.headers.get_list("set-cookie") if "session" in one)
        for part in ("__Host-tidegate-session=", "HttpOnly", "Secure", "SameSite=lax"):
            assert part in session
        assert "anna" not in session
        me = (await browser.get("/api/v1/me")).json()
        assert (me["name"], me["role"], me["tenant"], me["via"]) == (
            "anna", "tenant", "acme", "cookie")  # fmt: skip
        assert me["signs_out"] is True
        assert (await browser.get("/jobs/job-1")).status_code == 200
        kept = dict(browser.cookies)

        problem(await browser.post("/logout", headers={"Sec-Fetch-Site": "cross-site"}), 403)
        await browser.post("/logout", headers={"Sec-Fetch-Site": "same-origin"})
        assert (await browser.get("/api/v1/me")).status_code == 401
        browser.cookies.update(kept)
        assert (await browser.get("/api/v1/me")).status_code == 401, "a copy of it has ended, too"
        ended = await browser.get("/")
        assert (ended.status_code, "You are signed out" in ended.text) == (401, True)
        assert "href='/login'" in ended.text


async def test_a_session_ends_and_follows_the_bindings(people: Identities, clock: Frozen) -> None:
    value, _ = people.session({"sub": "anna", "groups": ["acme-team", *map(str, range(500))]})
    assert len(value) < 1000, "a cookie has 4 KiB"
    cookies = {people.cookie_name("session"): value}
    assert plainly(await people.subject({}, cookies)) == Subject(
        "anna", Role.TENANT, "acme", "cookie"
    )
    assert await people.subject({}, {people.cookie_name("session"): value[:-6] + "AAAAAA"}) is None
    sealed = people.seal.sealed("sign-in", {"id": "x", "name": "olga", "groups": []}, NOW_S + 9)
    assert await people.subject({}, {people.cookie_name("session"): sealed}) is None
    people.rules.auth = AuthSection.model_validate({"bindings": BINDINGS[:1]})
    with pytest.raises(Problem, match="nothing says what you may do"):
        await people.subject({}, cookies)
    people.rules.auth = AuthSection.model_validate({"bindings": BINDINGS})
    clock.at_s = NOW_S + 8 * 3600
    assert await people.subject({}, cookies) is None


# --- robots --------------------------------------------------------------------------------------


def robot(token: str, **other: Any) -> dict[str, Any]:
    ends = datetime.fromtimestamp(NOW_S + 100, UTC).isoformat()
    return {"name": "ci", "sha256": digest(token), "role": "tenant", "tenant": "acme",
            "expires": ends} | other  # fmt: skip


async def test_a_robot_comes_in_until_its_token_ends(clock: Frozen) -> None:
    token, sha256 = new_token()
    assert (len(token), len(sha256)) == (52, 64)
    robots = identities({"robots": [robot(token)]}, clock=clock)
    assert await ask(robots, token) == Subject("robot:ci", Role.TENANT, "acme")
    for wrong in (new_token()[0], token[:-1], sha256):
        await told(robots, wrong)
    assert await robots.subject({"authorization": f"Basic {token}"}, {}) is None
    assert await robots.subject({}, {}) is None
    assert "tidegate gateway token" in robots.stranger
    assert "/login" not in robots.stranger  # there is no provider to sign in at
    clock.at_s = NOW_S + 100
    assert "ended at 2027" in await told(robots, token)


async def test_a_robot_is_revoked_while_the_gateway_runs(tmp_path: Path, clock: Frozen) -> None:
    file, (token, _) = tmp_path / "auth.json", new_token()
    auth = {"robots": [robot(token)]}
    file.write_text(json.dumps(auth))
    robots = identities(auth, file=file, clock=clock)
    assert await ask(robots, token) is not None
    for number, text in enumerate(
        (json.dumps({"robots": [robot(token, revoked=True)]}), json.dumps({"robots": []}))
    ):
        file.write_text(json.dumps(auth) + " " * number)
        clock.at_s = NOW_S + 10 * number + 5
        assert await ask(robots, token) is not None
        file.write_text(text)
        clock.at_s = NOW_S + 10 * number + 7
        assert "not any more" in await told(robots, token)
    file.write_text("{")  # a file that is wrong changes nothing
    clock.at_s = NOW_S + 50
    await told(robots, token)


async def test_a_configuration_that_is_just_being_written_is_not_taken_half(
    tmp_path: Path, clock: Frozen
) -> None:
    file, (token, _) = tmp_path / "auth.json", new_token()
    auth = {"robots": [robot(token)]}
    file.write_text(json.dumps(auth))
    robots = identities(auth, file=file, clock=clock)
    file.write_text("{}")  # as a file in TOML whose robots are not written yet
    for late_s in (0.1, 0.4):
        clock.at_s = file.stat().st_mtime + late_s
        assert await ask(robots, token) is not None
        clock.at_s += 100
        os.utime(file, (clock.at_s, clock.at_s))
    clock.at_s = file.stat().st_mtime + 2.0  # so it stays: it is meant
    assert "not any more" in await told(robots, token)
