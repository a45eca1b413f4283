"""Signing in at a gateway's provider of identities, from a terminal.

By the provider's page in a browser: the code flow with PKCE, led back to a port of this machine
(RFC 8252). Or where there is no browser, by a code that is typed in elsewhere (RFC 8628). What
comes of it is the provider's id token, which the gateway takes as a bearer's; it checks it.
"""

import base64
import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx

from tidegate_client.contexts import checked_url, contexts_file
from tidegate_client.errors import (
    LOOPBACK,
    ContextError,
    NoGateway,
    NotKnown,
    TidegateError,
    TimedOut,
    no_gateway,
)
from tidegate_client.loopback import Return

_TIMEOUT_S = 30.0
_GATEWAY = "the gateway"
_WELL_KNOWN = "/.well-known/tidegate"
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class LoginError(TidegateError):
    """Somebody could not be signed in."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A gateway's provider of identities, as both tell of it."""

    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    about: dict[str, Any]

    def endpoint(self, name: str) -> str | None:
        """Give an address of the provider; None if it has none of this name.

        Raises:
            LoginError: what is sent there could be read on its way.
        """
        url = self.about.get(name)
        if not isinstance(url, str):
            return None
        at = urlsplit(url)
        if at.scheme != "https" and not (at.scheme == "http" and at.hostname in LOOPBACK):
            raise LoginError(f"{name} of {self.issuer} is {url}, which is no https address")
        return url


@dataclass(frozen=True, slots=True)
class Token:
    """What lets somebody in, and until when."""

    text: str
    expires_s: float


def signs_in(gateway: str, http: httpx.Client) -> bool:
    """Whether people sign in at a gateway from a terminal; not if it says that nobody does."""
    try:
        answer = http.get(f"{checked_url(gateway)}{_WELL_KNOWN}", timeout=_TIMEOUT_S)
    except httpx.RequestError:
        return True
    return answer.status_code != 404


def provider_of(gateway: str, http: httpx.Client) -> Provider:
    """Ask a gateway for its provider, and the provider what it can.

    Raises:
        NoGateway: one of both does not answer.
        LoginError: nobody signs in there.
    """
    told = _asked(http, f"{checked_url(gateway)}{_WELL_KNOWN}", _GATEWAY)
    issuer, client_id = str(told.get("issuer", "")), str(told.get("client_id", ""))
    if not issuer or not client_id:
        raise LoginError(f"{gateway} names no provider of identities to sign in at")
    page = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    about = _asked(http, page, "its provider of identities")
    if about.get("issuer") != issuer:
        raise LoginError(f"{page} speaks for {about.get('issuer')!r}, not for {issuer}")
    scopes = told.get("scopes")
    listed = scopes if isinstance(scopes, list) else ["openid"]
    return Provider(issuer, client_id, tuple(str(one) for one in listed), about)


# --- by a browser -------------------------------------------------------------------------------


