"""One claim of docs/results, as its index says it."""

from collections.abc import Callable
from dataclasses import dataclass

NOT_RECORDED = "not recorded"
#: Of raw figures that are gone.
UNKEPT = "raw figures were not kept"


@dataclass(frozen=True)
class Claim:
    """One line of the index."""

    page: str
    says: str
    figure: str | Callable[..., str]  #: As typed, or worked out from the raw files, in their order.
    caveat: str
    raw: tuple[str, ...] = ()
    #: Of a claim whose raw figures were not kept, as its page has them.
    command: str = NOT_RECORDED
    commit: str = NOT_RECORDED
