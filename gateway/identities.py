"""The authority of a gateway that others reach: people of a provider, and robots.

What somebody may do is read off the configuration at each request, so that a binding that is taken
away, or a robot that is revoked, counts within two seconds; people's groups are those of their
sign-in.
"""

import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bus.clock import Clock
from gateway.problems import Problem, refused
from gateway.sealing import Seal
from gateway.subjects import Role, Sight, Subject
from services.gateway_section import AuthSection, BindingSection, RobotSection

if TYPE_CHECKING:  # where nobody signs in, nothing of it is imported
    from gateway.provider import Provider

#: What a robot's token begins with, so that scanners for secrets find one that leaks.
ROBOT = "tidegate_"
SESSION = "session"
#: So often at most it is looked whether the configuration changed, in seconds.
_LOOK_S = 1.0
#: A file that was written less long ago may be half written: an editor empties it first.
_SETTLE_S = 0.5
#: What a person may be called in requests (`schemas.requests.Subject`).
_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+/-]{0,199}").fullmatch
_ROBOT_NAME = "robot:"
_log = logging.getLogger("tidegate.gateway")


def new_token() -> tuple[str, str]:
    """Make a robot's token of 32 random bytes; give it and its SHA-256."""
    token = ROBOT + secrets.token_urlsafe(32)
    return token, digest(token)


