"""Who asks: a subject with a role, and the authority that knows it by its credentials.

On loopback there is one token, which `tidegate serve` prints; `gateway.identities` knows people of
a provider, and robots.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http.cookies import CookieError, SimpleCookie
from typing import Protocol

#: Of a subject's cookie, which no other port of this machine may overwrite.
_COOKIE = "tidegate-{port}"


class Role(StrEnum):
    """What a subject may do; each may do what those before it may."""

    VIEWER = "viewer"
    TENANT = "tenant"
    OPERATOR = "operator"
    ADMIN = "admin"


class Sight(StrEnum):
    """What a subject sees of tenants; each less than the one before."""

    EVERYTHING = "everything"
    ALL_NAMES = "all"  #: All jobs by name; what they run only of its own tenant's.
    OWN_NAMES = "own"  #: Its own tenant's jobs by name, others' by pseudonym.


@dataclass(frozen=True, slots=True)
class Subject:
    """Somebody who asks."""

    name: str
    role: Role
    tenant: str | None = None  #: Whose jobs are its own; None: no tenant's.
    via: str = "token"  #: How it proved who it is: `token` or `cookie`.
    sight: Sight = Sight.EVERYTHING
    veil: bytes = field(default=b"", repr=False)  #: The key that pseudonyms are made with.

    @property
    def rights(self) -> str:
        """What an answer depends on beside the question: it is part of each ETag."""
        sight = "" if self.sight is Sight.EVERYTHING else f":{self.sight}"
        return f"{self.role}:{self.tenant or ''}{sight}"

    def owns(self, tenant: str | None) -> bool:
        """Whether a tenant's jobs are its own."""
        return tenant is not None and tenant == self.tenant


class Authority(Protocol):
    """Knows subjects by what their requests carry."""

    @property
    def stranger(self) -> str:
        """What a stranger is told: how to come in."""
        ...

    async def subject(
        self, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> Subject | None:
        """Give who asks; None: a stranger.

        Raises:
            Problem: who asks may not; the text says why.
        """
        ...


def cookies_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Read a request's cookies."""
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        cookies = SimpleCookie()
    return {name: morsel.value for name, morsel in cookies.items()}


async def recognised(authority: Authority, headers: Mapping[str, str]) -> Subject | None:
    """Give who asks, by the headers of a request; None: a stranger."""
    return await authority.subject(headers, cookies_of(headers))


@dataclass(frozen=True, slots=True)
class LocalToken:
    """The one token of a gateway on loopback, and the cookie that a browser gets for it."""

    role: Role
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    name: str = "local"  #: Of whoever runs the gateway, as this machine knows them.
    stranger: str = (
        "who are you? Open the address that `tidegate serve` printed, or send its token: "
        "Authorization: Bearer TOKEN"
    )

    @property
    def cookie_name(self) -> str:
        """The name of the cookie; cookies of one host are shared by all its ports."""
        return _COOKIE.format(port=self.port)

    @property
    def cookie(self) -> str:
        """The value of the cookie: derived from the token, which it does not tell."""
        return hmac.new(self.token.encode(), b"tidegate cookie", hashlib.sha256).hexdigest()

    def opens(self, token: str) -> bool:
        """Whether this is the token."""
        return _same(token, self.token)

    async def subject(
        self, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> Subject | None:
        """Give the subject of a bearer's token or of a cookie."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme:
            known = scheme.lower() == "bearer" and self.opens(given.strip())
            return Subject(self.name, self.role, via="token") if known else None
        if _same(cookies.get(self.cookie_name, ""), self.cookie):
            return Subject(self.name, self.role, via="cookie")
        return None


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
