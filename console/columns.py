"""Tables that leave out columns, the least needed first, where the terminal is narrow."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_GAP = 2
#: A column that takes what is left is of use from this width on.
_LEAST = 12

#: By name, what `Table.add_column` is to be told of it; the first column is never cut: names that
#: are longer than half a line go on in the next one, so that one of them hides nothing of others.
Columns = Mapping[str, Mapping[str, Any]]
LEFT: Mapping[str, Any] = {"no_wrap": True}
RIGHT: Mapping[str, Any] = {"no_wrap": True, "justify": "right"}
REST: Mapping[str, Any] = {"no_wrap": True, "overflow": "ellipsis", "ratio": 1}
#: What people wrote is in it: it goes on in the next line, and hides no other column.
WORDS: Mapping[str, Any] = {"overflow": "fold", "max_width": 28}


def fitted(
    title: Text,
    columns: Columns,
    rows: Sequence[Sequence[Text | str]],
    drop: Sequence[str],
    console: Console,
    whole: str = "",
) -> Table:
    """Make a table that fits the console, without the columns of `drop` that do not.

    `drop` may name columns that the table does not have.
    `whole` is said below it where what takes the rest of a line is cut or left out: what shows it.
    """
    # What is no `Text` is as it stands: in people's words, brackets are no markup.
    rows = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    names = list(columns)
    needs = {name: len(name) for name in names}
    for row in rows:
        for name, cell in zip(names, row, strict=True):
            wide = Measurement.get(console, console.options, cell).maximum
            needs[name] = max(needs[name], wide)
    rest: dict[str, int] = {}
    for name, told in columns.items():
        if "ratio" in told:
            rest[name] = needs[name]
            needs[name] = min(needs[name], _LEAST)
        needs[name] = min(needs[name], told.get("max_width", needs[name]))
    first: dict[str, Any] = {"min_width": needs[names[0]]}
    half = max(_LEAST, console.width // 2)
    if needs[names[0]] > half:
        first = {"min_width": half, "max_width": half, "no_wrap": False, "overflow": "fold"}
        needs[names[0]] = half
    kept = list(names)
    for name in (one for one in drop if one in columns):
        if sum(needs[one] + _GAP for one in kept) <= console.width + _GAP:
            break
        kept.remove(name)
    table = Table(
        title=title,
        title_justify="left",
        box=None,
        padding=(0, _GAP, 0, 0),
        pad_edge=False,
        header_style="dim",
        expand=True,
    )
    taken = sum(needs[name] for name in kept if name not in rest) + _GAP * (len(kept) - 1)
    if whole and any(one not in kept or wide > console.width - taken for one, wide in rest.items()):
        table.caption, table.caption_justify = Text(whole, "dim"), "left"
    for index, name in enumerate(kept):
        table.add_column(name, **{**columns[name], **(first if index == 0 else {})})
    for row in rows:
        table.add_row(*(row[names.index(name)] for name in kept))
    return table
