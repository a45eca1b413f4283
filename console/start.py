"""How the command begins: without looking for garbage among what it imports.

None of that goes before the process does, but Python looked at all of it again and again, and once
more at the end: a quarter of the time that a verb takes which only reads.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_alone = False  # whether the process is the command's own


def importing() -> None:
    """Look for no garbage until all is `imported`: for whoever has the process to itself."""
    global _alone
    _alone = True
    gc.disable()


def imported() -> None:
    """Look for garbage again, but never among what there is now; if it was `importing`."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


@contextmanager
def importing_late() -> Iterator[None]:
    """Do the same for what a verb imports only when it needs it."""
    if _alone:
        gc.disable()
    try:
        yield
    finally:
        if _alone:
            imported()
