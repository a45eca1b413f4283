"""`tidegate context`: gateways by name, for the command line and for `tidegate_client`.

And signing in at one from a terminal.
"""

import os
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from console.output import JsonPath, emit_json, fail, out, say, tell
from console.serve import needing
from explain.moments import day_clock

if TYPE_CHECKING:
    import httpx

    from tidegate_client.contexts import Contexts

app = typer.Typer(
    no_args_is_help=True,
    help="Name the gateways that verbs ask: add, login, use, list, current, remove.",
)
Name = Annotated[str, typer.Argument(help="The context's name.")]
Found = TypeVar("Found")


def tried(act: Callable[[], Found]) -> Found:
    """Do something with a gateway; say what is wrong if it cannot be, and end."""
    with needing("console"):
        from tidegate_client import TidegateError
    try:
        return act()
    except TidegateError as error:
        fail(f"{error}.")


@app.command()
def add(
    name: Name,
    url: Annotated[str, typer.Argument(help="As https://gateway.example:8321.")],
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="Holds the token; only you may read it (chmod 600)."),
    ] = None,
) -> None:
    """Add a gateway, or change it; the first is the current one. $TIDEGATE_TOKEN is a token, too.

    Example: tidegate context add prod https://gateway.example:8321 --token-file token
    """
    with needing("console"):
        from tidegate_client import contexts
    made = tried(lambda: contexts.context(name, url, token_file))
    _changed(lambda known: known.added(made))
    tell(f"{name} is {made.url}.")


@app.command()
def login(
    name: Annotated[
        str | None, typer.Argument(help="The context's name. If not given: the one in force.")
    ] = None,
    device: Annotated[
        bool, typer.Option("--device", help="Without a browser here: type a code in elsewhere.")
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the page's address.")
    ] = False,
) -> None:
    """Sign in at a gateway's provider of identities; the token is kept for you alone.

    Example: tidegate context login prod
    """
    with needing("console"):
        from tidegate_client import contexts, login as signing
    known = _known()
    chosen = tried(known.chosen if name is None else lambda: known.named(name))
    if chosen is None:
        fail("No context is in force; name one, or add one: tidegate context add NAME URL")

    def show(url: str) -> None:
        say(f"Sign in at {url}")
        if not no_browser:
            webbrowser.open(url)

    def type_in(url: str, code: str) -> None:
        say(f"Open {url} on any device, and type in: {code}")

    with tried(lambda: _reaching(chosen.url)) as http:
        provider = tried(lambda: signing.provider_of(chosen.url, http))
        if device:
            token = tried(lambda: signing.by_device(provider, http, type_in))
        else:
            token = tried(lambda: signing.by_browser(provider, http, show))
        me = tried(lambda: signing.check(chosen.url, token, http))
    file = tried(lambda: signing.keep(chosen.name, token))
    if chosen.token_file not in (None, str(file)):
        say(f"{chosen.token_file} is not used any more; it stays.")
    _changed(lambda now: now.added(contexts.Context(chosen.name, chosen.url, str(file))))
    until = f"{day_clock(token.expires_s, token.expires_s)} UTC"
    of = f" of {me['tenant']}" if me.get("tenant") else ""
    tell(f"{chosen.name}: you are {me['name']}, {me['role']}{of}, until {until}.")
    if os.environ.get("TIDEGATE_TOKEN"):
        say("But $TIDEGATE_TOKEN is set, and counts before it: unset TIDEGATE_TOKEN")


@app.command()
def use(name: Name) -> None:
    """Make a context the current one: verbs ask it unless --log or $TIDEGATE_LOG names a log.

    Example: tidegate context use prod
    """
    _changed(lambda known: known.using(name))
    tell(f"{name} is the current context.")


@app.command("list")
def list_(json_path: JsonPath = None) -> None:
    """List the contexts; > marks the one in force.

    Example: tidegate context list
    """
    known = _known()
    chosen = tried(known.chosen)
    rows = [
        {"name": one.name, "url": one.url, "token_file": one.token_file, "current": one == chosen}
        for one in known.known.values()
    ]
    emit_json({"contexts": rows}, json_path)
    if json_path == "-":
        return
    for one in rows:
        tell(f"{'>' if one['current'] else ' '} {one['name']}  {one['url']}")
    if not rows:
        out().print("No contexts yet: tidegate context add NAME URL", markup=False)


@app.command()
def current() -> None:
    """Print the name of the context in force.

    Example: tidegate context current
    """
    chosen = tried(_known().chosen)
    if chosen is None:
        fail("No context is in force; choose one: tidegate context use NAME", code=1)
    tell(chosen.name)


@app.command()
def remove(name: Name) -> None:
    """Forget a context; its token's file stays.

    Example: tidegate context remove prod
    """
    _changed(lambda known: known.removed(name))
    tell(f"{name} is forgotten.")


def way_in(name: str) -> str:
    """Say how to be known at the gateway of a context: by signing in, if one can there, or a token.

    Whether one can is asked of the gateway.
    """
    with needing("console"):
        from tidegate_client import login as signing
    chosen = tried(lambda: _known().named(name))
    if os.environ.get("TIDEGATE_TOKEN"):
        where = "$TIDEGATE_TOKEN, which counts before any file."
    elif chosen.token_file is not None:
        where = f"{chosen.token_file}."
    else:
        add = f"tidegate context add {name} {chosen.url} --token-file FILE"
        where = f"a file, and name it: {add}"
    with tried(lambda: _reaching(chosen.url)) as http:
        signs_in = signing.signs_in(chosen.url, http)
    put = f"Sign in by `tidegate context login {name}`, or put" if signs_in else "Put"
    return f"{put} a token that is in force into {where}"


def _reaching(url: str) -> "httpx.Client":
    import httpx

    from tidegate_client.errors import reading_authorities

    with reading_authorities():
        # This machine is reached without the proxies of its environment.
        return httpx.Client(trust_env=url.startswith("https:"))


def _known() -> "Contexts":
    with needing("console"):
        from tidegate_client import contexts
    return tried(contexts.load)


def _changed(change: "Callable[[Contexts], Contexts]") -> None:
    with needing("console"):
        from tidegate_client import contexts
    tried(lambda: contexts.save(change(contexts.load())))
