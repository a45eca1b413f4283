"""Logs as files to hand around: what they look like, how they are read, checked and written.

A log file is JSON Lines (`.jsonl`, or `.jsonl.zst`):

    first line   {"format": "tidegate log", "version", "topics", "positions", "producers"}
    then         {"topic", "offset", "key", "time_s", "headers", "value"}, one for each record
    last line    {"records", "bytes", "sha256"} of all the lines before

`value` is the exact text of the record and null for a tombstone; what is no UTF-8 is `base64`.
"""

import base64
import contextlib
import hashlib
import io
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, cast

import orjson
import zstandard

from bus.contract import BusError, Record, Unreadable

FORMAT = "tidegate log"
VERSION = 1
SUFFIXES = (".jsonl", ".jsonl.zst")

#: A snapshot may have 64 MiB, and every quote in it takes two bytes here.
_LINE_MAX = 256 * 1024 * 1024
#: The first line has some 80 bytes for each agent that ever read from the log.
_HEAD_MAX = 16 * 1024 * 1024
#: A file is checked by pieces of lines this long: no line of a hostile one fills the memory.
_PIECE = 1 << 20
#: So many packed bytes are unpacked at a time, where what comes of them is held whole: 16 MiB.
_FED = 512
_ZSTD = b"\x28\xb5\x2f\xfd"
_OPENING = b'{"format":"tidegate log"'
#: Offsets and epochs are below this, in a database, too.
_OFFSETS = 2**63
#: How often progress is told, in records.
PROGRESS = 1000

#: Told how many records are done, every thousand.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Head:
    """What a log knows besides its records."""

    #: By topic, the offset that its next record will get.
    topics: Mapping[str, int]
    #: (group, topic, offset of the next record to read).
    positions: Sequence[tuple[str, str, int]] = field(default_factory=list)
    #: By producer id, its newest epoch.
    producers: Mapping[str, int] = field(default_factory=dict)


