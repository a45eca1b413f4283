"""Reading a bus without changing it: the state of a cell, and what its journal says of a job.

The only file of `explain` that reads anything; what it reads it hands to the others.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable

from bus.contract import Bus, Record, Unreadable
from explain.answer import Reading
from explain.ends import End, Ends
from explain.measured import Heard, Measured
from explain.metrics import WANTED, Curves, Sample, curves_of, samples_in
from explain.refusals import (
    RECENT_S,
    WANTED as WANTED_OF_REFUSALS,
    Refusal,
    ended_badly,
    refusals,
    unanswered,
)
from explain.story import Story
from scheduler.blame import blamed_on
from scheduler.journal import recover
from schemas.codec import decode_event
from schemas.events import NodeMeasured
from schemas.journal import JournalEntry, brought_up, decode_entry
from schemas.log_codec import decode_log
from schemas.logs import LogChunk
from schemas.parse import Rejected
from schemas.topics import CELLS, JOURNAL, LOGS, TELEMETRY, TOPICS, Topic
from schemas.upcast import CannotUpcast

#: The cell that is meant where none is named.
CELL = "default"
#: Of measurements, at first so many times as many records as there are nodes are read, then, where
#: nodes are still missing, so many: they measure once a minute, and owners report in between.
_LOOKS = (1.25, 5.0)
_MORE = 50
#: Records of the journal in which refused commands are looked for.
_RECENT = 20_000
#: Records that are looked at before others have their turn.
_TURN = 100


class WhichCell(LookupError):
    """The cell that is meant is not in the log, or none was named and the log holds several."""

    def __init__(self, cell: str | None, held: tuple[str, ...]) -> None:
        """`cell` was named, if any; the log holds `held`."""
        super().__init__(f"cell {cell}: the log holds {', '.join(held)}")
        self.cell, self.held = cell, held


async def read_bus(bus: Bus, cell: str | None = None) -> Reading:
    """Recover the state that a cell has come to.

    Raises:
        WhichCell: The cell is not in the log, or none was named and there are several.
        Unreadable: The log is damaged.
    """
    cell = await _chosen(bus, cell)
    found = await recover(bus, cell)
    newest_s = await newest(bus, TOPICS)
    word = await bus.latest(CELLS.name, cell)  # of others nobody says that they lead this one
    said_s = 0.0 if word is None else word.time_s
    now_s = found.state.now_s
    origin_s = now_s
    async for entry in entries(bus, cell, (b"",), found.state.number):
        origin_s = entry.at_s
        break
    return Reading(cell, found.state, origin_s, max(newest_s, now_s), max(said_s, now_s))


async def _chosen(bus: Bus, cell: str | None) -> str:
    """Find which cell is meant; where nobody has decided anything, any name is as good."""
    if await bus.latest(JOURNAL.name, cell or CELL) is not None:
        return cell or CELL
    held = tuple(dict.fromkeys([record.key async for record in bus.read(JOURNAL.name)]))
    if len(held) > 1 or (cell is not None and held):
        raise WhichCell(cell, held)
    return cell or next(iter(held), CELL)


async def read_story(bus: Bus, cell: str, job: str, end: int) -> Story:
    """Read a cell's journal for one job, before the entry of number `end`.

    Whoever shows the story beside a state gives the state's number: a live log goes on meanwhile.

    Raises:
        Unreadable: an entry that concerns it cannot be read.
    """
    story = Story(job)
    async for entry in entries(bus, cell, story.wanted, end):
        with blamed_on(entry.number):
            story.take(entry)
    return story


async def read_ends(bus: Bus, cell: str, jobs: Collection[str], end: int) -> dict[str, End]:
    """Read how some jobs ended, before its cell's entry of number `end`.

    Raises:
        Unreadable: an entry that may concern them cannot be read.
    """
    ends = Ends(jobs)
    async for entry in entries(bus, cell, ends.wanted, end):
        with blamed_on(entry.number):
            ends.take(entry)
    return ends.found


async def read_refusals(bus: Bus, reading: Reading) -> list[Refusal]:
    """Read which commands agents refused or left unanswered in a cell's last hour.

    Raises:
        Unreadable: an entry that may tell of them cannot be read.
    """
    state = reading.state
    begin = max(0, await bus.end(JOURNAL.name) - _RECENT)

    async def holding(wanted: Collection[bytes]) -> list[JournalEntry]:
        return [one async for one in entries(bus, reading.cell, wanted, state.number, begin)]

    bad = await holding(WANTED_OF_REFUSALS) if state.number else []
    with blamed_on(None):
        ended = ended_badly(one for one in bad if one.at_s >= state.now_s - RECENT_S)
        issued = await holding([f'"{name}"'.encode() for name in ended]) if ended else []
        return [*refusals(ended, issued), *unanswered(state)]


async def read_curves(bus: Bus, cell: str, job: str, end: int) -> Curves:
    """Read what the newest job of an id reported, before its cell's entry of number `end`.

    Raises:
        Unreadable: an entry that tells of it cannot be read.
    """
    found: list[Sample] = []
    async for entry in entries(bus, cell, (*WANTED, b'"JobAccepted"'), end):
        with blamed_on(entry.number):
            for kind, fields in entry.decision.get("facts", ()):
                if kind == "JobAccepted" and fields["job"] == job:
                    found = []
            found += [one for name, one in samples_in(entry.at_s, entry.decision) if name == job]
    return curves_of(found)


async def read_measured(bus: Bus, nodes: Collection[str]) -> dict[str, Heard]:
    """Read by node what it last measured of its GPUs, as far back as these nodes need."""
    found: dict[str, Heard] = {}
    upper = end = await bus.end(TELEMETRY.name)
    for times in _LOOKS:
        lower = max(0, end - int(times * len(nodes)) - _MORE)
        # Further back is older: what is known already stays.
        found = await measured_between(bus, lower, upper) | found
        upper = lower
        if all(node in found for node in nodes):
            break
    return found


async def measured_between(bus: Bus, begin: int, end: int) -> dict[str, Heard]:
    """Read by node what it last measured between two offsets of the telemetry."""
    found: dict[str, Heard] = {}
    if begin >= end:
        return found
    count = 0
    async for record in bus.read(TELEMETRY.name, begin, end):
        count += 1
        if count % _TURN == 0:
            await asyncio.sleep(0)
        said = None if record.value is None else decode_event(record.value)
        if said is None or isinstance(said, Rejected):
            continue
        if isinstance(said.data, NodeMeasured):
            used = Measured.of(said.data)
            found[said.data.node] = Heard(used, record.time_s, said.time_s)
    return found


async def entries(
    bus: Bus, cell: str, wanted: Collection[bytes], end: int, begin: int = 0
) -> AsyncIterator[JournalEntry]:
    """Read a cell's entries that hold one of these bytes, before that of number `end`.

    Those of the first records of the journal, before the offset `begin`, are left out.

    Raises:
        Unreadable: one of them cannot be read.
    """
    async for record in bus.read(JOURNAL.name, begin):
        value = record.value
        if value is None or record.key != cell or not any(part in value for part in wanted):
            continue
        entry = entry_of(record)
        if entry.number >= end:
            return
        yield entry


def entry_of(record: Record) -> JournalEntry:
    """Give the entry of a record of the journal, as this release writes entries.

    Raises:
        Unreadable: it is none, or from a newer release.
    """
    entry = decode_entry(record.value or b"")
    if isinstance(entry, Rejected):
        raise Unreadable(f"journal record {record.offset}: {entry.field}: {entry.reason}")
    try:
        return brought_up(entry)
    except CannotUpcast as error:
        raise Unreadable(f"journal record {record.offset}: {error}") from error


async def pieces_for(
    bus: Bus, offset: int, reader: str, job: str
) -> AsyncIterator[tuple[int, int, LogChunk | None]]:
    """Give each piece of a job's log that came for a reader since `offset`.

    Before it, where to go on, and how many bytes were read. None in place of a piece: what was
    there is for somebody else.
    """
    async for record in bus.read(LOGS.name, offset):
        value = record.value or b""
        said = decode_log(value) if reader.encode() in value else None
        mine = None
        if said is not None and not isinstance(said, Rejected):
            # Others may use the same name.
            mine = said.data if said.data.reader == reader and said.data.job == job else None
        yield record.offset + 1, len(value), mine


async def newest(bus: Bus, topics: Iterable[Topic]) -> float:
    """Give the moment of the newest record of some topics; 0 if there is none."""
    found_s = 0.0
    for topic in topics:
        record = await bus.last(topic.name)
        found_s = found_s if record is None else max(found_s, record.time_s)
    return found_s
