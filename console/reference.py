"""Writes docs/cli.md from the verbs, their options and their docstrings.

python -m console.reference            write it
python -m console.reference --check    exit 1 if it is not what the code says
"""

import re
import sys
from collections.abc import Iterator
from typing import Any

import typer
from typer.main import get_command

from console.verbs import VERBS, make_app
from schemas.pages import DOCS, keep

PAGE = DOCS / "cli.md"
_HEAD = """\
# The command

Made by `python -m console.reference` from the verbs that `console/verbs.py` names; change them
there. Every verb takes `--help` (`-h`) and prints what is here; `tidegate --version` says which
release it is.

Exit codes, of every verb that does not say otherwise: **0** good, **1** found a problem, **2** bad
usage or input. So of a verb that asks for something: 0 if it is done, taken up later, or so
already (`nothing_to_do` in JSON); 1 if the scheduler or a gateway refuses it, if the person who
asks may not, or if it can no longer be done, as with a job that is over; 2 if a name is not known,
an argument or option is wrong, or nobody can be asked: no such log, no gateway, not signed in. What
goes wrong is one sentence on standard error; with `TIDEGATE_DEBUG=1` it is a
traceback. `--json FILE` writes one JSON object for programs, `--json -` to standard output.

| verb | what it does |
|---|---|
"""
_KINDS = {"int": "N", "float": "NUMBER", "Path": "PATH", "str": "TEXT"}


def page() -> str:
    """Give the text of the page."""
    whole: Any = get_command(make_app())
    verbs = [(name, whole.commands[name]) for _, name, _ in VERBS]
    rows = [
        f"| [`{name}`](#tidegate-{name}) | {_linked(verb.help.partition(chr(10))[0])} |\n"
        for name, verb in verbs
    ]
    return "".join([_HEAD, *rows, *(part for name, verb in verbs for part in _verb(name, verb))])


def _verb(path: str, verb: Any, level: int = 2) -> Iterator[str]:
    """Say all about a verb, then about its own verbs."""
    yield f"\n{'#' * level} `tidegate {path}`\n"
    usage = " ".join(verb.collect_usage_pieces(typer.Context(verb)))
    usage = re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), usage)
    yield f"\n```\ntidegate {path} {usage}\n```\n"
    for paragraph in re.split(r"\n\s*\n", verb.help.strip()):
        text = " ".join(paragraph.split())
        example = text.removeprefix("Example: ")
        yield f"\n{_linked(text)}\n" if example == text else f"\n```sh\n{example}\n```\n"
    rows = [_row(one) for one in verb.params if not one.hidden]
    if rows:
        yield "".join(["\n| option | default | meaning |\n|---|---|---|\n", *rows])
    for name, inner in getattr(verb, "commands", {}).items():
        yield from _verb(f"{path} {name}", inner, level + 1)


def _row(one: Any) -> str:
    kind = one.metavar or _KINDS.get(one.type_descriptor.annotation.__name__, "")
    if one.param_type_name == "option":
        name = " ".join([", ".join([*one.opts, *one.secondary_opts]), *([kind] if kind else [])])
    else:
        name = one.metavar or one.name.upper()
    blank = one.default is None or one.default in ("", (), []) or isinstance(one.default, bool)
    default = "required" if one.required else "" if blank else f"`{one.default}`"
    meaning = _linked(one.help or "")
    if one.envvar:
        meaning += f" Also `${one.envvar}`."
    cells = (f"`{name}`", default, meaning)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"


def _linked(text: str) -> str:
    """Let the names of pages lead there."""
    return re.sub(r"\bdocs/([\w-]+\.md)\b", r"[\1](\1)", text)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or say whether it is as it should be."""
    return keep("console.reference", {PAGE: page()}, arguments)


if __name__ == "__main__":
    sys.exit(main())
