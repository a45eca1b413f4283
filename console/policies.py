"""`tidegate policies`, and docs/policies.md, which says the same.

python -m console.policies            write the page
python -m console.policies --check    exit 1 if it is not what the code says
"""

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Annotated, Any

import typer
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from console.output import JsonPath, emit_json, out
from scheduler.policies.catalogue import CATALOGUE, Entry
from scheduler.policies.registry import POLICIES, make_policy, name_of
from schemas.pages import DOCS, keep

PAGE = DOCS / "policies.md"
_UNKNOWN = "–"
#: Column -> the terminal's width from which on it is shown; text that is longer wraps.
_COLUMNS = {"policy": 0, "aims at": 0, "knows": 100, "source": 150}
_HEAD = """\
# Policies

Made by `python -m console.policies` from the docstrings; change them there. Each runs everywhere:
`tidegate demo --policy NAME`, `policy = "NAME"` in a configuration, `tidegate replay --policy NAME
--diff`, `tidegate simulate --policy NAME,NAME`. `tidegate policies NAME` prints its part of this
page. A name selects the default options; wherever a name goes, others follow it after colons:
`tide:patience_s=7200:loans.cool_down_s=300`. Those of parts have a dot; lists and tables
are JSON, in quotes for the shell: `'capacity:queues=[{"path": "a", "guaranteed": 0.5}]'`. The
journal records this line. A configuration also takes a table, and makes the line of it:

```toml
[scheduler.policy]
name = "tide"
patience_s = 7200
loans.cool_down_s = 300
```

To add a policy: [writing-a-policy.md](writing-a-policy.md).

Costs are of one plan, for n jobs, k sizes, S steps of a free profile and s samples. "As recalled"
and "[M]": the text was not at hand. Every policy keeps gangs whole, never gives out a GPU twice,
and holds to allowed sizes, memory and nodes that go back; a test tries each on random clusters.
"""


def policies(
    name: Annotated[str | None, typer.Argument(help="One to read about.")] = None,
    json_path: JsonPath = None,
) -> None:
    """List the policies there are, or tell all about one.

    Example: tidegate policies tide
    """
    if json_path is not None:
        if name is not None:
            make_policy(name)
        names = [name] if name else POLICIES
        rows = [{"policy": one, **asdict(_about(name_of(one)))} for one in names]
        emit_json({"policies": rows}, json_path)
    elif name is None:
        console = out()
        console.print(_listing(console.width))
        console.print(Text("Next: tidegate policies NAME, tidegate simulate --policy a,b", "dim"))
    else:
        make_policy(name)
        console = out()
        console.print(Text(f"{name}\n", "bold"))
        console.print(Markdown(_body(name)))


def page() -> str:
    """Give the text of docs/policies.md."""
    rows = ["| policy | aims at | knows | cost | source |", "|---|---|---|---|---|"]
    rows += [
        f"| [{name}](#{name}) | {one.aims} | {one.knows} | {one.cost} | {one.source} |"
        for name, one in ((name, _about(name)) for name in POLICIES)
    ]
    parts = [f"## {name}\n\n{_body(name)}" for name in POLICIES]
    return "\n".join([_HEAD, *rows, "", *parts])


def _about(name: str) -> Entry:
    """Find what to say of a policy; of one that is not in the catalogue, its promise alone."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    promise = (inspect.getdoc(type(make_policy(name))) or _UNKNOWN).splitlines()[0]
    return Entry(_UNKNOWN, promise.rstrip("."), _UNKNOWN, _UNKNOWN)


def _listing(width: int) -> Table:
    """Make a table that is as wide as the terminal, with the columns that there is room for."""
    table = Table(
        title=Text("Policies; the first is the default", "bold"),
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="dim",
    )
    kept = [name for name, least in _COLUMNS.items() if width >= least]
    for name in kept:
        table.add_column(name, no_wrap=name == "policy", overflow="fold")
    for name in POLICIES:
        about = _about(name)
        cells = (Text(name, "bold"), Text(about.aims), Text(about.knows), Text(about.source))
        table.add_row(*cells[: len(kept)])
    return table


def _body(name: str) -> str:
    """Say all about a policy in Markdown, without its heading."""
    kind: Any = type(make_policy(name))
    about = _about(name_of(name))
    text = inspect.getdoc(kind) or ""
    facts = [f"Code: `{kind.__module__.replace('.', '/')}.py`."]
    if about.source != _UNKNOWN:
        facts.insert(0, f"Source: {about.source}.")
    # Most docstrings say these two themselves, and better.
    if about.cost != _UNKNOWN and "O(" not in text:
        facts.insert(0, f"Cost: {about.cost}.")
    if about.knows != _UNKNOWN and "nows " not in text:
        facts.insert(0, f"Knows {about.knows}.")
    lines = [_with_list(text), "", " ".join(facts)]
    options = list(_options(POLICIES[name_of(name)]())) if is_dataclass(kind) else []
    if options:
        shown = ", ".join(f"`{option}`" for option in options)
        lines += ["", f"Options with their defaults: {shown}."]
    return "\n".join([*lines, ""])


def _with_list(text: str) -> str:
    """Turn the attributes of a docstring into a Markdown list; indented it would be code."""
    before, heading, block = text.partition("\nAttributes:\n")
    if not heading:
        return text
    block = re.sub(r"(?m)^    (\w+): ", r"- `\1`: ", block)
    lines = [re.sub(r"^ {8}", "  ", line) for line in block.splitlines()]
    return "\n".join([before, *lines])


def _options(of: Any, path: str = "") -> Iterator[str]:
    """Give the options of a policy, or of a part of it, with what they are."""
    for one in fields(of):
        value = getattr(of, one.name)
        if is_dataclass(value):
            yield from _options(value, f"{path}{one.name}.")
        elif one.name != "name":
            yield f"{path}{one.name}={_written(value)}"


def _written(value: object) -> str:
    """Write a value as an option takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    return value if isinstance(value, str) else repr(value)


def main(argv: list[str] | None = None) -> int:
    """Write the page, or check it."""
    return keep("console.policies", {PAGE: page()}, argv)


if __name__ == "__main__":
    sys.exit(main())
