"""`tidegate journal`: what a log holds, if it is whole, its newest records, and copies of it."""

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.text import Text

from bus.contract import Record
from bus.logfile import SUFFIXES, Progress, ReadLog, write_log
from bus.reading import import_log
from console.columns import LEFT, RIGHT, Columns, fitted
from console.kafka import cells_read, is_kafka, opened_log, resolved
from console.output import JsonPath, emit_json, fail, out, tell
from console.perfetto import LogOption, perfetto
from console.reading import DEFAULT_LOG
from explain.journal_lines import fields
from explain.moments import duration
from explain.shares import counted
from schemas.topics import ALL_TOPICS

app = typer.Typer(
    no_args_is_help=True,
    help="Look into a log, or copy it: stats, verify, tail, export, import, perfetto.",
)

#: How often `--follow` looks, in seconds.
_FOLLOW_S = 0.5
_SOURCE = re.compile(rb'"source":"([^"\\]+)"')
_SHOWN = 12
_COLUMNS: Columns = {
    "topic": LEFT,
    "records": RIGHT,
    "MiB": RIGHT,
    "keys": RIGHT,
    "from": LEFT,
    "span": RIGHT,
}
_DROP = ("keys", "from", "MiB")
Source = Annotated[str | None, typer.Argument(metavar="[LOG]", help="As --log.")]
OnlyCell = Annotated[
    str | None,
    typer.Option("--cell", help="Over Kafka only this cell; if not given, each of the log."),
]


@dataclass(slots=True)
class _Topic:
    records: int = 0
    size: int = 0
    begin_s: float = float("inf")
    end_s: float = float("-inf")
    keys: dict[str, None] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        self.records += 1
        self.size += len(record.key) + len(record.value or b"")
        self.begin_s = min(self.begin_s, record.time_s)
        self.end_s = max(self.end_s, record.time_s)
        self.keys[record.key] = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "bytes": self.size,
            "keys": len(self.keys),
            "begin_s": self.begin_s,
            "end_s": self.end_s,
        }


@app.command()
def stats(source: Source = None, log: LogOption = DEFAULT_LOG, json_path: JsonPath = None) -> None:
    """Count records, bytes, keys and time by topic; dead letters by reason; who spoke.

    Example: tidegate journal stats run.db
    """
    topics: dict[str, _Topic] = {}
    dead: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    with opened_log(resolved(source or log)) as opened:
        opened.verify()
        for record in opened.records():
            topics.setdefault(record.topic, _Topic()).add(record)
            if record.topic.endswith(".dlq"):
                dead[_reason(record)] += 1
            elif spoke := _SOURCE.search(record.value or b""):
                sources[spoke[1].decode(errors="replace")] += 1
        document = {
            "log": str(opened.path),
            "records": sum(topic.records for topic in topics.values()),
            "bytes": sum(topic.size for topic in topics.values()),
            "begin_s": min((topic.begin_s for topic in topics.values()), default=None),
            "end_s": max((topic.end_s for topic in topics.values()), default=None),
            "topics": {name: topics[name].to_dict() for name in sorted(topics)},
            "dead_letters": dict(sorted(dead.items())),
            "sources": dict(sorted(sources.items())),
        }
    if json_path != "-":
        _print_stats(document)
    emit_json(document, json_path)


def _reason(record: Record) -> str:
    """Give field and kind of a dead letter, without what differs from letter to letter."""
    kind = record.headers.get("dlq_error", "?").split(":")[0]
    name = re.sub(r"\[\d+\]", "[]", record.headers.get("dlq_field", ""))
    return f"{name or 'message'}: {kind}"


def _print_stats(document: dict[str, Any]) -> None:
    rows = [
        [
            name,
            f"{topic['records']:,}",
            f"{topic['bytes'] / 2**20:.2f}",
            f"{topic['keys']:,}",
            _moment(topic["begin_s"]),
            duration(topic["end_s"] - topic["begin_s"]),
        ]
        for name, topic in document["topics"].items()
    ]
    table = fitted(Text(document["log"], "bold"), _COLUMNS, rows, _DROP, out())
    out().print(table)
    for title, counts in (("Dead letters", "dead_letters"), ("Sources", "sources")):
        found = sorted(document[counts].items(), key=lambda item: (-item[1], item[0]))
        out().print(f"{title}: {len(found):,}" if found else f"{title}: none")
        for name, count in found[:_SHOWN]:
            out().print(f"    {count:>9,}  {name}", markup=False)
        if len(found) > _SHOWN:
            out().print(f"    and {len(found) - _SHOWN:,} more: see --json")


