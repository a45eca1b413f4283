"""Read a CSV file that somebody else wrote, and name every bad cell by line and column."""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024
#: How many bad rows an error lists before it only counts.
LISTED = 20
_SHOWN_CHARS = 60
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)


def is_number(text: str) -> bool:
    """Whether a cell is written as a number; `nan`, `inf` and `1_0` are none."""
    return _NUMBER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class BadRow:
    """One thing that is wrong. `line` counts from 1; `column` is empty for a whole line."""

    line: int
    column: str
    value: str
    problem: str

    def __str__(self) -> str:
        where = f"line {self.line}" + (f", {self.column}" if self.column else "")
        shown = self.value[:_SHOWN_CHARS] + ("…" if len(self.value) > _SHOWN_CHARS else "")
        return f"{where}: {shown!r} {self.problem}" if shown else f"{where}: {self.problem}"


class WorkloadError(Exception):
    """A file cannot be used. `bad` lists what is wrong, the first `LISTED` of `count` rows."""

    def __init__(self, message: str, bad: Sequence[BadRow] = ()) -> None:
        self.bad = tuple(bad[:LISTED])
        self.count = len(bad)
        lines = [message, *(f"  {row}" for row in self.bad)]
        if self.count > LISTED:
            lines.append(f"  and {self.count - LISTED} more")
        super().__init__("\n".join(lines))
        #: For people: a line each.
        self.lines = tuple(str(self).split("\n"))


class Row:
    """One line's cells by column.

    What cannot be read is noted in `problems`, and reads as NaN, 0 or an empty text.
    """

    def __init__(self, line: int, cells: Mapping[str, str], heads: Mapping[str, str]) -> None:
        self.line = line
        self.problems: list[BadRow] = []
        self._cells = cells
        self._heads = heads

    def bad(self, column: str, problem: str) -> None:
        """Note a problem with a column."""
        name = self._heads.get(column, column)
        self.problems.append(BadRow(self.line, name, self._cells.get(column, ""), problem))

    def has(self, column: str) -> bool:
        """Whether the cell is there and not blank."""
        return bool(self._cells.get(column))

    def text(self, column: str) -> str:
        """Give the cell as it is, without surrounding blanks."""
        return self._cells.get(column, "")

    def name(self, column: str) -> str:
        """Give an identifier: up to 128 letters, digits and `._:-`, a letter or digit first."""
        value = self.text(column)
        if not value:
            self.bad(column, "is blank")
        elif _NAME.fullmatch(value) is None:
            self.bad(column, "must be up to 128 letters, digits or ._:- (no spaces)")
        return value

    def number(self, column: str, low: float, high: float, *, above: bool = False) -> float:
        """Give a number in [low, high], or in (low, high] with `above`."""
        value = self.text(column)
        number = float(value) if is_number(value) else math.nan
        if low < number <= high or (number == low and not above):
            return number
        if not value:
            self.bad(column, "is blank; a number is needed")
        elif math.isnan(number):
            self.bad(column, "is not a number")
        elif number <= low:
            self.bad(column, f"must be {'above' if above else 'at least'} {low:g}")
        else:
            self.bad(column, f"must be at most {high:g}")
        return math.nan

    def integer(self, column: str, low: int, high: int) -> int:
        """Give a whole number in [low, high]; `8.0` is one."""
        number = self.number(column, low, high)
        if not math.isnan(number) and number != int(number):
            self.bad(column, "must be a whole number")
        return 0 if math.isnan(number) else int(number)


@dataclass(frozen=True, slots=True)
class Table:
    """A file's header, its good rows as cells by position, and its bad lines."""

    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    bad: tuple[BadRow, ...]

    def named(self, columns: Mapping[str, int]) -> Iterator[Row]:
        """Give each row with its cells under the names that `columns` maps to positions."""
        heads = {name: self.header[index] for name, index in columns.items()}
        for line, cells in self.rows:
            yield Row(line, {name: cells[index] for name, index in columns.items()}, heads)


def _bytes_of(path: Path) -> bytes:
    try:
        if not path.exists():
            raise WorkloadError(f"{path}: there is no such file. Check the path.")
        if not path.is_file():
            raise WorkloadError(f"{path}: not a regular file. Give the path of a CSV file.")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise WorkloadError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB. Cut it up first.")
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{str(path)!r}: cannot be read ({error}).") from error


def _cells(line: int, raw: bytes) -> tuple[str, ...] | BadRow:
    # Each line is read on its own, so a stray quote spoils one row and not the rest of the file.
    if len(raw) > MAX_LINE_BYTES:
        return BadRow(line, "", "", f"is longer than {MAX_LINE_BYTES} bytes")
    if b"\0" in raw:
        return BadRow(line, "", "", "has a NUL byte; is this a text file?")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return BadRow(line, "", "", f"is not UTF-8 at byte {error.start + 1}")
    try:
        plain = '"' not in text and "\r" not in text  # as nearly all lines are
        cells = text.split(",") if plain else next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        return BadRow(line, "", text, f"is not CSV: {error}; a quoted cell ends on its own line")
    return tuple(cell.strip() for cell in cells)


def read_table(path: Path) -> Table:
    """Read a CSV file with a header line; blank lines do not count.

    Raises:
        WorkloadError: there is nothing to read, or the header is unusable.
    """
    raw_lines = _bytes_of(path).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = [(n, raw.rstrip(b"\r")) for n, raw in enumerate(raw_lines, 1) if raw.strip()]
    if not lines:
        raise WorkloadError(f"{path}: is empty. A header line and one line per job are needed.")
    head = _cells(*lines[0])
    if isinstance(head, BadRow):
        raise WorkloadError(f"{path}: the header cannot be read.", [head])
    header = tuple(name.lower() for name in head)
    for name, count in Counter(header).items():
        if name and count > 1:
            raise WorkloadError(f"{path}: the header has the column {name!r} twice. Rename one.")
    rows: list[tuple[int, tuple[str, ...]]] = []
    bad: list[BadRow] = []
    for number, raw in lines[1:]:
        cells = _cells(number, raw)
        if isinstance(cells, BadRow):
            bad.append(cells)
        elif len(cells) < len(header):
            missing = header[len(cells)]
            bad.append(BadRow(number, missing, "", f"is missing: {_count(cells, header)}"))
        elif len(cells) > len(header):
            extra = cells[len(header)]
            bad.append(BadRow(number, "", extra, f"is one cell too many: {_count(cells, header)}"))
        else:
            rows.append((number, cells))
    if not rows and not bad:
        raise WorkloadError(f"{path}: has a header but no rows. One line per job is needed.")
    return Table(header, tuple(rows), tuple(bad))


def rows_of(path: Path, names: Sequence[str]) -> Iterator[Row]:
    """Read a file for these columns, row by row.

    Raises:
        WorkloadError: a column is missing, or, after the last row, some were bad.
    """
    table = read_table(path)
    missing = [name for name in names if name not in table.header]
    if missing:
        raise WorkloadError(f"{path}: has no column {', '.join(missing)}.")
    bad = list(table.bad)
    for row in table.named({name: table.header.index(name) for name in names}):
        yield row
        bad.extend(row.problems)
    if bad:
        bad.sort(key=lambda one: (one.line, one.column))
        raise WorkloadError(f"{path}: these rows cannot be used. Correct them.", bad)


def _count(cells: Sequence[str], header: Sequence[str]) -> str:
    return f"the row has {len(cells)} cells, the header {len(header)}"