def digest(token: str) -> str:
    """Give the SHA-256 of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(slots=True)
class Rules:
    """The part of the configuration that may change while the gateway runs."""

    auth: AuthSection
    file: Path | None
    read: Callable[[], AuthSection]  #: Reads it again; a ValueError says what is wrong with it.
    clock: Clock
    _looked_s: float = float("-inf")
    _seen: object = None

    def __post_init__(self) -> None:
        self._seen = self._stamp()

    def current(self) -> AuthSection:
        """Give it as the file has it; one that is wrong is told in the log and not taken."""
        now_s = self.clock.now_s()
        if not 0 <= now_s - self._looked_s < _LOOK_S:
            self._looked_s = now_s
            stamp = self._stamp()
            if stamp != self._seen and not self._is_being_written(now_s):
                self._seen = stamp
                try:
                    self.auth = self.read()
                    _log.warning("%s changed: its bindings and robots are taken", self.file)
                except ValueError as error:
                    _log.error("%s changed and is not taken: %s", self.file, error)
        return self.auth

    def _is_being_written(self, now_s: float) -> bool:
        try:
            return self.file is not None and 0 <= now_s - self.file.stat().st_mtime < _SETTLE_S
        except OSError:
            return False

    def _stamp(self) -> object:
        try:
            found = self.file.stat() if self.file is not None else None
        except OSError:
            return None
        return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


@dataclass(slots=True)
class Identities:
    """Knows people by a session's cookie or a provider's token, and robots by theirs."""

    rules: Rules
    provider: "Provider | None"
    seal: Seal
    clock: Clock
    secure: bool  #: Whether browsers come by https.
    _ended: dict[str, float] = field(default_factory=dict)  #: By session, when it would have ended.

    @property
    def stranger(self) -> str:
        """What a stranger is told: how to come in."""
        if self.provider is None:
            return (
                "who are you? Send Authorization: Bearer TOKEN; an admin makes a token by "
                "`tidegate gateway token NAME`"
            )
        return (
            "who are you? People sign in at /login; programs send Authorization: Bearer TOKEN, of "
            "the provider or of a robot"
        )

    def cookie_name(self, purpose: str) -> str:
        """Name a cookie; browsers keep `__Host-` from neighbours' hands."""
        return f"{'__Host-' if self.secure else ''}tidegate-{purpose}"

    async def subject(
        self, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> Subject | None:
        """Give who asks, by a bearer's token or a session.

        Raises:
            Problem: 401 or 403, whoever it is may not ask; the text says why.
        """
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme:
            return await self._bearer(given.strip()) if scheme.lower() == "bearer" else None
        text = cookies.get(self.cookie_name(SESSION))
        said = self.seal.opened(SESSION, text, self.clock.now_s()) if text else None
        if said is None or said["id"] in self._ended:
            return None
        return self._person(said["name"], said["groups"], "cookie")

    async def _bearer(self, token: str) -> Subject:
        if token.startswith(ROBOT):
            return self._robot(token)
        if self.provider is None:
            raise refused("the token is no robot's, and no provider of identities is configured")
        claims = await self.provider.bearer(token)
        return self._person(*self.identity(claims), "token")

    def _robot(self, token: str) -> Subject:
        auth, wanted = self.rules.current(), digest(token)
        # By digest: how long this takes tells nothing of a token that could be guessed from.
        known = next((one for one in auth.robots if one.sha256 == wanted), None)
        if known is None or known.revoked:
            raise refused("the token is not known, or not any more; ask an admin for a new one")
        if self.clock.now_s() >= known.expires.timestamp():
            raise refused(f"the token ended at {known.expires.isoformat()}; ask an admin for "
                          "a new one: tidegate gateway token")  # fmt: skip
        return self._subject(_ROBOT_NAME + known.name, known, auth, "token")

    # --- people -----------------------------------------------------------------------------

    def identity(self, claims: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Give a person's name and groups.

        Raises:
            Problem: 403, the claims name nobody in a way that can be relied on.
        """
        auth = self.rules.current()
        name = claims.get(auth.name_claim)
        verified = claims.get("email_verified", True)  # a provider may not say, or say it in words
        if auth.name_claim == "email" and verified not in (True, "true"):
            raise Problem(403, "the provider has not verified your address; do that there first")
        if not isinstance(name, str) or not _is_name(name) or name.startswith(_ROBOT_NAME):
            raise Problem(
                403,
                f"the provider's claim {auth.name_claim} does not name you by letters, digits and "
                "._:@+/- alone; an admin can choose another in gateway.auth.name_claim",
            )
        groups = claims.get(auth.groups_claim, [])
        listed = [groups] if isinstance(groups, str) else groups
        if not isinstance(listed, list):
            listed = []
        return name, [one for one in listed if isinstance(one, str)]

    def _person(self, name: str, groups: Iterable[str], via: str) -> Subject:
        auth, member = self.rules.current(), set(groups)
        for binding in auth.bindings:
            if binding.subject == name or (binding.group and binding.group in member):
                return self._subject(name, binding, auth, via)
        raise Problem(
            403,
            f"you are {name}, but nothing says what you may do here; an admin adds you, or one of "
            "your groups, to gateway.auth.bindings",
        )

    def session(self, claims: Mapping[str, Any]) -> tuple[str, float]:
        """Begin the session of who signed in; give the cookie's value and how long it lasts.

        Raises:
            Problem: 403, nothing says what they may do.
        """
        name, groups = self.identity(claims)
        self._person(name, groups, "cookie")
        auth = self.rules.current()
        bound = {one.group for one in auth.bindings}
        # Only groups that bindings name: a person may be in hundreds, and a cookie has 4 KiB.
        kept = [group for group in groups if group in bound]
        said = {"id": secrets.token_urlsafe(16), "name": name, "groups": kept}
        until_s = self.clock.now_s() + auth.session_s
        return self.seal.sealed(SESSION, said, until_s), auth.session_s

    def end(self, cookies: Mapping[str, str]) -> None:
        """End a session before its time, for this gateway."""
        now_s = self.clock.now_s()
        self._ended = {one: until_s for one, until_s in self._ended.items() if until_s > now_s}
        said = self.seal.opened(SESSION, cookies.get(self.cookie_name(SESSION), ""), now_s)
        if said is not None:
            self._ended[said["id"]] = said["until_s"]

    def _subject(
        self, name: str, given: BindingSection | RobotSection, auth: AuthSection, via: str
    ) -> Subject:
        role = Role(given.role)
        if role in (Role.OPERATOR, Role.ADMIN):
            return Subject(name, role, None, via)
        sight = Sight(auth.visibility)
        return Subject(name, role, given.tenant, via, sight, self.seal.key("pseudonyms"))
