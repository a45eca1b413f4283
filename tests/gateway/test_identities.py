"""Tokens of a provider: which are believed, and what their bearers may do then."""

import base64
import hmac
import json
from collections.abc import Mapping
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from gateway.identities import Identities
from gateway.subjects import Role, Subject
from tests.gateway.issuing import (
    BINDINGS,
    ISSUER,
    NOW_S,
    Issuer,
    ask,
    identities,
    key,
    told,
)


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
    other = _part(issuer.claims(sub="olga"))
    forged = key("one")  # by another's key under a name that the provider has
    for token in (
        f"{head}.{other}.{mark}",
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
    said = f"{_part({'alg': 'HS256', 'kid': 'one'})}.{_part(issuer.claims())}"
    by = hmac.new(public.as_pem(private=False), said.encode(), "sha256").digest()
    return f"{said}.{_text(by)}"


def _unsigned(claims: Mapping[str, Any]) -> str:
    return f"{_part({'alg': 'none', 'kid': 'one'})}.{_part(claims)}."


def _part(document: Mapping[str, Any]) -> str:
    return _text(json.dumps(document).encode())


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


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
    await told(people, ".".join((_part(signed | field), _part({"sub": "olga"}), "AA")))
    cookie = ".".join((_part(sealed | field), "", "AA", "AA", "AA"))
    assert await people.subject({}, {people.cookie_name("session"): cookie}) is None
