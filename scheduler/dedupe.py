"""Once each: which messages of a source were taken, by boot and sequence, in constant memory.

Delivery is at least once and may be out of order, so a high-water mark alone would drop what
comes late. Missing numbers are remembered; one that comes after all is taken, one that was taken
is not taken again.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: Missing numbers remembered by source. More missing than this are given up as lost.
MISSING_MAX = 1024

#: Sources remembered. Of more, those silent longest are forgotten: a flood of made-up names must
#: not fill the memory, and whoever speaks every minute is never forgotten for it.
SOURCES_MAX = 100_000


class Verdict(StrEnum):
    """What to do with a message."""

    FRESH = "fresh"
    LATE = "late"  #: Fresh, though later ones were taken before.
    DUPLICATE = "duplicates"


@dataclass(slots=True)
class _Source:
    bootid: int
    top: int  #: Highest sequence taken.
    missing: dict[int, None] = field(default_factory=dict)
    excused: int = 0  #: Of those missing, how many nobody shall be asked for.
    resumed: bool = False  #: What is skipped next may have been taken and not recorded.


class Dedupe:
    """Remembers what was taken from each source."""

    def __init__(self) -> None:
        """Begin with nothing taken."""
        self._sources: dict[str, _Source] = {}
        self.gaps = 0  #: Numbers skipped so far, whether or not they came later.

    def take(self, source: str, bootid: int, sequence: int) -> Verdict:
        """Judge a message and, unless it is a duplicate, mark it taken."""
        known = self._sources.pop(source, None)
        if known is None or bootid > known.bootid:
            # Sequences begin at 0 with each boot; what is skipped before the first is missing.
            known = _Source(bootid, -1)
            if len(self._sources) >= SOURCES_MAX:
                del self._sources[next(iter(self._sources))]
        self._sources[source] = known  # to the end: the first is who was silent longest
        if bootid < known.bootid:
            return Verdict.DUPLICATE
        if sequence > known.top:
            self._skip(known, sequence)
            known.top, known.resumed = sequence, False
            return Verdict.FRESH
        if sequence in known.missing:
            del known.missing[sequence]
            known.excused = min(known.excused, len(known.missing))
            return Verdict.LATE
        return Verdict.DUPLICATE

    def _skip(self, known: _Source, sequence: int) -> None:
        skipped = sequence - known.top - 1
        if skipped <= 0:
            return
        self.gaps += skipped
        first = max(known.top + 1, sequence - MISSING_MAX)
        known.missing.update(dict.fromkeys(range(first, sequence)))
        while len(known.missing) > MISSING_MAX:
            del known.missing[next(iter(known.missing))]
        if known.resumed:
            known.excused = len(known.missing)

    def missing(self, source: str) -> int:
        """Count the numbers of the source's boot that have not come and are not excused."""
        known = self._sources.get(source)
        return 0 if known is None else max(0, len(known.missing) - known.excused)

    def excuse(self) -> None:
        """Ask nobody for what is missing now: the journal does not keep all that was taken."""
        for known in self._sources.values():
            known.excused, known.resumed = len(known.missing), True

    def forgive(self, source: str, sequence: int) -> None:
        """Give up what is missing before a message that said again all that matters."""
        known = self._sources.get(source)
        if known is not None:
            known.missing = {number: None for number in known.missing if number > sequence}
            known.excused = 0

    def to_dict(self) -> dict[str, Any]:
        """Write what was taken, for a snapshot."""
        return {
            name: [known.bootid, known.top, list(known.missing)]
            for name, known in sorted(self._sources.items())
        }

    def load(self, document: dict[str, Any]) -> None:
        """Read what `to_dict` wrote."""
        self._sources = {
            name: _Source(bootid, top, dict.fromkeys(missing))
            for name, (bootid, top, missing) in document.items()
        }
