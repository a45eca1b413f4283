"""What the page of a stranger says: what this is, that one must sign in, and how."""

from html import escape

from gateway.identities import Identities
from gateway.subjects import LocalToken

_WHAT = (
    "<p>Tidegate is a scheduler of GPUs: it decides which training jobs run where, and lends them "
    "servers that others do not need just now. This is its console, which shows what runs, what "
    "waits, and why.</p>"
)
_UNKNOWN = "<p>You are not signed in, so it shows you nothing yet.</p>"
_LOCAL = (
    "<h2>How to sign in</h2>"
    "<p>Open the address that <code>tidegate serve</code>, or <code>tidegate demo --serve</code>, "
    "printed when it was started. It ends in <code>?token=…</code>, and lets this browser in. Each "
    "start prints another; if it is not yours, ask whoever started it.</p>"
)
_PEOPLE = (
    "<h2>How to sign in</h2>"
    "<p><a href='/login'>Sign in</a>: the sign-in page of your organisation opens, and leads you "
    "back here.</p>"
)
_ROBOTS = (
    "<h2>How to be let in</h2>"
    "<p>Nobody signs in here with a browser: this gateway has no provider of identities, which an "
    "admin sets up as docs/gateway.md says. Programs and terminals are let in by a token; ask an "
    "admin for one, who makes it by <code>tidegate gateway token NAME</code>.</p>"
)


def local(authority: LocalToken, why: str = "") -> str:
    """Write how one comes in at a gateway with one token; `why` says what did not do."""
    address = f"http://127.0.0.1:{authority.port}"
    return _told(why) + _LOCAL + _by_token("what follows <code>token=</code>", address)


def configured(authority: Identities, host: str, why: str = "") -> str:
    """Write how one comes in where a provider knows people, or only robots are known."""
    address = escape(f"{'https' if authority.secure else 'http'}://{host}")
    if authority.provider is None:
        return _told(why) + _ROBOTS + _by_token("the token", address)
    if not authority.rules.auth.terminal_client:
        made = "a token that an admin makes by <code>tidegate gateway token NAME</code>"
        return _told(why) + _PEOPLE + _by_token(made, address)
    lines = f"add mine {address}", "login mine"
    return _told(why) + _PEOPLE + "<p>In a terminal:</p>" + _typed(*lines)


def _told(why: str) -> str:
    return _WHAT + (f"<p>{escape(why)}</p>" if why else _UNKNOWN)


def _by_token(what: str, address: str) -> str:
    said = f"<p>In a terminal, with {what} in a file that only you can read:</p>"
    return said + _typed(f"add mine {address} --token-file FILE")


def _typed(*contexts: str) -> str:
    lines = [f"tidegate context {one}" for one in contexts]
    return "<pre>" + "\n".join([*lines, "tidegate jobs --context mine"]) + "</pre>"
