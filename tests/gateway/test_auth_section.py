"""What of `[gateway]` cannot be is refused with what to do."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.guard import LOOPBACK_HOSTS
from services.gateway_section import GatewaySection
from tests.gateway.issuing import ISSUER, robot

WHOLE = {"issuer": ISSUER, "client_id": "a", "secret_file": "/a"}
GLOBAL = {"group": "a", "role": "admin", "tenant": "b"}


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"host": "0.0.0.0"}, "given in [gateway] first: cert_file and key_file (TLS), public_url, "
                              "auth.issuer or auth.robots (identities)"),
        ({"cert_file": "/a"}, "cert_file and key_file go together"),
        ({"public_url": "http://a.example"}, "must begin with https"),
        ({"public_url": "a.example"}, "public_url must be https://NAME"),
        ({"auth": {"issuer": "http://a.example"}}, "issuer must be an https address"),
        ({"auth": {"issuer": ISSUER}}, "client_id must be"),
        ({"auth": {"issuer": ISSUER, "client_id": "a"}}, "secret_file is needed"),
        ({"auth": {"visibility": "own"}}, "secret_file is needed"),
        ({"auth": WHOLE}, "public_url is needed"),
        ({"auth": {"bindings": [{"role": "viewer"}]}}, "give group or subject"),
        ({"auth": {"bindings": [{"group": "a", "role": "tenant"}]}}, "add tenant"),
        ({"auth": {"bindings": [GLOBAL]}}, "leave tenant out"),
        ({"auth": {"robots": [robot("x"), robot("y")]}}, "two are the same"),
        ({"auth": {"robots": [robot("x", expires="2026-01-01T00:00:00")]}}, "timezone"),
        ({"auth": {"robots": [robot("x", sha256="x")]}}, "64 hexadecimal"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as found:
        GatewaySection.model_validate(section)
    assert says in str(found.value)


def test_a_loopback_gateway_needs_nothing() -> None:
    assert GatewaySection().host in LOOPBACK_HOSTS
    assert not GatewaySection().auth.configured