def by_browser(
    provider: Provider,
    http: httpx.Client,
    show: Callable[[str], None],
    patience_s: float = 300.0,
) -> Token:
    """Sign in by the provider's page.

    Args:
        provider: Where.
        http: Speaks to it.
        show: Is given the address of the page, to open it.
        patience_s: How long to wait for somebody to sign in there.

    Raises:
        LoginError: it was not done, or not by who began it.
        TimedOut: nobody came back in time.
        NoGateway: the provider does not answer.
    """
    page = provider.endpoint("authorization_endpoint")
    if page is None:
        raise LoginError(f"{provider.issuer} has no page to sign in at")
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
    with Return(state) as back:
        said = {
            "response_type": "code",
            "client_id": provider.client_id,
            "redirect_uri": back.uri,
            "scope": " ".join(provider.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        show(f"{page}{'&' if '?' in page else '?'}{urlencode(said)}")
        answer = back.wait(patience_s)
    if answer.get("iss", provider.issuer) != provider.issuer:  # RFC 9207
        raise LoginError(f"the answer is of {answer['iss']}, not of {provider.issuer}")
    if "code" not in answer:
        why = answer.get("error_description") or answer.get("error") or "it gave no code"
        raise LoginError(f"{provider.issuer} did not let you in: {why}")
    grant = {
        "grant_type": "authorization_code",
        "code": answer["code"],
        "redirect_uri": back.uri,
        "code_verifier": verifier,
    }
    return _token(provider, _granted(provider, http, grant), nonce)


# --- by a code that is typed in elsewhere -------------------------------------------------------


def by_device(
    provider: Provider,
    http: httpx.Client,
    show: Callable[[str, str], None],
    wait: Callable[[float], None] = time.sleep,
) -> Token:
    """Sign in by a browser of another device.

    Args:
        provider: Where.
        http: Speaks to it.
        show: Is given the address to open, and the code to type in there.
        wait: Waits for so many seconds.

    Raises:
        LoginError: the provider cannot do that, or did not let somebody in.
        TimedOut: nobody typed the code in, in time.
        NoGateway: the provider does not answer.
    """
    page = provider.endpoint("device_authorization_endpoint")
    if page is None:
        raise LoginError(f"{provider.issuer} has no sign-in by a code; leave --device out")
    asked = {"client_id": provider.client_id, "scope": " ".join(provider.scopes)}
    begun = _posted(http, page, asked)
    try:
        device, code = str(begun["device_code"]), str(begun["user_code"])
        address = str(begun.get("verification_uri_complete") or begun["verification_uri"])
        left_s, every_s = float(begun["expires_in"]), float(begun.get("interval", 5))
        every_s = max(1.0, every_s)  # with 0 it would be asked all the time, and for ever
    except (KeyError, TypeError, ValueError):
        raise LoginError(_why(provider, begun, "gave no code to type in")) from None
    show(address, code)
    grant = {"grant_type": _DEVICE_GRANT, "device_code": device}
    while left_s > 0.0:
        wait(every_s)
        left_s -= every_s
        try:
            answer = _granted(provider, http, grant)
        except NoGateway:
            if left_s <= 0.0:
                raise
            every_s += 5.0  # it may be back while somebody types the code in (RFC 8628, 3.5)
            continue
        error = answer.get("error")
        if error is None:
            return _token(provider, answer, None)
        if error == "slow_down":
            every_s += 5.0
        elif error != "authorization_pending":
            raise LoginError(_why(provider, answer, "did not let you in"))
    raise TimedOut("nobody typed the code in, in time; begin again")


# --- what both share ----------------------------------------------------------------------------


def _granted(provider: Provider, http: httpx.Client, grant: dict[str, str]) -> dict[str, Any]:
    page = provider.endpoint("token_endpoint")
    if page is None:
        raise LoginError(f"{provider.issuer} gives no tokens")
    return _posted(http, page, {**grant, "client_id": provider.client_id})


def _token(provider: Provider, answer: dict[str, Any], nonce: str | None) -> Token:
    """Take the id token out of an answer that came from the provider itself.

    Its signature is the gateway's to check; here it is seen that it is ours.
    """
    text = answer.get("id_token")
    if not isinstance(text, str):
        raise LoginError(_why(provider, answer, "gave no id_token"))
    with contextlib.suppress(IndexError, ValueError, KeyError, TypeError):
        body = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        ours = claims["iss"] == provider.issuer and provider.client_id in audience
        if ours and nonce in (None, claims.get("nonce")):
            return Token(text, float(claims["exp"]))
    raise LoginError(f"{provider.issuer} gave a token that is not for this sign-in; try again")


def _why(provider: Provider, answer: dict[str, Any], otherwise: str) -> str:
    why = answer.get("error_description") or answer.get("error")
    return f"{provider.issuer} {otherwise}{f': {why}' if why else ''}"


def _asked(http: httpx.Client, url: str, who: str) -> dict[str, Any]:
    answer, found = _answer(http, who, url, None)
    if answer.status_code != 200:
        said = found.get("detail") or f"answers with {answer.status_code}"
        raise LoginError(f"{url}: {said}")
    return found


def _posted(http: httpx.Client, url: str, fields: dict[str, str]) -> dict[str, Any]:
    return _answer(http, "the provider of identities", url, fields)[1]


def _answer(
    http: httpx.Client, who: str, url: str, fields: dict[str, str] | None
) -> tuple[httpx.Response, dict[str, Any]]:
    headers = {"Accept": "application/json"}
    try:
        if fields is None:
            answer = http.get(url, headers=headers, timeout=_TIMEOUT_S)
        else:
            answer = http.post(url, data=fields, headers=headers, timeout=_TIMEOUT_S)
    except httpx.RequestError as error:
        if who == _GATEWAY:
            raise no_gateway(error) from error
        raise NoGateway(f"{who} does not answer at {url}: {error}") from error
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise LoginError(f"{url}: answers with no object, and status {answer.status_code}")
    return answer, found


def check(gateway: str, token: Token, http: httpx.Client) -> dict[str, Any]:
    """Ask the gateway who one is by a token.

    Raises:
        NotKnown: it does not take the token, or nothing says what one may do.
        NoGateway: it does not answer.
    """
    url = f"{checked_url(gateway)}/api/v1/me"
    try:
        answer = http.get(
            url, headers={"Authorization": f"Bearer {token.text}"}, timeout=_TIMEOUT_S
        )
        found = answer.json()
    except httpx.RequestError as error:
        raise no_gateway(error) from error
    except ValueError as error:
        raise NoGateway(f"the gateway does not answer at {url}: {error}") from error
    if answer.status_code != 200 or not isinstance(found, dict):
        said = found.get("detail") if isinstance(found, dict) else None
        detail = str(said or f"it answers with {answer.status_code}")
        raise NotKnown(answer.status_code, detail, None, None)
    return found


def keep(name: str, token: Token) -> Path:
    """Keep a context's token in a file for this user alone, in place of the one before.

    Raises:
        ContextError: it cannot be written.
    """
    if Path(name).name != name:
        raise ContextError(f"{name!r} is no name of a context: write it without /")
    path = contexts_file().parent / "tokens" / name
    draft = path.with_name(f".{name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(f"{token.text}\n")
        draft.replace(path)
    except (OSError, UnicodeEncodeError) as error:
        raise ContextError(f"{path} cannot be written: {error}") from error
    return path
