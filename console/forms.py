"""The two forms of a verb: one that looks (`looks`), and one that asks for something (`asks`).

A verb is a function of a `Source` and its own options, and gives what it found, or what it wishes.
Here, once for all verbs: the options that say what is asked, the choice of log or gateway, the way
in which an answer is printed, and what is said if a gateway does not answer.
"""

import contextlib
import inspect
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from console import dry_run as dry, service
from console.at_gateway import GatewaySource
from console.at_log import LogSource
from console.context import tried
from console.output import JsonPath, emit_json, fail, out, say, tell
from console.reading import DEFAULT_LOG, CellName, LogAddress
from console.request import Signed, WhyAsked
from console.source import Source, Wish
from schemas.parse import first_error

ContextName = Annotated[
    str | None,
    typer.Option("--context", help="Ask this gateway instead of a log; see tidegate context."),
]
_ASKED: Sequence[tuple[str, Any, Any]] = (
    ("log", LogAddress, DEFAULT_LOG),
    ("context", ContextName, None),
    ("cell", CellName, None),
)
Once = Annotated[
    bool, typer.Option("--once", help="Print it once, as is done where there is no terminal.")
]
Every = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600.0, help="Look so often.")
]
_JSON: tuple[str, Any, Any] = ("json_path", JsonPath, None)


@dataclass(frozen=True, slots=True)
class Found:
    """What a verb found: for programs a document, for people what is printed."""

    document: object
    shown: Sequence[RenderableType]
    age: str | None = None


def looks(
    verb: Callable[..., Found],
) -> Callable[..., None]:
    """Make a verb that looks: add what it looks at, and print what it finds."""

    def run(asked: typer.Context, json_path: str | None, **given: Any) -> None:
        if asked.invoked_subcommand is not None:
            return
        with opened(asked, given, acts=False) as at:
            found = verb(at, **given)
        emit_json(found.document, json_path)
        if json_path == "-":
            return
        for one in found.shown:
            out().print(one)
        if found.age is not None:
            say(found.age)

    return _with_options(run, verb, (*_ASKED, _JSON))


def watches(verb: Callable[..., Found]) -> Callable[..., None]:
    """Make a verb that looks again and again, each time at what is then the newest."""

    def run(
        asked: typer.Context, json_path: str | None, once: bool, every: float, **given: Any
    ) -> None:
        def look() -> Found:
            own = dict(given)
            with opened(asked, own, acts=False) as at:
                return verb(at, **own)

        if once or json_path is not None or not out().is_terminal:
            found = look()
            emit_json(found.document, json_path)
            if json_path != "-":
                out().print(*found.shown, sep="\n")
        else:
            found = watch(look, every)
        if found.age is not None:
            say(found.age)

    options = (("once", Once, False), ("every", Every, 2.0))
    return _with_options(run, verb, (*options, *_ASKED, _JSON))


def watch(look: Callable[[], Found], every_s: float) -> Found:
    """Show what is found until somebody stops it; give what was found last.

    Raises:
        typer.Exit: The first look finds nothing. Later ones say so on the screen, and go on.
    """
    found, wrong = look(), ""
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=out(), screen=True, auto_refresh=False) as screen,
    ):
        while True:
            said = [Text(wrong.strip(), "red")] if wrong else []
            screen.update(Group(*said, *found.shown), refresh=True)
            time.sleep(every_s)
            with contextlib.redirect_stderr(io.StringIO()) as heard:
                try:
                    found, wrong = look(), ""
                # A gateway or broker that starts anew, say: what was found stands.
                except typer.Exit:
                    wrong = heard.getvalue()
                except service.KNOWN as error:
                    wrong = service.sentence(error)
    return found


def asks(verb: Callable[..., Wish]) -> Callable[..., None]:
    """Make a verb that asks for something: add of whom and why, ask, and say what was asked."""
    return _asking(verb, moves=False)


def moves(verb: Callable[..., Wish]) -> Callable[..., None]:
    """Make a verb that asks for what moves work: its dry run shows where, too."""
    return _asking(verb, moves=True)


