"""Findings for people: a mark, what was found, and below it what to do."""

from collections.abc import Iterable
from typing import Protocol

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


class Finding(Protocol):
    """What is shown; `services.doctor.finding.Finding` is one."""

    @property
    def check(self) -> str:
        """What was looked at."""
        ...

    @property
    def verdict(self) -> str:
        """How it is: ok, warning or problem."""
        ...

    @property
    def found(self) -> str:
        """What was found."""
        ...

    @property
    def fix(self) -> str:
        """What to do."""
        ...


def drawn(findings: Iterable[Finding]) -> RenderableType:
    """Draw findings; each check is named once."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    last = ""
    for one in findings:
        mark, style = _MARKS[one.verdict]
        text = Text(one.found)
        if one.fix:
            text.append("\n→ ", style).append(one.fix, "bold")
        table.add_row(Text(mark, style), Text(one.check if one.check != last else "", "dim"), text)
        last = one.check
    return table
