"""Log files of bounded size: the oldest output is dropped."""

import contextlib
import os
from pathlib import Path

#: Beside `NAME.log`: how many bytes were dropped with its oldest files.
DROPPED = ".dropped"
#: How much of the end of the output stays in memory, for error messages.
_TAIL_BYTES = 16 * 1024


class RotatingLog:
    """Appends to `NAME.log`; when that is full it becomes `NAME.log.1`, and so on."""

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        """Append to what an earlier writer left.

        Args:
            path: The newest file.
            max_bytes: Size at which a file is full.
            files: How many files there are at most, the newest included.
        """
        self._path, self._max_bytes, self._files = path, max_bytes, files
        self._descriptor: int | None = None
        self._size = 0
        self._tail = b""

    def begin(self) -> None:
        """Make the file before anything is written: readers know by it that the worker started."""
        with contextlib.suppress(OSError):
            self._open()

    def write(self, data: bytes) -> None:
        """Append. If the disk refuses it, the lines are lost, but the worker goes on."""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        try:
            while data:
                room = self._room()
                self._size += os.write(self._open(), data[:room])
                data = data[room:]
        except OSError:
            self.close()

    def tail(self) -> str:
        """Give the end of the output."""
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Close the file; a later `write` opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _room(self) -> int:
        self._open()
        if self._size >= self._max_bytes:
            self._rotate()
            self._open()
        return self._max_bytes - self._size

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o644)
            self._size = os.fstat(self._descriptor).st_size
        return self._descriptor

    def _rotate(self) -> None:
        self.close()
        self._count_dropped(self._numbered(self._files - 1))
        for number in range(self._files - 1, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._files == 1:
            self._path.unlink(missing_ok=True)

    def _count_dropped(self, oldest: Path) -> None:
        """Write down how much will have gone with the oldest file: a reader's offsets count it."""
        if not oldest.exists():
            return
        beside = self._path.with_name(self._path.name + DROPPED)
        try:
            before = int(beside.read_text())
        except (OSError, ValueError):
            before = 0
        draft = beside.with_name(beside.name + ".draft")
        draft.write_text(str(before + oldest.stat().st_size))
        draft.replace(beside)

    def _numbered(self, number: int) -> Path:
        name = self._path.name
        return self._path if number == 0 else self._path.with_name(f"{name}.{number}")


def last_line(text: str) -> str:
    """Give the last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