def _asking(verb: Callable[..., Wish], *, moves: bool) -> Callable[..., None]:
    def run(
        asked: typer.Context,
        json_path: str | None,
        reason: str,
        dry_run: bool,
        preview: float = 0.0,
        **given: Any,
    ) -> None:
        with opened(asked, given, acts=True) as at:
            try:
                wish = verb(at, **given)
            except ValidationError as error:  # a name that no node or tenant can have, say
                wrong = first_error(error)
                fail(f"{wrong.field}: {wrong.reason}.")
            if wish.is_so:
                if json_path != "-":
                    tell(wish.said)
                emit_json({**wish.about, "nothing_to_do": True}, json_path)
                return
            if dry_run and wish.args is not None:
                dry.show(wish, at.tries(wish, reason, preview), json_path)
                return
            done = () if wish.first is None else (wish.first(),)
            sent = at.ask(wish, reason)
        if json_path != "-":
            tell(wish.said)
            if wish.noted:
                say(wish.noted)
        for line in (*done, *wish.hints, *sent.notes):
            say(line)
        emit_json({**wish.about, **sent.document}, json_path)

    options = [("reason", WhyAsked, ""), ("dry_run", dry.DryRun, False)]
    if moves:
        options.append(("preview", dry.PreviewHours, dry.PREVIEW_H))
    return _with_options(run, verb, (*options, *_ASKED, ("sign", Signed, None), _JSON))


def reads(verb: Callable[..., None]) -> Callable[..., None]:
    """Make a verb that asks for what it prints itself, as it comes."""

    def run(asked: typer.Context, **given: Any) -> None:
        with opened(asked, given, acts=True) as at:
            verb(at, **given)

    return _with_options(run, verb, (*_ASKED, ("sign", Signed, None)))


@contextlib.contextmanager
def opened(asked: typer.Context, given: dict[str, Any], *, acts: bool) -> Iterator[Source]:
    """Choose what is asked, in the order that `console.source` tells; close it in the end.

    Args:
        asked: How the command was called.
        given: Its options; those that say what is asked are taken out.
        acts: Whether something is asked for, not only looked at.
    """
    for one in asked.command.params:
        if one.param_type_name == "argument" and given.get(one.name or "") == "":
            fail(f"{str(one.name).upper()}: is empty; name one.")
    log, context, cell = (given.pop(name) for name, _, _ in _ASKED)
    sign = given.pop("sign", None)
    said = _said(asked, "log")
    if said == "COMMANDLINE" and context is not None:
        fail("--context: --log names a log already; leave one of the two out.")
    if context is None and said == "DEFAULT":
        context = _chosen()
    if context is None:
        source: Source = LogSource(log, cell, sign=sign, acts_on_it=acts)
    elif _said(asked, "sign") == "COMMANDLINE":
        fail(f"--sign: the gateway of {context} signs; leave it out, or name a log by --log.")
    else:
        source = GatewaySource(context, cell)
    try:
        yield source
    finally:
        source.close()


def _said(asked: typer.Context, option: str) -> str:
    return getattr(asked.get_parameter_source(option), "name", "DEFAULT")


def _chosen() -> str | None:
    """Name the context in force; without the client's libraries there is none."""
    try:
        from tidegate_client import contexts
    except ModuleNotFoundError:
        return None
    chosen = tried(lambda: contexts.load().chosen())
    return None if chosen is None else chosen.name


def _with_options(
    run: Callable[..., None],
    verb: Callable[..., Any],
    options: Sequence[tuple[str, Any, Any]],
) -> Callable[..., None]:
    """Show a verb to typer with its own options, and those that are added."""
    _, *own = inspect.signature(verb, eval_str=True).parameters.values()
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    asked = inspect.Parameter("asked", kind, annotation=typer.Context)
    added = [
        inspect.Parameter(name, kind, default=default, annotation=annotation)
        for name, annotation, default in options
    ]
    parameters = [asked, *own, *added]
    run.__name__, run.__doc__, run.__module__ = verb.__name__, verb.__doc__, verb.__module__
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    )
    return run
