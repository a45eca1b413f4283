"""The log that is served, kept open: opened again where its file was replaced or went on."""

import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path

from bus.contract import Bus, Record, Unreadable

Opening = Callable[[], Bus]
#: Records on Kafka that are no further apart are read at once, with those between them.
_APART = 500


class ServedLog:
    """A log that others write, replace or remove meanwhile."""

    def __init__(
        self,
        name: str,
        opening: Opening,
        path: Path | None,
        folder: Path,
        cell: str | None = None,
    ) -> None:
        """Begin closed.

        Args:
            name: The log's address, as people write it.
            opening: Opens it for reading.
            path: Its file; None if it is none.
            folder: Where an index of a log without a file goes.
            cell: The only cell that it can hold, as a partition of Kafka; None: it may hold any.
        """
        self.name, self.path, self.cell = name, path, cell
        self._opening, self._folder = opening, folder
        self._bus: Bus | None = None
        self._seen: tuple[object, ...] = ()

    def index_path(self, cell: str) -> Path:
        """Name the file of a cell's index: beside the log."""
        between = "" if cell == "default" else f".{cell}"
        if self.path is not None:
            return self.path.with_name(f"{self.path.name}{between}.index.db")
        safe = "".join(char if char.isalnum() else "-" for char in self.name)
        return self._folder / f"{safe}{between}.index.db"

    @property
    def writable(self) -> bool:
        """Whether who runs the gateway can write the log: then it is its operator."""
        return self.path is not None and os.access(self.path, os.W_OK)

    @property
    def file(self) -> tuple[object, ...]:
        """What tells the file that is open, or was last, from another; of no file nothing does."""
        return self._seen[:2]

    @property
    def bus(self) -> Bus:
        """The open log.

        Raises:
            Unreadable: it is closed.
        """
        if self._bus is None:
            raise Unreadable(f"{self.name} is not open now")
        return self._bus

    async def keep_open(self) -> bool:
        """Open the log where it is closed or its file changed; tell whether it was opened.

        Raises:
            BusError: it cannot be opened.
        """
        if self._bus is not None and self._look() == self._seen:
            return False
        await self.close()
        self._seen = self._look()
        self._bus = self._opening()
        return True

    def _look(self) -> tuple[object, ...]:
        """What tells that the file must be opened again."""
        if self.path is None:
            return ()
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise Unreadable(
                f"{self.path} does not exist any more; put it back, or end this gateway"
            ) from None
        if self.path.with_name(f"{self.path.name}-wal").exists():
            return found.st_dev, found.st_ino
        # Nobody writes now; it was opened as a file that never changes.
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    async def read(
        self, topic: str, offset: int = 0, end: int | None = None
    ) -> AsyncIterator[Record]:
        """Read records from `offset` on, before `end`."""
        async with contextlib.aclosing(self.bus.read(topic, offset, end)) as records:  # type: ignore[type-var]
            async for record in records:
                yield record

    async def picked(self, topic: str, offsets: Sequence[int]) -> AsyncGenerator[Record, None]:
        """Read the records at these offsets, which ascend; one that is not there is left out."""
        # On Kafka a reader costs more than some records that nobody wants.
        apart = 1 if self.path is not None else _APART
        begin = 0
        while begin < len(offsets):
            end = begin + 1
            while end < len(offsets) and offsets[end] - offsets[end - 1] <= apart:
                end += 1
            wanted = frozenset(offsets[begin:end])
            async for record in self.read(topic, offsets[begin], offsets[end - 1] + 1):
                if record.offset in wanted:
                    yield record
            begin = end

    async def record(self, topic: str, offset: int) -> Record | None:
        """Give the record at an offset; None if there is none."""
        async for record in self.read(topic, offset, offset + 1):
            return record
        return None

    async def close(self) -> None:
        """Let go of the log."""
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.close()
