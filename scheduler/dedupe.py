"""Once each: which messages of a source were taken, by boot and sequence, in bounded memory.

Delivery is at least once and may be out of order, so a high-water mark alone would drop what
comes late. Missing numbers are remembered, as ranges; one that comes after all is taken, one that
was taken is not taken again. Topics are read side by side, so the first message of a new boot may
overtake the last of the one before: that boot's numbers are kept too.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: Missing numbers remembered by source. More missing than this are given up as lost.
MISSING_MAX = 1024
#: In so many pieces; of more, the oldest are given up. It bounds what a source can make us keep.
#: An edge agent is at most 100 messages ahead of its oldest unconfirmed one (`MqttOptions.window`):
#: when one of its bridges is behind, every second one may be missing, which is 50 pieces.
PIECES_MAX = 64
#: No honest source skips so many numbers at once; one that does is not believed, since all that it
#: says afterwards would be taken for old.
JUMP_MAX = 1_000_000
#: Sources remembered. Of more, those silent longest are forgotten: a flood of made-up names must
#: not fill the memory, and whoever speaks every minute is never forgotten for it.
SOURCES_MAX = 20_000


class Verdict(StrEnum):
    """What to do with a message."""

    FRESH = "fresh"
    LATE = "late"  #: Fresh, though later ones were taken before.
    DUPLICATE = "duplicates"


@dataclass(slots=True)
class _Boot:
    bootid: int
    top: int = -1  #: Highest sequence taken.
    missing: list[list[int]] = field(default_factory=list)  #: [first, last], ascending.

    def count(self) -> int:
        return sum(last - first + 1 for first, last in self.missing)

    def take(self, sequence: int) -> Verdict:
        if sequence > self.top:
            if sequence > self.top + 1:
                self.missing.append([max(self.top + 1, sequence - MISSING_MAX), sequence - 1])
                self._give_up()
            self.top = sequence
            return Verdict.FRESH
        for index, (first, last) in enumerate(self.missing):
            if first <= sequence <= last:
                rest = [[first, sequence - 1], [sequence + 1, last]]
                self.missing[index : index + 1] = [piece for piece in rest if piece[0] <= piece[1]]
                self._give_up()
                return Verdict.LATE
        return Verdict.DUPLICATE

    def _give_up(self) -> None:
        del self.missing[:-PIECES_MAX]
        spare = self.count() - MISSING_MAX
        while spare > 0:
            first, last = self.missing[0]
            if last - first + 1 <= spare:
                spare -= last - first + 1
                del self.missing[0]
            else:
                self.missing[0][0] += spare
                spare = 0


@dataclass(slots=True)
class _Source:
    boot: _Boot
    before: _Boot | None = None
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
        if known is None:
            known = _Source(_Boot(bootid))
            if len(self._sources) >= SOURCES_MAX:
                del self._sources[next(iter(self._sources))]
        elif bootid > known.boot.bootid:
            # Sequences begin at 0 with each boot; what is skipped before the first is missing.
            known = _Source(_Boot(bootid), known.boot)
        self._sources[source] = known  # to the end: the first is who was silent longest
        if bootid < known.boot.bootid:
            old = known.before
            if old is None or bootid != old.bootid:
                return Verdict.DUPLICATE
            verdict = old.take(sequence)
            return Verdict.LATE if verdict is Verdict.FRESH else verdict
        boot = known.boot
        if sequence > boot.top + 1:
            self.gaps += sequence - boot.top - 1
        verdict = boot.take(sequence)
        if verdict is Verdict.FRESH:
            if known.resumed:
                known.excused, known.resumed = boot.count(), False
        elif verdict is Verdict.LATE:
            known.excused = min(known.excused, boot.count())
        return verdict

    def boot(self, source: str) -> int | None:
        """Give the newest boot that was heard of the source; None: none was."""
        known = self._sources.get(source)
        return None if known is None else known.boot.bootid

    def leaps(self, source: str, bootid: int, sequence: int) -> bool:
        """Say whether a message is further ahead of its source than any honest one could be."""
        known = self._sources.get(source)
        if known is None:
            return False
        return bootid == known.boot.bootid and sequence > known.boot.top + JUMP_MAX

    def missing(self, source: str) -> int:
        """Count the numbers of the source's boot that have not come and are not excused."""
        known = self._sources.get(source)
        return 0 if known is None else max(0, known.boot.count() - known.excused)

    def excuse(self) -> None:
        """Ask nobody for what is missing now: the journal does not keep all that was taken."""
        for known in self._sources.values():
            known.excused, known.resumed = known.boot.count(), True

    def forgive(self, source: str, sequence: int) -> None:
        """Give up what is missing before a message that said again all that matters."""
        known = self._sources.get(source)
        if known is not None:
            later = [piece for piece in known.boot.missing if piece[1] > sequence]
            known.boot.missing = [[max(first, sequence + 1), last] for first, last in later]
            known.excused = 0

    def to_dict(self) -> dict[str, Any]:
        """Write what was taken, for a snapshot."""
        return {
            name: [
                [boot.bootid, boot.top, [list(piece) for piece in boot.missing]]
                for boot in (known.boot, known.before)
                if boot is not None
            ]
            for name, known in sorted(self._sources.items())
        }

    def load(self, document: dict[str, Any]) -> None:
        """Read what `to_dict` wrote."""
        for name, (newest, *older) in document.items():
            before = _Boot(*older[0]) if older else None
            self._sources[name] = _Source(_Boot(*newest), before)
