"""State diagrams (mermaid) from the tables of `transitions`: `python -m scheduler.core.diagrams`.

Writes one page for each life cycle into docs/state-diagrams; `--check` only compares, and exits
with 1 if a page is not what the tables say.
"""

import argparse
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

from scheduler.core.transitions import COMMAND, JOB, LOAN, NODE, Table

FOLDER = Path("docs") / "state-diagrams"
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


def pages() -> dict[str, str]:
    """Give the pages by file name."""
    tables: dict[str, Table[Any]] = {"job": JOB, "node": NODE, "loan": LOAN, "command": COMMAND}
    return {
        f"{title}.md": _page(title, next(iter(table))[0], table) for title, table in tables.items()
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or compare them; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scheduler.core.diagrams")
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the pages are")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in pages().items():
        path = options.folder / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path))
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if options.check and stale:
        sys.stderr.write(f"{', '.join(stale)}: not what the tables say. {_AGAIN}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