@app.command()
def tail(
    source: Source = None,
    count: Annotated[int, typer.Option("-n", help="How many records.", min=1, max=100_000)] = 20,
    topic: Annotated[
        str | None, typer.Option(help="Only this topic, such as events, journal or events.dlq.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as records come.")] = False,
    log: LogOption = DEFAULT_LOG,
    json_path: JsonPath = None,
) -> None:
    """Show the newest records.

    Example: tidegate journal tail run.db -n 5 --topic journal
    """
    if follow and json_path is not None:
        fail("--follow never ends, so there is no JSON object to write; leave one of the two out.")
    log = resolved(source or log)
    with opened_log(log) as opened:
        ends = dict(opened.head.topics)
        newest = [one for name in _topics(topic, opened) for one in opened.last(name, count)]
        found = sorted(newest, key=_by_time)[-count:]
    if json_path != "-":
        for record in found:
            _print_record(record)
    emit_json({"records": [_record_document(record) for record in found]}, json_path)
    while follow:
        time.sleep(_FOLLOW_S)
        with opened_log(log) as opened:
            fresh: list[Record] = []
            for name in _topics(topic, opened):
                before = ends.get(name, 0)
                missed = opened.head.topics.get(name, 0) - before
                if missed > 0:
                    # At most so many came: offsets may have gaps.
                    newest = opened.last(name, missed)
                    fresh += [record for record in newest if record.offset >= before]
            ends = dict(opened.head.topics)
        for record in sorted(fresh, key=_by_time):
            _print_record(record)


def _topics(name: str | None, opened: ReadLog) -> list[str]:
    known = sorted(opened.head.topics)
    if name is None:
        return known
    base, dot, rest = name.partition(".dlq")
    for candidate in (name, f"tidegate.{base}.v1{dot}{rest}"):
        if candidate in known or candidate in ALL_TOPICS:
            break
    else:
        fail(f"--topic: {name} is no topic of this log; there are {', '.join(known) or 'none'}.")
    return [candidate]


def _by_time(record: Record) -> tuple[float, str, int]:
    return record.time_s, record.topic, record.offset


def _print_record(record: Record) -> None:
    where = f"{record.topic.removeprefix('tidegate.')}/{record.offset}"
    line = f"{_moment(record.time_s)}  {where:<22} {record.key:<14} {_gist(record)}"
    console = out()
    if console.is_terminal:
        console.print(line, markup=False, no_wrap=True, overflow="ellipsis")
    else:
        console.print(line, markup=False, soft_wrap=True)


def _gist(record: Record) -> str:
    """Say in a line what a record is."""
    if record.topic.endswith(".dlq"):
        headers = record.headers
        return f"{headers.get('dlq_field', '')} {headers.get('dlq_error', '')}".strip()
    if record.value is None:
        return "(removed)"
    try:
        raw = orjson.loads(record.value)
        name, data = raw["type"].removeprefix("tidegate."), raw["data"]
        if "decision" in data:
            did = " ".join(fact for fact, _ in data["decision"]["facts"] if fact != "JobExplained")
            said = fields(data["stimulus"]["data"], record.time_s)
            heard = f"{data['stimulus']['kind']} {said}".rstrip()
            return f"#{data['number']} {heard} -> {did or 'nothing'}"
        if "state" in data:
            return f"{name} after {data['number']} entries, state {data['state_hash'][:12]}"
        return f"{name} {fields(data, record.time_s)}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{len(record.value)} bytes that are no message"


def _record_document(record: Record) -> dict[str, Any]:
    value: Any = None
    if record.value is not None:
        try:
            value = orjson.loads(record.value)
        except ValueError:
            value = record.value.decode(errors="replace")
    return {
        "topic": record.topic,
        "offset": record.offset,
        "key": record.key,
        "time_s": record.time_s,
        "headers": dict(record.headers),
        "value": value,
    }


