"""What is wrong with a journal is said of its entry, also if whoever forged it chained it anew.

Such a journal has digests that fit, and may hold anything: a fact without its fields, a number for
a name, a job that nobody submitted. Readers believe the form of entries, so they fail at it in as
many ways as there are. Nothing else may go wrong while they read, so all of it is the entry's.
"""

from dataclasses import dataclass
from types import TracebackType

from bus.contract import Unreadable
from scheduler.core.record import UnknownRecord
from scheduler.core.transitions import InvalidTransition
from schemas.journal import MISSHAPEN


@dataclass(frozen=True, slots=True)
class blamed_on:  # noqa: N801 - it reads as what it is in a `with`; a generator costs a fold 13 %
    """Say of the entry of this number what goes wrong while it is read; None: nobody knows which.

    Raises:
        Unreadable: something did.
    """

    number: int | None

    def __enter__(self) -> None:
        """Begin to read."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Say what went wrong, if anything did."""
        if error is None:
            return
        where = "the journal" if self.number is None else f"journal entry {self.number}"
        which = "; `tidegate replay` says from which entry on" if self.number is None else ""
        if isinstance(error, UnknownRecord):
            raise Unreadable(f"{where}: {error}") from error
        if isinstance(error, InvalidTransition):
            raise Unreadable(
                f"{where} does not follow from what is before it: {error}; was it written by "
                f"another release?{which}"
            ) from error
        if isinstance(error, MISSHAPEN):
            what = " ".join(str(error).split())[:200]
            raise Unreadable(
                f"{where} holds what no scheduler of this release writes: {type(error).__name__}: "
                f"{what}{which}"
            ) from error
