"""`tidegate journal perfetto`: a stretch of a log as a file that Perfetto opens."""

import contextlib
import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import orjson
import typer

from bus.contract import Record, Unreadable
from bus.logfile import draft_of
from console.kafka import opened_log, resolved
from console.moment import When, moment_or_length
from console.output import JsonPath, emit_json, fail, tell
from console.reading import DEFAULT_LOG
from explain.perfetto import HEAD, TAIL, Event, Trace, line
from scheduler.blame import blamed_on
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader, fold
from schemas.topics import JOURNAL

LogOption = Annotated[
    str,
    typer.Option("--log", help="SQLite, .jsonl, .jsonl.zst or kafka:.", envvar="TIDEGATE_LOG"),
]


def perfetto(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[LOG] FILE", help="A new file, NAME.json or NAME.json.gz."),
    ],
    log: LogOption = DEFAULT_LOG,
    since: Annotated[
        str | None,
        typer.Option(help="From here on: seconds or 6h30m since the beginning, a time, d0 06:30."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Up to here; as --since.")] = None,
    cell: Annotated[str | None, typer.Option(help="Which cell; else the only one.")] = None,
    json_path: JsonPath = None,
) -> None:
    """Draw who was on which GPU, and why: a file for ui.perfetto.dev, which reads it where it is.

    A log before the file is as --log.

    Example: tidegate journal perfetto night.json.gz --log run.db --since 2h --until 6h30m
    """
    if len(names) > 2:
        fail(f"{names[2]}: name the log and the file to make, no more.")
    target = Path(names[-1])
    if not target.name.endswith((".json", ".json.gz")):
        fail(f"{target}: end it in .json or .json.gz.")
    if target.exists():
        fail(f"{target} exists; name a new file.")
    stretch = _Stretch(cell, moment_or_length("--since", since), moment_or_length("--until", until))
    with opened_log(resolved(names[0] if len(names) == 2 else log), cell) as opened:
        opened.verify()
        with draft_of(target) as draft, draft.open("wb") as file:
            _write(file, stretch.events(opened.records(JOURNAL.name)), target)
    assert stretch.trace is not None
    size = target.stat().st_size
    if json_path != "-":
        tell(
            f"{stretch.entries:,} entries, {stretch.trace.slices:,} slices: {target} "
            f"({size / 2**20:.1f} MiB). Open it at https://ui.perfetto.dev, "
            "which sends nothing away."
        )
    document = {"file": str(target), "entries": stretch.entries, "slices": stretch.trace.slices}
    emit_json({**document, "bytes": size}, json_path)


def _write(file: BinaryIO | gzip.GzipFile, events: Iterable[Event], target: Path) -> None:
    with contextlib.ExitStack() as packing:
        if target.suffix == ".gz":
            file = packing.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))
        file.write(HEAD)
        for number, event in enumerate(events):
            file.write(line(event, is_first=number == 0))
        file.write(TAIL)


class _Stretch:
    """The events of a journal between two moments."""

    def __init__(
        self,
        cell: str | None,
        since: When,
        until: When,
    ) -> None:
        self._cell, self._since, self._until = cell, since, until
        self.trace: Trace | None = None
        self.entries = 0

    def events(self, records: Iterable[Record]) -> Iterator[Event]:
        """Fold the journal, and give what happened in the stretch."""
        reader, state = JournalReader(self._cell), ClusterState()
        origin_s = begin_s = end_s = last_s = 0.0
        for record in records:
            entry = reader.read(record)
            if entry is None:
                continue
            if state.number == 0:
                state.cell = entry.cell
                origin_s = entry.at_s
                begin_s = max(origin_s, self._since.since(origin_s, origin_s))
                end_s = max(origin_s, self._until.since(origin_s, float("inf")))
                if begin_s >= end_s:
                    fail("--until: it must be after --since and the log's beginning.")
            if self.trace is None and entry.at_s >= begin_s:
                self.trace = Trace(entry.cell, origin_s)
                yield from self.trace.begin(state, begin_s)
            if entry.at_s > end_s:
                last_s = end_s  # it was so until then
                break
            with blamed_on(entry.number):
                decision = orjson.loads(entry.decision)
                fold(state, entry, decision)
                last_s = max(last_s, entry.at_s)
                if self.trace is not None:
                    self.entries += 1
                    stimulus = orjson.loads(entry.stimulus)
                    yield from self.trace.take(state, entry.number, entry.at_s, stimulus, decision)
        if state.number == 0:
            raise Unreadable("the log has no journal: there is nothing to draw")
        if self.trace is None:
            fail("--since: the log ends before that.")
        yield from self.trace.end(state, last_s)
