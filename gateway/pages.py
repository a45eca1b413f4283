"""The console in a browser: its files, and what whoever opens it sees before they are let in.

`make console` builds the files into `gateway/static`, and a wheel has them. Where they are not, a
page says how they are built.
"""

import re
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse

from gateway.entrance import configured, local
from gateway.guard import CONTENT_SECURITY_POLICY
from gateway.identities import SESSION, Identities
from gateway.problems import Problem
from gateway.subjects import LocalToken, cookies_of

#: Where the built console is; in a checkout, after `make console`.
STATIC = Path(__file__).parent / "static"
#: First parts of its addresses; the console shows which view that is.
VIEWS = (
    "tide", "fleet", "jobs", "submit", "loans", "decisions", "what-if", "compare", "tenants",
    "health", "dead-letters", "audit",
)  # fmt: skip
#: The console sends no forms; pages without it have one, for signing out.
CONSOLE_POLICY = CONTENT_SECURITY_POLICY.replace("form-action 'self'", "form-action 'none'")
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"
#: What the build makes: a name, and a hash of what the file holds. No file system has longer ones.
_is_asset = re.compile(r"[A-Za-z0-9_.-]{1,100}-[A-Za-z0-9_-]{8}\.(js|css|svg)").fullmatch
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tidegate</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="stylesheet" href="/page.css"></head>
<body><main><h1>Tidegate</h1>{}</main></body></html>
"""
#: Of these pages, whether the console is built or not.
_STYLE = """body { margin: 2rem 1rem; font: 1rem/1.5 system-ui, sans-serif }
main { max-width: 42rem; margin: auto }
pre { overflow-x: auto; padding: .75rem; border: 1px solid; border-radius: 4px }
"""
_API = "<p>The API is at <a href='/api/v1/overview'>/api/v1</a>; docs/gateway.md tells it.</p>"
_OUT = "<form method='post' action='/logout'><button>Sign out</button></form>"
_UNBUILT = (
    "<p>The console is not built in this checkout. Build it, with Node 18 or newer, then load this "
    "page again:</p><pre>make console</pre>"
)


def add_pages(app: FastAPI) -> None:
    """Add the console's pages and files."""
    app.state.static = STATIC
    app.add_api_route("/assets/{name}", asset, include_in_schema=False)
    app.add_api_route("/page.css", style, include_in_schema=False)
    app.add_api_route("/", page, include_in_schema=False)
    for view in VIEWS:
        app.add_api_route(f"/{view}", page, include_in_schema=False)
        app.add_api_route(f"/{view}/{{about:path}}", page, include_in_schema=False)


async def asset(request: Request, name: str) -> Response:
    """Give a file of the console. Its name has a hash of it: it may be kept for ever."""
    path = request.app.state.static / "assets" / name
    if not _is_asset(name) or not path.is_file():
        raise Problem(404, "there is no such file of the console; load its page again")
    return FileResponse(path, media_type=_KINDS[path.suffix], headers={"Cache-Control": _FOREVER})


async def style() -> Response:
    """Give what the pages without the console look like."""
    return Response(_STYLE, media_type="text/css")


def lost(request: Request) -> bool:
    """Whether a browser asks for an address that a person may have mistyped: no program's."""
    path = request.url.path
    programs = path == "/api" or path.startswith(("/api/", "/assets/", "/.well-known/"))
    return (
        request.method == "GET"
        and not programs
        and "text/html" in request.headers.get("accept", "")
    )


async def page(request: Request, token: str | None = None, *, status: int = 200) -> Response:
    """Give the console, whatever it is to show, to who is let in; tell others how to come in."""
    authority = request.app.state.gateway.authority
    if isinstance(authority, LocalToken):
        if token is not None:
            return _exchanged(request, authority, token)
        known = await authority.subject({}, cookies_of(request.headers))
        return _console(request, status=status) if known else _page(local(authority), 401)
    assert isinstance(authority, Identities)
    cookies, host = cookies_of(request.headers), request.url.netloc
    if authority.cookie_name(SESSION) not in cookies:
        return _page(configured(authority, host), 401)
    try:
        who = await authority.subject({}, cookies)
    except Problem as problem:
        return _page(f"<p>{escape(problem.detail)}</p>{_OUT}", problem.status)
    if who is None:
        return _page(configured(authority, host, "You are signed out."), 401)
    return _console(request, f"<p>You are {escape(who.name)}, {who.role}.</p>", _OUT, status)


def _exchanged(request: Request, authority: LocalToken, token: str) -> Response:
    """Take the token of the address for a cookie, so that no history or log keeps it.

    Raises:
        Problem: 401, the token is another gateway's, or an earlier one's, and a program sent it.
    """
    if not authority.opens(token):
        if lost(request):
            return _page(local(authority, "The token in this address is not of this gateway."), 401)
        raise Problem(401, "this token is not the gateway's; open the address that it printed last")
    rest = [(name, said) for name, said in request.query_params.multi_items() if name != "token"]
    # Only the path that was asked for: `//host` would lead elsewhere.
    path = "/" + request.url.path.lstrip("/")
    answer = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, 303)
    answer.set_cookie(
        authority.cookie_name, authority.cookie, httponly=True, samesite="strict", path="/"
    )
    return answer


def _console(request: Request, before: str = "", after: str = "", status: int = 200) -> Response:
    path = request.app.state.static / "index.html"
    if not path.is_file():
        return _page(before + _UNBUILT + _API + after, status)
    headers = {"Content-Security-Policy": CONSOLE_POLICY}
    return HTMLResponse(path.read_bytes(), status, headers=headers)


def _page(body: str, status: int = 200) -> Response:
    return HTMLResponse(_PAGE.format(body), status)
