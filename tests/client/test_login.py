"""Signing in from a terminal, and what is not believed on the way."""

import base64
import json
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.patience import PATIENCE_S
from tidegate_client import NoGateway, TidegateError, TimedOut
from tidegate_client.login import (
    LoginError,
    Provider,
    Token,
    by_browser,
    by_device,
    keep,
    provider_of,
)

GATEWAY, ISSUER = "https://gateway.example", "https://id.example"
ABOUT = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/auth",
    "token_endpoint": f"{ISSUER}/token",
    "device_authorization_endpoint": f"{ISSUER}/device",
}
PROVIDER = Provider(ISSUER, "terminal", ("openid", "groups"), ABOUT)
TOLD = {"issuer": ISSUER, "client_id": "terminal", "scopes": ["openid", "groups"]}


def signed(**claims: Any) -> str:
    """Write an id token as a provider does; nobody looks at its signature here."""
    body = {"iss": ISSUER, "aud": "terminal", "exp": 2_000_000_000, **claims}
    text = base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip("=")
    return f"e30.{text}.c2ln"


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(answer))


def pages(**by_path: Any) -> httpx.Client:
    """Answer by the last part of the path."""

    def answer(request: httpx.Request) -> httpx.Response:
        said = by_path.get(request.url.path.rpartition("/")[2].replace("-", "_"))
        return httpx.Response(404, json={}) if said is None else httpx.Response(200, json=said)

    return client(answer)


def test_gateway_and_provider_tell_of_each_other() -> None:
    found = provider_of(GATEWAY, pages(tidegate=TOLD, openid_configuration=ABOUT))
    assert found == PROVIDER


@pytest.mark.parametrize(
    ("told", "about", "word"),
    [
        ({}, ABOUT, "names no provider of identities"),
        (TOLD, {**ABOUT, "issuer": "https://other.example"}, "speaks for 'https://other.example'"),
        (None, ABOUT, "answers with 404"),
        (TOLD, None, "answers with 404"),
    ],
)
def test_what_does_not_fit_is_not_signed_in_at(told: Any, about: Any, word: str) -> None:
    with pytest.raises(LoginError, match=word):
        provider_of(GATEWAY, pages(tidegate=told, openid_configuration=about))


def test_a_gateway_that_is_away_is_named() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(NoGateway, match=r"no gateway answers at https://gateway\.example"):
        provider_of(GATEWAY, client(away))


class Browser:
    """Somebody at the provider's page, who is led back with an answer."""

    def __init__(self, *, code: str | None = "the-code", strangers: int = 0, **over: str) -> None:
        self._code, self._strangers, self._over = code, strangers, over
        self.asked: dict[str, str] = {}
        self.seen: list[int] = []
        self.thread: threading.Thread | None = None

    def open(self, url: str) -> None:
        assert url.startswith(f"{ISSUER}/auth?")
        self.asked = {name: one[0] for name, one in parse_qs(urlsplit(url).query).items()}
        self.thread = threading.Thread(target=self._go)
        self.thread.start()

    def _go(self) -> None:
        said = {"state": self.asked["state"], **self._over}
        said |= {} if self._code is None else {"code": self._code}
        where = self.asked["redirect_uri"]
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as http:
            for _ in range(self._strangers):
                for path in (f"{where}?code=forged&state=guessed", where.replace("call", "fall")):
                    self.seen.append(http.get(path).status_code)
            self.seen.append(http.get(where, params=said).status_code)


def signed_in(browser: Browser, **claims: Any) -> tuple[Token, dict[str, str]]:
    """Sign in; give the token, and what the provider was asked for it."""
    asked: dict[str, str] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        asked.update({name: one[0] for name, one in parse_qs(request.content.decode()).items()})
        nonce = browser.asked["nonce"]
        return httpx.Response(200, json={"id_token": signed(**{"nonce": nonce, **claims})})

    try:
        return by_browser(PROVIDER, client(answer), browser.open), asked
    finally:
        if browser.thread is not None:
            browser.thread.join()


def test_a_code_is_taken_by_whoever_began_with_its_verifier() -> None:
    browser = Browser(strangers=2)
    token, asked = signed_in(browser)
    assert token.expires_s == 2_000_000_000
    assert browser.seen == [404] * 4 + [200], "only the answer with the state counts"
    assert (asked["code"], asked["client_id"]) == ("the-code", "terminal")
    assert asked["redirect_uri"] == browser.asked["redirect_uri"]
    assert urlsplit(asked["redirect_uri"]).hostname == "127.0.0.1"
    assert browser.asked["code_challenge_method"] == "S256"
    assert asked["code_verifier"] not in json.dumps(browser.asked)
    assert browser.asked["scope"] == "openid groups"


