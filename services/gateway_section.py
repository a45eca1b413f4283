"""`[gateway]`: where the gateway is reached, and who may ask it for what."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AwareDatetime, Field, model_validator

from schemas.options import Seconds, Section
from schemas.requests import Role
from schemas.values import Name

LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: A secret has at least so many bytes.
SECRET_BYTES = 32
_is_sha256 = re.compile(r"[0-9a-f]{64}").fullmatch


class _Given(Section):
    """A role, and whose jobs are the subject's own."""

    #: What the subject may do; each may do what those before it may.
    role: Role
    #: Whose jobs are the subject's own: a tenant must have one, a viewer may.
    tenant: Name | None = None

    @model_validator(mode="after")
    def _tenant_fits(self) -> "_Given":
        if self.role == "tenant" and self.tenant is None:
            raise ValueError("role is tenant, so tenant must say which; add tenant")
        if self.role in ("operator", "admin") and self.tenant is not None:
            raise ValueError(f"role {self.role} is for every tenant; leave tenant out")
        return self


class BindingSection(_Given):
    """`[[gateway.auth.bindings]]`: what a person may do; the first binding that fits counts."""

    #: Fits who is in this group, by the provider's word. Give it or `subject`.
    group: str = ""
    #: Fits this one person, by `name_claim`.
    subject: str = ""

    @model_validator(mode="after")
    def _fits_something(self) -> "BindingSection":
        if bool(self.group) == bool(self.subject):
            raise ValueError("give group or subject, one of them")
        return self


class RobotSection(_Given):
    """`[[gateway.auth.robots]]`: a program; `tidegate gateway token` writes such a table."""

    #: Its name; it asks as `robot:NAME`.
    name: Name
    #: SHA-256 of its token, in hexadecimal; the token itself is nowhere but with the robot.
    sha256: str
    #: When its token ends, with an offset: `2026-12-31T00:00:00Z`.
    expires: AwareDatetime
    #: Whether its token is refused from now on; the gateway need not be started anew.
    revoked: bool = False

    @model_validator(mode="after")
    def _is_a_digest(self) -> "RobotSection":
        if not _is_sha256(self.sha256):
            raise ValueError("sha256 must be 64 hexadecimal digits, in lower case")
        if self.expires.utcoffset() != timedelta(0):
            raise ValueError("expires must be in UTC: end it with Z")
        return self


class AuthSection(Section):
    """`[gateway.auth]`: the provider of identities (OpenID Connect), and what each identity may do.

    The gateway takes bindings, robots and `visibility` anew within a second after the file changed.
    """

    #: The provider's issuer, an https address; empty: robots alone are known.
    issuer: str = ""
    #: The client that the provider knows the gateway as.
    client_id: str = ""
    #: A file whose first line is the client's secret; none for a public client.
    client_secret_file: Path | None = None
    #: What the gateway asks the provider for; it must lead to the claim of `groups_claim`.
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    #: For whom bearers' tokens must be made (`aud`); empty: for `client_id`.
    audience: str = ""
    #: The public client that `tidegate context login` is to the provider, where native programs
    #: may be led back to any port of 127.0.0.1. Its tokens are taken from bearers, too. Empty:
    #: `client_id`, if that has no secret and is for whom bearers' tokens are made.
    terminal_client_id: str = ""
    #: The claim that lists a person's groups.
    groups_claim: str = "groups"
    #: The claim that names a person, which must never pass to another: `sub` is always safe.
    name_claim: str = "sub"
    #: How long one who signed in stays so.
    session_s: Seconds = 8 * 3600.0
    #: A file of at least 32 random bytes, the same for gateways behind one balancer: it seals
    #: sessions, and pseudonyms are made with it.
    secret_file: Path | None = None
    #: Whose jobs viewers and tenants see by name: everybody's, or only their own tenant's; then
    #: others' have pseudonyms.
    visibility: Literal["all", "own"] = "all"
    bindings: tuple[BindingSection, ...] = ()
    robots: tuple[RobotSection, ...] = ()

    @property
    def terminal_client(self) -> tuple[str, ...]:
        """The client that signs people in from terminals; none if there is none."""
        if self.terminal_client_id:
            return (self.terminal_client_id,)
        fits = not self.client_secret_file and self.audience in ("", self.client_id)
        return (self.client_id,) if self.issuer and fits else ()

    @property
    def audiences(self) -> tuple[str, ...]:
        """For whom a bearer's token may be made."""
        return (self.audience or self.client_id, *self.terminal_client)

    @property
    def configured(self) -> bool:
        """Whether anybody can be known by it."""
        return bool(self.issuer or self.robots)

    @model_validator(mode="after")
    def _is_whole(self) -> "AuthSection":
        if self.issuer:
            at = urlsplit(self.issuer)
            if at.scheme != "https" and not (at.scheme == "http" and at.hostname in LOOPBACK):
                raise ValueError("issuer must be an https address (http on loopback alone)")
            if not self.client_id:
                raise ValueError("issuer is given, so client_id must be; name the client")
            if "openid" not in self.scopes:
                raise ValueError("scopes must hold openid, or the provider identifies nobody")
        if self.secret_file is None and (self.issuer or self.visibility == "own"):
            raise ValueError(
                "secret_file is needed for issuer and for visibility; write one: "
                "openssl rand -base64 48 > FILE"
            )
        for field, names in (
            ("robots", [one.name for one in self.robots]),
            ("robots' sha256", [one.sha256 for one in self.robots]),
        ):
            if len(set(names)) < len(names):
                raise ValueError(f"{field}: two are the same; each needs its own")
        return self


class GatewaySection(Section):
    """`[gateway]`: where `tidegate serve` listens, and under which name it is asked."""

    #: The address to listen on. One that others reach needs TLS and identities.
    host: str = "127.0.0.1"
    #: The port; 0 for any that is free.
    port: Annotated[int, Field(ge=0, le=65_535)] = 8321
    #: The address that people open, such as `https://tidegate.example.org`; it is refused under
    #: any other host's name.
    public_url: str = ""
    #: The certificate, PEM, with those that lead to its authority after it.
    cert_file: Path | None = None
    #: The private key of the certificate, PEM.
    key_file: Path | None = None
    auth: AuthSection = Field(default_factory=AuthSection)

    @model_validator(mode="after")
    def _is_reachable(self) -> "GatewaySection":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together; give both")
        if self.public_url:
            at = urlsplit(self.public_url)
            if at.scheme not in ("http", "https") or not at.hostname or at.path.strip("/"):
                raise ValueError("public_url must be https://NAME[:PORT]")
            if at.scheme == "http" and at.hostname not in LOOPBACK:
                raise ValueError("public_url must begin with https://")
        if self.auth.issuer and not self.public_url:
            raise ValueError("public_url is needed: the provider leads people back there")
        if self.host not in LOOPBACK:
            missing = [
                text
                for text, there in (
                    ("cert_file and key_file (TLS)", self.cert_file),
                    ("public_url", self.public_url),
                    ("auth.issuer or auth.robots (identities)", self.auth.configured),
                )
                if not there
            ]
            if missing:
                raise ValueError(
                    f"host: {self.host} can be reached by others, so these must be given in "
                    f"[gateway] first: {', '.join(missing)}"
                )
        return self
