"""What aiokafka makes of a batch in which a record cannot be read.

The name of a header is UTF-8, which no broker checks. aiokafka fails at one that is not, and again
at each try: whoever may write a topic could stop all who read it, for good.
"""

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.structs import ConsumerRecord


class _Batches:
    """The batches that were fetched, of which the last one taken is known."""

    def __init__(self, records: Any) -> None:
        self._records = records
        self.last: Any = None

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def next_batch(self) -> Any:
        self.last = self._records.next_batch()
        return self.last


class _Readable(fetcher.PartitionRecords):  # type: ignore[misc]  # it has no types
    """Gives an empty record in place of one that cannot be read, and goes on after its batch.

    Where the next record of the batch begins cannot be told. All are of one writer.
    """

    def __init__(self, tp: Any, records: Any, *rest: Any) -> None:
        self.next_fetch_offset = 0
        super().__init__(tp, _Batches(records), *rest)

    def _unpack_records(self) -> Iterator[ConsumerRecord]:
        while True:
            try:
                yield from super()._unpack_records()
                return
            except UnicodeDecodeError:
                batch, tp = self._records.last, self._tp
                offset = max(self.next_fetch_offset, batch.base_offset)
                self.next_fetch_offset = batch.next_offset
                yield ConsumerRecord(tp.topic, tp.partition, offset, 0, 0, b"", b"", None, 0, 0, ())


def read_on() -> None:
    """Have all consumers of this process go on after what cannot be read."""
    fetcher.PartitionRecords = _Readable