@pytest.mark.parametrize(
    ("browser", "claims", "word"),
    [
        (Browser(), {"nonce": "another"}, "a token that is not for this sign-in"),
        (Browser(), {"aud": "another"}, "a token that is not for this sign-in"),
        (Browser(), {"iss": "https://other.example"}, "a token that is not for this sign-in"),
        (Browser(iss="https://other.example"), {}, r"of https://other\.example, not of"),
        (Browser(code=None, error="access_denied"), {}, "did not let you in: access_denied"),
    ],
)
def test_an_answer_to_another_question_is_not_believed(
    browser: Browser, claims: dict[str, str], word: str
) -> None:
    with pytest.raises(LoginError, match=word):
        signed_in(browser, **claims)


def test_who_does_not_come_back_is_waited_for_so_long() -> None:
    with pytest.raises(TimedOut, match=r"nobody signed in within 0\.05 s"):
        by_browser(PROVIDER, pages(), lambda _: None, patience_s=0.05)


def test_nothing_is_sent_in_clear() -> None:
    plain = {**ABOUT, "authorization_endpoint": "http://id.example/auth"}
    shown: list[str] = []
    with pytest.raises(LoginError, match="no https address"):
        by_browser(Provider(ISSUER, "a", (), plain), pages(), shown.append)
    assert shown == []


def device(
    *answers: dict[str, Any] | Exception, interval: float = 5
) -> tuple[list[float], Callable[[], Token]]:
    """Sign in by a code; give how long was waited each time."""
    left, waits = list(answers), list[float]()
    begun = {"device_code": "d", "user_code": "ABCD", "verification_uri": f"{ISSUER}/type",
             "expires_in": 60, "interval": interval}  # fmt: skip

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/device":
            return httpx.Response(200, json=begun)
        said = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(said, Exception):
            raise said
        return httpx.Response(400 if "error" in said else 200, json=said)

    def show(url: str, code: str) -> None:
        assert (url, code) == (f"{ISSUER}/type", "ABCD")

    return waits, lambda: by_device(PROVIDER, client(answer), show, waits.append)


def test_a_code_is_asked_after_as_often_as_the_provider_likes() -> None:
    pending, slow = {"error": "authorization_pending"}, {"error": "slow_down"}
    waits, sign_in = device(pending, slow, pending, {"id_token": signed()})
    assert sign_in().expires_s == 2_000_000_000
    assert waits == [5.0, 5.0, 10.0, 10.0]


def test_a_provider_that_is_away_for_a_moment_is_asked_again() -> None:
    pending, away = {"error": "authorization_pending"}, httpx.ConnectError("gone")
    waits, sign_in = device(pending, away, pending, {"id_token": signed()})
    assert sign_in().expires_s == 2_000_000_000
    assert waits == [5.0, 5.0, 10.0, 10.0]
    waits, sign_in = device(away)
    with pytest.raises(NoGateway, match="gone"):
        sign_in()
    assert sum(waits) >= 60.0


def test_a_provider_that_says_no_pause_is_not_asked_for_ever() -> None:
    waits, sign_in = device({"error": "authorization_pending"}, interval=0)
    with pytest.raises(TimedOut):
        sign_in()
    assert waits == [1.0] * 60


def test_a_code_that_is_refused_or_forgotten_lets_nobody_in() -> None:
    _, sign_in = device({"error": "access_denied"})
    with pytest.raises(LoginError, match="did not let you in: access_denied"):
        sign_in()
    waits, sign_in = device({"error": "authorization_pending"})
    with pytest.raises(TimedOut, match="nobody typed the code in"):
        sign_in()
    assert sum(waits) == 60.0
    less = {name: one for name, one in ABOUT.items() if "device" not in name}
    with pytest.raises(LoginError, match="leave --device out"):
        by_device(Provider(ISSUER, "a", (), less), pages(), lambda *_: None)


def test_a_token_is_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = keep("prod", Token("a.b.c", 1.0))
    assert first == keep("prod", Token("d.e.f", 1.0))
    assert first.read_text() == "d.e.f\n"
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    with pytest.raises(TidegateError, match="is no name of a context"):
        keep("../prod", Token("a", 1.0))
