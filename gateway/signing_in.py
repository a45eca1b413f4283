"""Signing in and out by a browser: `/login`, `/callback`, `/logout`.

And what a terminal needs to sign in by itself: `/.well-known/tidegate`.
"""

import hmac
import secrets
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from gateway.identities import SESSION, Identities
from gateway.problems import Problem
from gateway.subjects import cookies_of

if TYPE_CHECKING:
    from gateway.provider import Provider

_SIGN_IN = "sign-in"
#: A sign-in is to be done in so many seconds.
_SIGN_IN_S = 600


def add_signing_in(app: FastAPI) -> None:
    """Add the paths."""
    app.add_api_route("/login", login, include_in_schema=False)
    app.add_api_route("/callback", callback, include_in_schema=False)
    app.add_api_route("/.well-known/tidegate", well_known, include_in_schema=False)
    app.add_api_route("/logout", logout, methods=["POST"], include_in_schema=False)


def _known(request: Request) -> "tuple[Identities, Provider]":
    """Give who signs people in.

    Raises:
        Problem: 404, nobody does; 429, too many sign in from there.
    """
    gateway = request.app.state.gateway
    authority = gateway.authority
    if not isinstance(authority, Identities) or authority.provider is None:
        raise Problem(404, "nobody signs in here: no provider of identities is configured")
    # Nobody is known yet, each step costs work here, and the last one a question to the provider.
    gateway.limits.sign_in("" if request.client is None else request.client.host)
    return authority, authority.provider


async def well_known(request: Request) -> dict[str, object]:
    """Tell anybody where people sign in, and as which client a terminal does; nothing is secret.

    Raises:
        Problem: 404, nobody signs in here from a terminal.
    """
    authority = request.app.state.gateway.authority
    if not isinstance(authority, Identities) or authority.provider is None:
        raise Problem(
            404,
            "nobody signs in here: no provider of identities is configured; programs bring a "
            "token, as in tidegate context add NAME URL --token-file FILE",
        )
    auth = authority.rules.auth
    if not auth.terminal_client:
        raise Problem(
            404,
            "nobody signs in here from a terminal; an admin sets gateway.auth.terminal_client_id "
            "to a public client of the provider",
        )
    (client_id,) = auth.terminal_client
    return {"issuer": auth.issuer, "client_id": client_id, "scopes": list(auth.scopes)}


async def login(request: Request) -> Response:
    """Lead to the provider's page; a sealed cookie keeps what belongs to this sign-in."""
    authority, provider = _known(request)
    said = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
    answer = RedirectResponse(await provider.begin(**said), 303)
    until_s = authority.clock.now_s() + _SIGN_IN_S
    sealed = authority.seal.sealed(_SIGN_IN, said, until_s)
    _keep(answer, authority, _SIGN_IN, sealed, _SIGN_IN_S)
    return answer


async def callback(request: Request, code: str = "", state: str = "", error: str = "") -> Response:
    """Take the provider's code for a session.

    Raises:
        Problem: this browser began no such sign-in, or nothing says what the person may do.
    """
    authority, provider = _known(request)
    text = cookies_of(request.headers).get(authority.cookie_name(_SIGN_IN), "")
    said = authority.seal.opened(_SIGN_IN, text, authority.clock.now_s())
    if said is None or not hmac.compare_digest(said["state"].encode(), state.encode()):
        # Else a page elsewhere could sign somebody in as somebody else.
        raise Problem(400, "this browser began no such sign-in, or too long ago; open /login",
                      parameter="state")  # fmt: skip
    if error or not code:
        raise Problem(403, "the provider did not let you in; ask its admin, or open /login again")
    claims = await provider.end(code, said["nonce"], said["verifier"])
    session, lasts_s = authority.session(claims)
    answer = RedirectResponse("/", 303)
    _keep(answer, authority, SESSION, session, int(lasts_s))
    answer.delete_cookie(authority.cookie_name(_SIGN_IN), path="/", secure=authority.secure)
    return answer


async def logout(request: Request) -> Response:
    """End the session; the provider's own goes on.

    Raises:
        Problem: 403, another page than the gateway's asks for it.
    """
    authority, _ = _known(request)
    if request.headers.get("sec-fetch-site") != "same-origin":
        raise Problem(403, "signing out is asked for by the gateway's own page: open /")
    authority.end(cookies_of(request.headers))
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(authority.cookie_name(SESSION), path="/", secure=authority.secure)
    return answer


def _keep(answer: Response, authority: Identities, purpose: str, value: str, age_s: int) -> None:
    # Lax: the provider's page leads back here, and what changes something asks for more anyway.
    answer.set_cookie(
        authority.cookie_name(purpose), value, max_age=age_s, httponly=True,
        samesite="lax", secure=authority.secure, path="/",
    )  # fmt: skip
