"""People who sign in: how they come in and out, how often they may try, and when a session ends."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from gateway.identities import Identities
from gateway.limits import SIGN_INS_BURST, Limits
from gateway.problems import Problem
from gateway.subjects import Role, Subject
from services.gateway_section import AuthSection
from tests.gateway.conftest import Frozen, Serving
from tests.gateway.issuing import BINDINGS, ISSUER, NOW_S, Issuer, plainly
from tests.gateway.test_access import problem


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
