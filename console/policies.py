"""`tidegate policies`, and docs/policies.md, which says the same.

python -m console.policies            write the page
python -m console.policies --check    exit 1 if it is not what the code says
"""

import argparse
import inspect
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.text import Text

from console.columns import LEFT, REST, Columns, fitted
from console.output import JsonPath, emit_json, out
from scheduler.policies.catalogue import CATALOGUE
from scheduler.policies.registry import POLICIES, make_policy

PAGE = Path(__file__).resolve().parents[1] / "docs" / "policies.md"
_COLUMNS: Columns = {"policy": LEFT, "aims at": REST, "knows": REST, "source": REST}
_HEAD = """\
# Policies

Made by `python -m console.policies` from the docstrings; change them there. Each runs everywhere:
`tidegate demo --policy NAME`, `policy = "NAME"` in a configuration, `tidegate replay --policy NAME
--diff`, `tidegate simulate --policy NAME,NAME`. `tidegate policies NAME` prints its part of this
page. To add one: [writing-a-policy.md](writing-a-policy.md).

n jobs, k sizes, S steps of a free profile, s samples. "[M]" and "as recalled": the text was not at
hand; "policies.md" and a number is a section of the design notes on the literature, not this page.
Every policy keeps gangs whole, never gives out a GPU twice, and holds to allowed sizes, memory and
nodes that go back; a test tries each on random clusters.
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
        emit_json({"policies": [_row(one) for one in ([name] if name else POLICIES)]}, json_path)
    elif name is None:
        rows: list[list[Text | str]] = [
            [Text(one, "bold"), about.aims, about.knows, about.source]
            for one, about in CATALOGUE.items()
        ]
        title = Text("Policies; the first is the default", "bold")
        out().print(fitted(title, _COLUMNS, rows, ("source", "knows"), out()))
        out().print(Text("Next: tidegate policies NAME, tidegate simulate --policy a,b", "dim"))
    else:
        make_policy(name)
        out().print(_part(name), markup=False, soft_wrap=True)


def page() -> str:
    """Give the text of docs/policies.md."""
    rows = ["| policy | aims at | knows | cost | source |", "|---|---|---|---|---|"]
    rows += [
        f"| [{name}](#{name}) | {one.aims} | {one.knows} | {one.cost} | {one.source} |"
        for name, one in CATALOGUE.items()
    ]
    parts = [_part(name) for name in POLICIES]
    return "\n".join([_HEAD, *rows, "", *parts])


def _row(name: str) -> dict[str, str]:
    about = CATALOGUE[name]
    return {
        "policy": name,
        "aims": about.aims,
        "knows": about.knows,
        "cost": about.cost,
        "source": about.source,
    }


def _part(name: str) -> str:
    kind = type(make_policy(name))
    about = CATALOGUE[name]
    text = inspect.getdoc(kind) or ""
    module = sys.modules[kind.__module__]
    lines = [
        f"## {name}",
        "",
        text.replace("\nAttributes:\n", "\n"),
        "",
        f"Knows {about.knows}. Costs O({about.cost}). Source: {about.source}. "
        f"Code: `{module.__name__.replace('.', '/')}.py`.",
    ]
    options = [one for one in fields(cast(Any, kind)) if one.name != "name"]
    if options:
        shown = ", ".join(f"`{one.name}={_default(one)}`" for one in options)
        lines += ["", f"Options, with their defaults: {shown}."]
    return "\n".join([*lines, ""])


def _default(option: "Field[Any]") -> str:
    if option.default_factory is not MISSING:
        made = option.default_factory()
        return type(made).__name__ + "()" if hasattr(made, "__dataclass_fields__") else repr(made)
    return repr(option.default)


def main(argv: list[str] | None = None) -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(prog="python -m console.policies")
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    if not parser.parse_args(argv).check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    sys.stderr.write("docs/policies.md is out of date: run python -m console.policies\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
