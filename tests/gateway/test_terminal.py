"""What a terminal is told of signing in, and whose tokens that lets in."""

from pathlib import Path
from typing import Any

import pytest

from gateway.problems import Problem
from services.gateway_section import AuthSection
from tests.gateway.conftest import Serving
from tests.gateway.issuing import BINDINGS, ISSUER, Issuer, identities
from tests.gateway.test_access import problem

WHERE = "/.well-known/tidegate"


async def test_anybody_is_told_where_to_sign_in_and_nothing_secret(
    log: Path, serving: Serving, issuer: Issuer
) -> None:
    auth = {"bindings": BINDINGS, "terminal_client_id": "terminal", "scopes": ["openid", "groups"]}
    async with serving(log, authority=identities(auth, issuer)) as served:
        answer = await served.stranger().get(WHERE)
        assert answer.json() == {
            "issuer": ISSUER, "client_id": "terminal", "scopes": ["openid", "groups"],
        }  # fmt: skip
        for host in ("evil.example", ""):
            problem(await served.stranger(Host=host).get(WHERE), 421)
        headers = {"Authorization": f"Bearer {issuer.token(aud='terminal')}"}
        assert (await served.stranger(**headers).get("/api/v1/me")).json()["name"] == "anna"


async def test_where_nobody_signs_in_from_a_terminal_what_to_do_is_said(
    log: Path, serving: Serving, issuer: Issuer
) -> None:
    async with serving(log) as served:
        said = problem(await served.stranger().get(WHERE), 404)["detail"]
        assert "--token-file" in said
    secret = identities({"client_secret_file": "/none"}, issuer)
    async with serving(log, authority=secret) as served:
        said = problem(await served.stranger().get(WHERE), 404)["detail"]
        assert "gateway.auth.terminal_client_id" in said


@pytest.mark.parametrize(
    ("auth", "client", "audiences"),
    [
        ({}, ("a",), ("a", "a")),
        ({"terminal_client_id": "t"}, ("t",), ("a", "t")),
        ({"client_secret_file": "/x"}, (), ("a",)),
        ({"client_secret_file": "/x", "terminal_client_id": "t"}, ("t",), ("a", "t")),
        # Its own tokens are not for the API there: only a client that was named lets in.
        ({"audience": "api"}, (), ("api",)),
        ({"audience": "api", "terminal_client_id": "t"}, ("t",), ("api", "t")),
    ],
)
def test_only_a_public_client_signs_people_in(
    auth: dict[str, str], client: tuple[str, ...], audiences: tuple[str, ...]
) -> None:
    whole = {"issuer": ISSUER, "client_id": "a", "secret_file": "/s", **auth}
    section = AuthSection.model_validate(whole)
    assert (section.terminal_client, section.audiences) == (client, audiences)


@pytest.mark.parametrize("audience", ["another", ["terminal2", "x"], None])
async def test_a_token_for_anybody_else_lets_nobody_in(issuer: Issuer, audience: Any) -> None:
    people = identities({"bindings": BINDINGS, "terminal_client_id": "terminal"}, issuer)
    with pytest.raises(Problem, match="it is not made for tidegate"):
        await people.subject({"authorization": f"Bearer {issuer.token(aud=audience)}"}, {})
