"""Findings for people: a mark, what was found, and below it what to do."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # a plain install has not all that the checks import
    from services.doctor.finding import Finding

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


def drawn(findings: "Iterable[Finding]") -> RenderableType:
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