@app.command("verify")
def verify_(
    source: Source = None,
    log: LogOption = DEFAULT_LOG,
    cell: OnlyCell = None,
    json_path: JsonPath = None,
) -> None:
    """Read a whole log: every checksum, and that no record is missing. It is not decided again.

    Example: tidegate journal verify run.db
    """
    documents: list[dict[str, Any]] = []
    log = _whole(source or log, cell)
    for one in cells_read(log, cell):
        with opened_log(log, one) as opened:
            count, name = opened.verify(), str(opened.path)
        if json_path != "-":
            shown = name if one is None else f"Cell {one} of {name}"
            tell(f"{shown} is whole: {counted(count, 'record')}.")
        documents.append({"log": name, **_named(one), "records": count})
    emit_json(documents[0] if len(documents) == 1 else {"cells": documents}, json_path)


def _whole(log: str, cell: str | None) -> str:
    """Give the full address of a log that is read whole, all cells of it or one."""
    if cell is not None and not is_kafka(log):
        fail("--cell: a log in a file is read with all its cells; leave it out.")
    return resolved(log)


def _named(cell: str | None) -> dict[str, str]:
    return {} if cell is None else {"cell": cell}


@app.command("export")
def export_(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[LOG] FILE", help="A new file, NAME.jsonl or NAME.jsonl.zst."),
    ],
    log: LogOption = DEFAULT_LOG,
    cell: OnlyCell = None,
    json_path: JsonPath = None,
) -> None:
    """Copy a log into one file that says when it is damaged. A log before the file is as --log.

    Of a log on Kafka with several cells each gets a file of its own, FILE with the cell's name in
    it: run.CELL.jsonl.zst.

    Example: tidegate journal export run.jsonl.zst --log run.db
    """
    if len(names) > 2:
        fail(f"{names[2]}: name the log and the file to make, no more.")
    target = Path(names[-1])
    log = _whole(names[0] if len(names) == 2 else log, cell)
    cells = cells_read(log, cell)
    targets = [target] if len(cells) == 1 else [_of_cell(target, str(one)) for one in cells]
    if there := next((path for path in targets if path.exists()), None):
        fail(f"{there} exists already; name a new file.")  # before others are written
    counts = []
    for one, path in zip(cells, targets, strict=True):
        with opened_log(log, one) as opened:
            opened.verify()
            with _progress("Exporting") as progress:
                counts.append(write_log(path, opened.head, opened.records(), progress))
    copies = list(zip(counts, targets, strict=True))
    if json_path != "-":
        for count, path in copies:
            _say_done("Exported", count, path)
    if json_path is not None:
        documents = [
            {**_copy(count, path), **_named(one)}
            for one, (count, path) in zip(cells, copies, strict=True)
        ]
        emit_json(documents[0] if len(documents) == 1 else {"cells": documents}, json_path)


def _of_cell(target: Path, cell: str) -> Path:
    """Give the file of one cell of several: its name stands before what names of logs end in."""
    suffix = next((one for one in SUFFIXES[::-1] if target.name.endswith(one)), "")
    return target.with_name(f"{target.name.removesuffix(suffix)}.{cell}{suffix}")


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="A log file, as export makes them, or kafka:.")],
    log: Annotated[Path, typer.Option("--log", help="The SQLite log to make.")],
    json_path: JsonPath = None,
) -> None:
    """Make a new SQLite log of a log file, offsets and all.

    Example: tidegate journal import run.jsonl.zst --log copy.db
    """
    with opened_log(resolved(source)) as opened, _progress("Importing") as progress:
        count = import_log(opened, log, progress)
    if json_path != "-":
        _say_done("Imported", count, log)
    emit_json(_copy(count, log), json_path)


app.command()(perfetto)


def _copy(count: int, path: Path) -> dict[str, Any]:
    return {"log": str(path), "records": count, "bytes": path.stat().st_size}


def _say_done(verb: str, count: int, path: Path) -> None:
    size = path.stat().st_size / 2**20
    tell(f"{verb} {counted(count, 'record')} into {path} ({size:.1f} MiB).")


@contextmanager
def _progress(verb: str) -> Iterator[Progress | None]:
    """Show how far it is, if somebody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    with Console(stderr=True).status(f"{verb}…") as status:
        yield lambda count: status.update(f"{verb}… {count:,} records")


def _moment(time_s: float) -> str:
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return f"{time_s:g} s"  # of a file that no bus wrote
