"""A provider of identities that a test asks without a socket, and an authority that believes it."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from bus.clock import Clock, SystemClock
from gateway.identities import Identities, Rules, digest
from gateway.problems import Problem
from gateway.provider import Client, Provider
from gateway.sealing import Seal
from gateway.subjects import Sight, Subject
from services.gateway_section import AuthSection

ISSUER = "https://id.example.org"
BINDINGS = [
    {"subject": "olga", "role": "operator"},
    {"group": "acme-team", "role": "tenant", "tenant": "acme"},
    {"group": "everybody", "role": "viewer"},
]
NOW_S = 1_800_000_000.0
SECRET = b"0123456789abcdef0123456789abcdef"
Key = RSAKey | ECKey | OctKey | OKPKey


def key(kid: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid, "alg": "ES256"})


class Issuer:
    """Its keys, whatever it signs, and how often it was asked for what."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.keys: list[Key] = [key("one")]
        self.asked: list[str] = []
        self.away = False
        self.says: dict[str, Any] = {}  #: What its page about itself says otherwise.
        self.id_token = ""
        self.transport = httpx.MockTransport(self._answer)

    def claims(self, **other: Any) -> dict[str, Any]:
        now_s = int(self.clock.now_s())
        return {"iss": ISSUER, "aud": "tidegate", "sub": "anna", "groups": ["acme-team"],
                "iat": now_s, "exp": now_s + 300} | other  # fmt: skip

    def token(self, by: Key | None = None, alg: str = "ES256", **claims: Any) -> str:
        by = by or self.keys[0]
        said = {name: value for name, value in self.claims(**claims).items() if value is not None}
        return jwt.encode({"alg": alg, "kid": by.kid}, said, by, algorithms=[alg])

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("away")
        self.asked.append(request.url.path)
        if request.url.path == "/.well-known/openid-configuration":
            return httpx.Response(200, json={
                "issuer": ISSUER, "jwks_uri": f"{ISSUER}/jwks",
                "authorization_endpoint": f"{ISSUER}/auth", "token_endpoint": f"{ISSUER}/token",
            } | self.says)  # fmt: skip
        if request.url.path == "/jwks":
            found = [one.as_dict(private=isinstance(one, OctKey)) for one in self.keys]
            return httpx.Response(200, json={"keys": found})
        if request.url.path == "/token":
            assert b"code_verifier=" in request.content
            return httpx.Response(200, json={
                "access_token": "x", "token_type": "Bearer", "id_token": self.id_token
            })  # fmt: skip
        return httpx.Response(404)


def identities(
    auth: dict[str, Any], issuer: Issuer | None = None, file: Path | None = None,
    clock: Clock | None = None,
) -> Identities:  # fmt: skip
    """Make an authority of a section; `file` holds one, in JSON, that is read when it changes."""
    clock = clock or (issuer.clock if issuer else SystemClock())
    if issuer is not None:
        auth = {"issuer": ISSUER, "client_id": "tidegate", "secret_file": "/none"} | auth
    section = AuthSection.model_validate(auth)

    def read() -> AuthSection:
        assert file is not None
        return AuthSection.model_validate(json.loads(file.read_text()))

    provider = None
    if issuer is not None:
        client = Client(ISSUER, "tidegate", "", section.scopes, section.audiences,
                        "https://tidegate.example.org/callback")  # fmt: skip
        provider = Provider(client, clock, issuer.transport)
    return Identities(Rules(section, file, read, clock), provider, Seal(SECRET), clock, True)


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


def robot(token: str, **other: Any) -> dict[str, Any]:
    ends = datetime.fromtimestamp(NOW_S + 100, UTC).isoformat()
    return {"name": "ci", "sha256": digest(token), "role": "tenant", "tenant": "acme",
            "expires": ends} | other  # fmt: skip
