"""Where gateways are: named contexts in a file of this user's, and those that run on this machine.

`contexts.toml` in `$XDG_CONFIG_HOME/tidegate` names gateways; it holds no token, only the files
that do. A gateway on this machine keeps a file in `$XDG_RUNTIME_DIR/tidegate`, token and all.
"""

import contextlib
import json
import os
import re
import stat
import tempfile
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidegate_client.errors import LOOPBACK, ContextError, NoGateway

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Place:
    """A gateway, and what lets one in there."""

    url: str
    token: str | None = field(default=None, repr=False)
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """A gateway by name."""

    name: str
    url: str
    token_file: str | None = None

    def place(self) -> Place:
        """Give the gateway with its token: that of $TIDEGATE_TOKEN, or of its file.

        Raises:
            ContextError: the file cannot be read, or others can.
        """
        token = os.environ.get("TIDEGATE_TOKEN") or None
        if token is None and self.token_file is not None:
            token = read_token(Path(self.token_file))
        return Place(self.url, token, self.name)


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts of a user."""

    known: dict[str, Context]
    current: str | None = None

    def named(self, name: str) -> Context:
        """Give a context.

        Raises:
            ContextError: there is none of that name.
        """
        if name not in self.known:
            there = ", ".join(self.known) or "none yet"
            raise ContextError(
                f"{name}: no such context; there are {there}. "
                f"`tidegate context add {name} URL` adds it"
            )
        return self.known[name]

    def chosen(self) -> Context | None:
        """Give the context in force: that of $TIDEGATE_CONTEXT, or the current one."""
        name = os.environ.get("TIDEGATE_CONTEXT") or self.current
        return None if name is None else self.named(name)

    def added(self, context: Context) -> "Contexts":
        """Give them with one more; the first is the current one at once."""
        known = {**self.known, context.name: context}
        return Contexts(known, self.current or context.name)

    def removed(self, name: str) -> "Contexts":
        """Give them without one."""
        self.named(name)
        known = {one: context for one, context in self.known.items() if one != name}
        return Contexts(known, None if self.current == name else self.current)

    def using(self, name: str) -> "Contexts":
        """Give them with another current one."""
        return replace(self, current=self.named(name).name)


def context(name: str, url: str, token_file: Path | None) -> Context:
    """Make a context.

    Raises:
        ContextError: its name, address or file cannot be.
    """
    if not _NAME.fullmatch(name):
        raise ContextError(f"{name!r} is no name of a context: write a-z, 0-9, and . _ - within it")
    if token_file is not None:
        read_token(token_file)
    path = None if token_file is None else str(token_file.expanduser().absolute())
    return Context(name, checked_url(url), path)


def checked_url(url: str) -> str:
    """Give the address of a gateway without what stands after its host and port.

    Raises:
        ContextError: it is none, or a token would go over the network in clear.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise ContextError(f"{url!r} is no address; write it as https://gateway.example:8321")
    if parts.query or parts.path not in ("", "/", "/api/v1", "/api/v1/"):
        raise ContextError(
            f"{url!r}: leave out what stands after host and port; a token has a file"
        )
    if parts.scheme == "http" and host not in LOOPBACK:
        raise ContextError(f"{url!r}: http would show the token to the network; write https")
    return f"{parts.scheme}://{parts.netloc}"


def read_token(path: Path) -> str:
    """Read a token from a file that only its owner can read.

    Raises:
        ContextError: it cannot be read, others can read it, or it is empty.
    """
    path = path.expanduser()
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ContextError(f"{path}: others can read this token; chmod 600 {path}")
            token = file.read(65_536).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "is no text"
        raise ContextError(f"{path}: {said}; name a file that holds the token") from error
    if not token or any(character.isspace() for character in token):
        raise ContextError(f"{path} holds no token; put the token in it, and nothing else")
    return token


def contexts_file() -> Path:
    """Say where the contexts are kept."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "tidegate" / "contexts.toml"


def load() -> Contexts:
    """Read the contexts; none if there is no file.

    Raises:
        ContextError: the file cannot be read, or is damaged.
    """
    path = contexts_file()
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        found = {
            name: Context(name, checked_url(one["url"]), one.get("token_file"))
            for name, one in raw.get("contexts", {}).items()
        }
    except FileNotFoundError:
        return Contexts({})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContextError(f"{path} cannot be read: {error}; mend it, or remove it") from error
    current = raw.get("current")
    return Contexts(found, current if current in found else None)


def save(contexts: Contexts) -> None:
    """Write the contexts to their file, for this user alone.

    Raises:
        ContextError: it cannot be written.
    """
    lines = [] if contexts.current is None else [f"current = {_quoted(contexts.current)}", ""]
    for one in contexts.known.values():
        lines += [f"[contexts.{_quoted(one.name)}]", f"url = {_quoted(one.url)}"]
        lines += [f"token_file = {_quoted(one.token_file)}"] if one.token_file else []
        lines.append("")
    path = contexts_file()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        draft.replace(path)
    except OSError as error:
        raise ContextError(f"{path} cannot be written: {error.strerror}") from error


def _quoted(text: str) -> str:
    # What JSON escapes, TOML reads; characters beyond ASCII stand as they are.
    return json.dumps(text, ensure_ascii=False)


def find(name: str | None = None) -> Place:
    """Find a gateway: the named context, the one in force, or the one that runs on this machine.

    Raises:
        ContextError: there is no such context, or it cannot be used.
        NoGateway: none is named, and none or several run here.
    """
    known = load()
    chosen = known.chosen() if name is None else known.named(name)
    if chosen is not None:
        return chosen.place()
    local = list(running())
    if len(local) == 1:
        return local[0]
    if local:
        there = ", ".join(f"{one.url} ({one.name})" for one in local)
        raise NoGateway(f"several gateways run here: {there}; add a context for the one you mean")
    raise NoGateway(
        "no gateway is named and none runs here; begin one with `tidegate serve LOG`, or name one: "
        "tidegate context add NAME URL"
    )


def running() -> list[Place]:
    """Give the gateways that run on this machine for this user; their names are their logs."""
    found = []
    for path in sorted(_runtime_folder().glob("gateway-*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            said = path.lstat()
            if said.st_uid != os.getuid() or stat.S_IMODE(said.st_mode) & 0o077:
                continue  # not written by a gateway of this user
            raw = json.loads(path.read_bytes())
            os.kill(int(raw["pid"]), 0)  # one that was killed leaves its file
            found.append(Place(checked_url(raw["url"]), str(raw["token"]), str(raw["log"])))
    return found


def _runtime_folder() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and Path(base).is_dir():
        return Path(base) / "tidegate"
    return Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}"
