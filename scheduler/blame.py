"""What is wrong with a journal is said of its entry, also if whoever forged it chained it anew.

Such a journal has digests that fit, and may hold anything: a fact without its fields, a number for
a name, a job that nobody submitted. Readers believe the form of entries, so they fail at it in as
many ways as there are. Nothing else may go wrong while they read, so all of it is the entry's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from bus.contract import Unreadable
from scheduler.core.record import UnknownRecord
from scheduler.core.transitions import InvalidTransition
from schemas.journal import MISSHAPEN


@contextmanager
def blamed_on(number: int | None) -> Iterator[None]:
    """Say of the entry of this number what goes wrong while it is read; None: nobody knows which.

    Raises:
        Unreadable: something did.
    """
    where = "the journal" if number is None else f"journal entry {number}"
    which = "; `tidegate replay` says from which entry on" if number is None else ""
    try:
        yield
    except UnknownRecord as error:
        raise Unreadable(f"{where}: {error}") from error
    except InvalidTransition as error:
        raise Unreadable(
            f"{where} does not follow from what is before it: {error}; was it written by another "
            f"release?{which}"
        ) from error
    except MISSHAPEN as error:
        what = " ".join(str(error).split())[:200]
        raise Unreadable(
            f"{where} holds what no scheduler of this release writes: {type(error).__name__}: "
            f"{what}{which}"
        ) from error
