"""A provider of identities, by OpenID Connect: its keys, its tokens, and signing in by its page.

The one file that speaks to the provider. Authlib makes the code flow's requests, joserfc checks
signatures. A token is believed if a key of the provider signed it by an algorithm of public keys
and its issuer, audience and times are right: what a token says of itself chooses none of that.
"""

import asyncio
import logging
import warnings
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from authlib.deprecate import AuthlibDeprecationWarning
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from bus.clock import Clock
from gateway.problems import Problem, later, refused
from services.gateway_section import LOOPBACK

with warnings.catch_warnings():
    # Authlib would rather have httpx's successor.
    warnings.simplefilter("ignore", AuthlibDeprecationWarning)
    from authlib.integrations.httpx_client import AsyncOAuth2Client, OAuthError

#: Signatures by public keys alone: with none or a shared secret anybody could sign.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
              "ES256", "ES384", "ES512", "EdDSA", "Ed25519")  # fmt: skip
_PUBLIC = ("RSA", "EC", "OKP")
#: So long keys are used before they are asked for again, in seconds.
_KEYS_S = 600.0
#: An unknown key is asked for at most once in so many seconds, whatever tokens name.
_AGAIN_S = 10.0
#: Clocks may differ by so many seconds.
_LEEWAY_S = 30
_TIMEOUT_S = 10.0
#: A token is no longer than so many characters.
_TOKEN_MOST = 16_384
#: What joserfc raises at a token that is wrong; TypeError at a header field of the wrong type.
_UNREADABLE = (JoseError, ValueError, TypeError)
#: What is raised where the provider does not answer, or not as one does.
_AWAY = (httpx.HTTPError, ValueError, TimeoutError)
_log = logging.getLogger("tidegate.gateway")


@dataclass(frozen=True, slots=True)
class Client:
    """What the gateway is to the provider."""

    issuer: str
    client_id: str
    client_secret: str
    scopes: tuple[str, ...]
    audiences: tuple[str, ...]  #: For one of which a bearer's token must be made.
    redirect_uri: str


def _within(seconds: float, since_s: float, now_s: float) -> bool:
    """Whether less has passed; a clock that was set back must not keep old keys for so long."""
    return 0.0 <= now_s - since_s < seconds