class ReadLog(Protocol):
    """A log to read, as it was when it was opened."""

    head: Head

    @property
    def path(self) -> Path | str:
        """Where it is: a file, or the address of a log on Kafka."""
        ...

    def verify(self) -> int:
        """Check the whole log; give the number of records.

        Raises:
            Unreadable: the first thing wrong.
        """
        ...

    def records(self, topic: str | None = None) -> Iterator[Record]:
        """Give all records, topic by topic in order of offset, or those of one topic."""
        ...

    def last(self, topic: str, count: int) -> list[Record]:
        """Give the newest records of a topic, oldest first."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class FileLog:
    """A log file. Check it by `verify` before believing its records: what is damaged may parse."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as lines:
            self.head = self._read_head(lines.readline(_HEAD_MAX))

    @contextlib.contextmanager
    def _open(self) -> Iterator[io.BufferedReader]:
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context(self.path.open("rb"))
                if file.peek(4)[:4] != _ZSTD:
                    yield file
                    return
                unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 27)
                stream: Any = unpacker.stream_reader(file, read_across_frames=True)
                yield opened.enter_context(io.BufferedReader(stream, 1 << 20))
            except zstandard.ZstdError as error:
                raise self._damaged(str(error)) from error
            except OSError as error:
                raise Unreadable(
                    f"{self.path} cannot be read: {error.strerror or error}"
                ) from error

    def _damaged(self, what: str) -> Unreadable:
        return Unreadable(f"{self.path} is damaged ({what}); restore it from a copy")

    def _read_head(self, line: bytes) -> Head:
        try:
            raw = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if not line and self._is_packed():
                raise Unreadable(
                    f"{self.path} is cut short before its first line could be unpacked; "
                    "restore it from a copy"
                ) from error
            if not line.startswith(_OPENING):
                raise self._foreign() from error
            if not line.endswith(b"\n"):
                raise Unreadable(f"{self.path} is cut short in its first line") from error
            raise self._damaged("its first line is no JSON") from error
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise self._foreign()
        version = raw.get("version")
        if type(version) is int and version > VERSION:
            raise Unreadable(
                f"{self.path} has version {version} of the log format and this release reads up "
                f"to {VERSION}; use a newer release of Tidegate"
            )
        try:
            head = Head(
                {str(name): int(end) for name, end in raw["topics"].items()},
                [(str(group), str(topic), int(end)) for group, topic, end in raw["positions"]],
                {str(name): int(epoch) for name, epoch in raw["producers"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged("its first line lacks what it must say") from error
        if version != VERSION:
            raise self._damaged("its first line names no version")
        numbers = (*head.topics.values(), *(end for _, _, end in head.positions))
        if not all(0 <= one < _OFFSETS for one in (*numbers, *head.producers.values())):
            raise self._damaged("its first line has a number that none of its kind can be")
        return head

    def _foreign(self) -> Unreadable:
        return Unreadable(f"{self.path} is not a Tidegate log; name another file")

    def _is_packed(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(4) == _ZSTD

    def _lines(self) -> Iterator[bytes]:
        with self._open() as lines:
            while line := lines.readline(_LINE_MAX):
                yield line

    def verify(self) -> int:
        digest, size, count = hashlib.sha256(), 0, 0
        held = begin = b""
        with self._open() as lines:
            # By pieces: a line that is longer than one is never whole in memory.
            while piece := lines.readline(_PIECE):
                if not held or held.endswith(b"\n"):
                    count += 1
                    begin = piece[: len(_OPENING)]
                digest.update(held)
                size += len(held)
                held = piece
        if not held.endswith(b"\n"):
            raise Unreadable(
                f"{self.path} is cut short: its last line, {count}, has no end; "
                "restore it from a copy"
            )
        if begin.startswith((b'{"topic":', _OPENING)):
            raise Unreadable(
                f"{self.path} is cut short: it ends at line {count} without its closing line; "
                "restore it from a copy"
            )
        if held != _closing(count - 2, size, digest.hexdigest()):
            raise self._damaged("a byte was changed: its SHA-256 is not the one it closes with")
        self._check_frame()
        return count - 2

    def _check_frame(self) -> None:
        """Refuse a packed file whose very end is cut: its lines are whole, its checksum is not."""
        if not self._is_packed():
            return
        with self.path.open("rb") as file:
            frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
            # All of what is fed comes out at once, 32,768 times as long at the most.
            while not frame.eof and (part := file.read(_FED)):
                frame.decompress(part)
            if not frame.eof:
                raise Unreadable(
                    f"{self.path} is cut short: its packing has no end; restore it from a copy"
                )

    def records(self, topic: str | None = None) -> Iterator[Record]:
        wanted = b'{"topic":' + (b"" if topic is None else orjson.dumps(topic) + b",")
        before: tuple[str, int] = ("", -1)
        for number, line in enumerate(self._lines(), 1):
            if not line.startswith(wanted):
                continue
            record = self._parse(number, line)
            if record.topic == before[0] and record.offset <= before[1]:
                raise self._damaged(f"line {number} is out of order")
            before = record.topic, record.offset
            yield record

    def _parse(self, number: int, line: bytes) -> Record:
        try:
            raw = orjson.loads(line)
            offset, headers = raw["offset"], raw["headers"]
            texts = (raw["topic"], raw["key"], *headers, *headers.values())
            if type(offset) is not int or not all(type(text) is str for text in texts):
                raise TypeError("a field has the wrong type")
            value = raw.get("value")
            if value is not None:
                value = value.encode()
            elif "base64" in raw:
                value = base64.b64decode(raw["base64"], validate=True)
            return Record(raw["topic"], offset, raw["key"], value, headers, float(raw["time_s"]))
        except KeyError as error:
            raise self._damaged(f"line {number} lacks {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise self._damaged(f"line {number}: {error}") from error

    def last(self, topic: str, count: int) -> list[Record]:
        return list(deque(self.records(topic), maxlen=count))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _closing(records: int, size: int, sha256: str) -> bytes:
    return orjson.dumps({"records": records, "bytes": size, "sha256": sha256}) + b"\n"


def write_log(
    path: Path, head: Head, records: Iterable[Record], progress: Progress | None = None
) -> int:
    """Write a log file, whole or not at all; give the number of records.

    Raises:
        BusError: the name does not end as log files do, or the file exists.
        Unreadable: the records cannot be read.
    """
    if not path.name.endswith(SUFFIXES):
        raise BusError(f"{path}: name a log file {' or '.join('NAME' + s for s in SUFFIXES)}")
    opening = {
        "format": FORMAT,
        "version": VERSION,
        "topics": dict(head.topics),
        "positions": head.positions,
        "producers": dict(head.producers),
    }
    digest, size, count = hashlib.sha256(), 0, 0
    with draft_of(path) as draft, draft.open("wb") as file, _packing(path, file) as out:
        line = orjson.dumps(opening) + b"\n"
        for record in itertools.chain(records, [None]):
            out.write(line)
            digest.update(line)
            size += len(line)
            if record is None:
                break
            line = _line(record)
            count += 1
            if progress is not None and count % PROGRESS == 0:
                progress(count)
        out.write(_closing(count, size, digest.hexdigest()))
    return count


@contextlib.contextmanager
def _packing(path: Path, file: BinaryIO) -> Iterator[BinaryIO]:
    if not path.name.endswith(".zst"):
        yield file
        return
    packer = zstandard.ZstdCompressor(level=6, write_checksum=True)
    with packer.stream_writer(file, closefd=False) as stream:
        yield cast("BinaryIO", stream)


def _line(record: Record) -> bytes:
    row: dict[str, object] = {
        "topic": record.topic,
        "offset": record.offset,
        "key": record.key,
        "time_s": record.time_s,
        "headers": dict(record.headers),
    }
    try:
        row["value"] = None if record.value is None else record.value.decode()
    except UnicodeDecodeError:
        row["base64"] = base64.b64encode(record.value or b"").decode()
    return orjson.dumps(row) + b"\n"


@contextlib.contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Give a file to write; it becomes `path` only if all goes well.

    Raises:
        BusError: there is such a file already, or it cannot be written.
    """
    exists = BusError(f"{path} exists already; name a new file")
    if path.exists() and (not path.is_file() or path.stat().st_size):
        raise exists
    if not path.parent.is_dir():
        raise BusError(f"{path}: the folder {path.parent} does not exist; make it first")
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    try:
        yield draft
        if path.exists() and not path.stat().st_size:
            path.unlink()
        os.link(draft, path)
    except FileExistsError as error:
        raise exists from error
    except OSError as error:
        raise BusError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
