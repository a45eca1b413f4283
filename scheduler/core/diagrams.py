"""State diagrams (mermaid) from the tables of `transitions`: `python -m scheduler.core.diagrams`.

Writes one page for each life cycle into docs/state-diagrams; `--check` only compares, and exits
with 1 if a page is not what the tables say.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

from scheduler.core.transitions import COMMAND, JOB, LOAN, NODE, Table
from schemas.pages import DOCS, keep

FOLDER = DOCS / "state-diagrams"
_AGAIN = "Run `python -m scheduler.core.diagrams` after changing `scheduler/core/transitions.py`."


def _page(title: str, first: StrEnum, table: Table[Any]) -> str:
    facts: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for (before, fact), after in table.items():
        facts.setdefault((before, after), []).append(fact)
    states = {state: None for edge in facts for state in edge}
    left = {before for before, _ in facts}
    lines = [f"# Life cycle of a {title}", "", _AGAIN, "", "```mermaid", "stateDiagram-v2"]
    lines.append(f"    [*] --> {first}")
    for (before, after), names in facts.items():
        lines.append(f"    {before} --> {after}: {', '.join(names)}")
    lines += [f"    {state} --> [*]" for state in states if state not in left]
    return "\n".join([*lines, "```", ""])


def pages() -> dict[Path, str]:
    """Give the pages, by file."""
    tables: dict[str, Table[Any]] = {"job": JOB, "node": NODE, "loan": LOAN, "command": COMMAND}
    return {
        FOLDER / f"{title}.md": _page(title, next(iter(table))[0], table)
        for title, table in tables.items()
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or say whether they are as they should be."""
    return keep("scheduler.core.diagrams", pages(), arguments)


if __name__ == "__main__":
    sys.exit(main())