class Provider:
    """The provider, and what is remembered of it."""

    def __init__(
        self, client: Client, clock: Clock, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Speak to it as `client`; `transport` replaces the network."""
        self.client = client
        self._clock, self._transport = clock, transport
        self._about: dict[str, Any] = {}
        self._keys: KeySet | None = None
        self._fetched_s = self._tried_s = float("-inf")
        self._answered = True  #: Whether it did when it was asked for its keys last.
        self._asking: asyncio.Task[None] | None = None

    # --- tokens -----------------------------------------------------------------------------

    async def bearer(self, token: str) -> dict[str, Any]:
        """Give the claims of a bearer's token.

        Raises:
            Problem: 401, it is not to be believed; 503, the provider's keys cannot be had.
        """
        return await self._claims(token, *self.client.audiences)

    async def _claims(
        self, token: str, *audiences: str, nonce: str | None = None
    ) -> dict[str, Any]:
        if len(token) > _TOKEN_MOST:
            raise refused("the token is too long")
        if not _within(_KEYS_S, self._fetched_s, self._clock.now_s()):
            self._ask()  # keys that are known serve meanwhile, however slow the provider is
        if self._keys is None:
            await self._newest()
        if (keys := self._keys) is None:
            raise later("the provider of identities does not answer, and none of its keys is known "
                        "yet; try again", _AGAIN_S)  # fmt: skip
        try:
            read = self._decoded(token, keys)
        except InvalidKeyIdError:
            # The provider may have a new key; a token that names any other changes nothing.
            await self._newest()
            before, keys = keys, self._keys or keys
            if keys is before and not self._answered:
                raise later("the token is signed by a key that is not known yet, and the provider "
                            "of identities, which was asked for it, does not answer; try again",
                            _AGAIN_S) from None  # fmt: skip
            if keys is before:
                raise refused("the token is signed by a key that the provider does not "
                              "have; sign in again") from None  # fmt: skip
            try:
                read = self._decoded(token, keys)
            except _UNREADABLE as error:
                raise self._why(error) from error
        except _UNREADABLE as error:
            raise self._why(error) from error
        must: dict[str, Any] = {
            "iss": {"essential": True, "value": self.client.issuer},
            "aud": {"essential": True, "values": list(audiences)},
            "exp": {"essential": True},
            "sub": {"essential": True},
        }
        if nonce is not None:
            must["nonce"] = {"essential": True, "value": nonce}
        now_s = int(self._clock.now_s())
        try:
            jwt.JWTClaimsRegistry(now=now_s, leeway=_LEEWAY_S, **must).validate(read.claims)
        except _UNREADABLE as error:
            raise self._why(error) from error
        return dict(read.claims)

    def _decoded(self, token: str, keys: KeySet) -> jwt.Token:
        return jwt.decode(token, keys, algorithms=list(ALGORITHMS))

    def _why(self, error: Exception) -> Problem:
        if isinstance(error, ExpiredTokenError):
            return refused("the token has expired; get a new one from the provider")
        claim = getattr(error, "claim", None)
        about = {
            "iss": f"it is not of {self.client.issuer}",
            "aud": f"it is not made for {self.client.audiences[0]}",
            "nonce": "it belongs to another sign-in",
            "nbf": "it is not valid yet",
        }
        why = about.get(str(claim), "its form, its algorithm or its signature is wrong")
        return refused(f"the token is not believed: {why}; get one from the provider")

    # --- keys -------------------------------------------------------------------------------

    async def _newest(self) -> None:
        """Wait until the provider was asked for its keys, unless that was just now."""
        if (asking := self._ask()) is not None:
            await asyncio.shield(asking)  # whoever goes away leaves the answer to the others

    def _ask(self) -> asyncio.Task[None] | None:
        """Ask for the keys, once for all who want them; None: that was just now."""
        if self._asking is None or self._asking.done():
            now_s = self._clock.now_s()
            if _within(_AGAIN_S, self._tried_s, now_s):
                return None
            self._tried_s = now_s
            self._asking = asyncio.create_task(self._take_keys(now_s))
        return self._asking

    async def _take_keys(self, now_s: float) -> None:
        self._answered = False
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                about = await self.about()
                said = await self._json(self._ours("jwks_uri", about))
            keys = [key for key in said.get("keys", ()) if key.get("kty") in _PUBLIC]
            self._keys = KeySet.import_key_set({"keys": keys})
            self._fetched_s, self._answered = now_s, True
        except (*_AWAY, JoseError, TypeError, AttributeError) as error:
            # Those that are known stay: a provider that is away for a while ends no work.
            _log.warning("the keys of %s cannot be had: %r", self.client.issuer, error)

    async def about(self) -> dict[str, Any]:
        """Give what the provider says of itself.

        Raises:
            ValueError: it is another one.
            httpx.HTTPError: it does not answer.
        """
        if not self._about:
            url = f"{self.client.issuer.rstrip('/')}/.well-known/openid-configuration"
            said = await self._json(url)
            if said.get("issuer") != self.client.issuer:
                raise ValueError(f"{url} speaks for {said.get('issuer')!r}")
            self._about = said
        return self._about

    def _ours(self, name: str, about: dict[str, Any]) -> str:
        url = str(about.get(name, ""))
        at = urlsplit(url)
        if at.scheme != "https" and not (at.scheme == "http" and at.hostname in LOOPBACK):
            raise ValueError(f"{name} of {self.client.issuer} is no https address")
        return url

    async def _json(self, url: str) -> dict[str, Any]:
        async with httpx.AsyncClient(transport=self._transport, timeout=_TIMEOUT_S) as http:
            answer = await http.get(url)
            answer.raise_for_status()
            found = answer.json()
        if not isinstance(found, dict):
            raise ValueError(f"{url} answers with no object")
        return found

    # --- signing in -------------------------------------------------------------------------

    def _oauth(self, about: dict[str, Any]) -> Any:
        client = self.client
        method = "none"
        if client.client_secret:
            # Basic is what a provider takes that does not say.
            known = about.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
            basic = "client_secret_basic"
            method = basic if basic in known else "client_secret_post"
        return AsyncOAuth2Client(
            client.client_id, client.client_secret or None, method,
            scope=" ".join(client.scopes), redirect_uri=client.redirect_uri,
            code_challenge_method="S256", transport=self._transport, timeout=_TIMEOUT_S,
        )  # fmt: skip

    async def begin(self, state: str, nonce: str, verifier: str) -> str:
        """Give the address of the provider's page, for a sign-in that these three belong to.

        Raises:
            Problem: 503, the provider does not answer.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                about = await self.about()
            page = self._ours("authorization_endpoint", about)
        except _AWAY as error:
            _log.warning("%s cannot be asked: %r", self.client.issuer, error)
            raise later("the provider of identities does not answer; try again", 5.0) from error
        async with self._oauth(about) as oauth:
            url, _ = oauth.create_authorization_url(
                page, state=state, nonce=nonce, code_verifier=verifier
            )
        return str(url)

    async def end(self, code: str, nonce: str, verifier: str) -> dict[str, Any]:
        """Take a code for the claims of who signed in.

        Raises:
            Problem: 401, the provider does not vouch for them; 503, it does not answer.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                about = await self.about()
                endpoint = self._ours("token_endpoint", about)
                async with self._oauth(about) as oauth:
                    token = await oauth.fetch_token(endpoint, code=code, code_verifier=verifier)
        except OAuthError as error:
            _log.info("%s takes no code: %s", self.client.issuer, error)
            raise refused("the provider does not confirm this sign-in; begin again at /login"
                          ) from error  # fmt: skip
        except _AWAY as error:
            _log.warning("%s cannot be asked: %r", self.client.issuer, error)
            raise later("the provider of identities does not answer; try again", 5.0) from error
        text = token.get("id_token")
        if not isinstance(text, str):
            raise refused("the provider gave no id_token; its client must be allowed openid")
        return await self._claims(text, self.client.client_id, nonce=nonce)
