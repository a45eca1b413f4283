"""How the console speaks: tables for people, one JSON object for programs, sentences for errors."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NoReturn

import orjson
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from console.job_output import control

#: Width of what goes to a file or a pipe, where there is no terminal to ask.
PIPED_WIDTH = 120


def _writable(path: str | None) -> str | None:
    """Refuse before the work what could not be written after it, when something was asked for."""
    if path is None or path == "-":
        return path
    target = Path(path)
    there = target if target.exists() else target.parent
    if target.is_dir() or not target.parent.is_dir() or not os.access(there, os.W_OK):
        fail(f"--json: {path} cannot be written; name a file in a folder that exists, or -.")
    return path


JsonPath = Annotated[
    str | None,
    typer.Option(
        "--json",
        callback=_writable,
        help="Write one JSON object here; - is standard output.",
    ),
]


def out() -> Console:
    """Make the console of standard output: plain text unless it is a terminal."""
    return _console(stderr=False)


class _Console(Console):
    """A console whose reader may go away: `console.main` says so.

    What it prints controls no terminal: reasons and errors are in the words of whoever sent them.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and control.search(segment.text):
                segment = Segment(control.sub("", segment.text), segment.style)
            yield segment

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console(*, stderr: bool) -> Console:
    # Emoji codes and highlighting would change what ids and numbers look like.
    console = _Console(stderr=stderr, emoji=False, highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = PIPED_WIDTH
    return console


def say(sentence: str) -> None:
    """Print a sentence on standard error; it may hold any text, markup is not read."""
    _console(stderr=True).print(sentence, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """Print a text on standard output, as `say` does on standard error."""
    out().print(text, markup=False, soft_wrap=True)


def fail(sentence: str, code: int = 2) -> NoReturn:
    """Say on standard error what is wrong and what to do next, and exit."""
    say(sentence)
    raise typer.Exit(code)


def plain(text: object) -> str:
    """Make any text safe to stand within markup."""
    return escape(str(text))


def emit_json(document: object, path: str | None) -> None:
    """Write one JSON object to a file, or to standard output if the path is `-`; None: nowhere.

    NaN and infinities become null: JSON has no word for them.
    """
    if path is None:
        return
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    text = orjson.dumps(document, option=option) + b"\n"
    if path == "-":
        # JSON is UTF-8, whatever the terminal's letters are.
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return
    _writable(path)
    Path(path).write_bytes(text)
