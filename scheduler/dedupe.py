"""Once each: which messages were taken, by source, boot and sequence, in bounded memory.

Delivery is at least once and may be out of order. What was taken is kept as ranges of numbers,
never as "all up to the highest", and each boot of a source is a *stream* of its own. So neither a
number nor a boot id that is far ahead, after a crash or by forgery, makes anything else old.

Of too many streams the one silent longest is forgotten. From then on a message of a stream that is
not known is new only if it was said after all that was forgotten; of an older one nobody can tell.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

#: Ranges kept of a stream. Of more, those with the fewest numbers between them become one. It
#: bounds what a source can make us keep. An agent publishes 500 messages at once, and those of one
#: topic may be stored without those of the other: every second one may be missing, which is 250
#: pieces. An edge agent is at most 100 messages ahead (`MqttOptions.window`).
PIECES_MAX = 256
#: Nobody loses so many messages at once: its source left them out, and is not asked for them.
JUMP_MAX = 1_000_000
#: Streams remembered of agents, and as many of all others: who submits by hundreds of thousands of
#: calls, each a source of its own, shall not push out agents.
SOURCES_MAX = 100_000
#: Boots remembered of a source, so that one that starts again and again pushes out no other. Of
#: more, the one silent longest is forgotten; a new one is believed only in what was said later.
BOOTS_MAX = 64
#: Of several boots of a source the highest is believed, unless it has said nothing for so long
#: before what another says: then it was none of this source, or is no more.
BELIEVED_S = 300.0
_AGENT = "/agents/"
#: Before all that can be said.
_NEVER_S = -1e12
_ENDLESS = 2**63


class Verdict(StrEnum):
    """What to do with a message."""

    FRESH = "fresh"
    LATE = "late"  #: Fresh, though later ones were taken before.
    DUPLICATE = "duplicates"
    FORGOTTEN = "forgotten"  #: Older than what is remembered: it may have been taken.


@dataclass(slots=True)
class _Stream:
    since_s: float  #: What was said until then may have been taken before this was known.
    said_s: float = _NEVER_S  #: When the newest of it was said.
    taken: list[list[int]] = field(default_factory=list)  #: [first, last], ascending.
    excused: int = 0  #: Of those missing, how many nobody shall be asked for.
    resumed: bool = False  #: What is skipped next may have been taken and not recorded.
    #: What has not come below this number is missing. Of an agent it is the highest that came as
    #: telemetry: events are read before it, whatever was said between them.
    floor: int = -1
    counted: int = -1  #: Up to here it was counted what is missing.

    @property
    def top(self) -> int:
        """The highest number taken; -1 if none."""
        return self.taken[-1][1] if self.taken else -1

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Give what is missing, but what was left out: the first number of each, and how many."""
        top = -1
        for first, last in self.taken:
            if 0 < first - top - 1 <= JUMP_MAX:
                yield top + 1, first - top - 1
            top = last

    def count(self) -> int:
        return sum(count for _, count in self.gaps())

    def lacks(self, above: int = -1) -> int:
        """Count what is missing between a number and the floor."""
        found = 0
        for first, count in self.gaps():
            found += max(0, min(first + count, self.floor) - max(first, above + 1))
        return found

    def take(self, number: int) -> Verdict:
        taken = self.taken
        if number > self.top:
            if taken and number == taken[-1][1] + 1:
                taken[-1][1] = number
            else:
                taken.append([number, number])
                self._join()
            return Verdict.FRESH
        after = bisect_right(taken, [number, _ENDLESS])
        if after and number <= taken[after - 1][1]:
            return Verdict.DUPLICATE
        begins = after > 0 and taken[after - 1][1] == number - 1
        if taken[after][0] == number + 1:
            if begins:
                taken[after - 1][1] = taken.pop(after)[1]
            else:
                taken[after][0] = number
        elif begins:
            taken[after - 1][1] = number
        else:
            taken.insert(after, [number, number])
            self._join()
        return Verdict.LATE

    def _join(self) -> None:
        """Give up what is missing between two ranges, where that is least."""
        if len(self.taken) <= PIECES_MAX:
            return
        between = [second[0] - first[1] for first, second in pairwise(self.taken)]
        index = between.index(min(between))
        self.taken[index][1] = self.taken.pop(index + 1)[1]


class _Shelf:
    """Streams that compete for room with each other alone; the first is who was silent longest."""

    def __init__(self) -> None:
        # A plain dict is slow to find its first again and again.
        self.streams: OrderedDict[tuple[str, int], _Stream] = OrderedDict()
        self.boots: dict[str, list[int]] = {}  #: By source; the first is believed.
        self.forgotten_s = _NEVER_S  #: When the newest of what is forgotten was said.

    def since_s(self, source: str) -> float:
        """Give until when what an unknown boot of a source said may have been taken."""
        known = [self.streams[source, boot].since_s for boot in self.boots.get(source, ())]
        return max(self.forgotten_s, *known) if known else self.forgotten_s

    def add(self, source: str, bootid: int, stream: _Stream) -> None:
        """Put a stream last; forget one if there are too many."""
        boots = self.boots.setdefault(source, [])
        if len(boots) >= BOOTS_MAX:
            silent = min(boots, key=lambda boot: self.streams[source, boot].said_s)
            gone = self.streams.pop((source, silent))
            boots.remove(silent)
            stream.since_s = max(stream.since_s, gone.since_s, gone.said_s)
        boots.append(bootid)
        self.streams[source, bootid] = stream
        if len(self.streams) > SOURCES_MAX:
            (name, boot), gone = self.streams.popitem(last=False)
            self.forgotten_s = max(self.forgotten_s, gone.since_s, gone.said_s)
            self.boots[name].remove(boot)
            if not self.boots[name]:
                del self.boots[name]

    def believe(self, source: str, bootid: int, stream: _Stream) -> None:
        """Note which boot of a source speaks."""
        boots = self.boots[source]
        silent_s = self.streams[source, boots[0]].said_s + BELIEVED_S
        if bootid > boots[0] or stream.said_s > silent_s:
            boots.remove(bootid)
            boots.insert(0, bootid)


class Dedupe:
    """Remembers what was taken from each source."""

    def __init__(self) -> None:
        """Begin with nothing taken."""
        self._agents, self._others = _Shelf(), _Shelf()
        #: Numbers skipped so far, whether or not they came later; those that a journal does not
        #: keep among them, if what was taken is read from one.
        self.gaps = 0

    def _shelf(self, source: str) -> _Shelf:
        return self._agents if source.startswith(_AGENT) else self._others

    def take(
        self, source: str, bootid: int, sequence: int, said_s: float, *, telemetry: bool = False
    ) -> Verdict:
        """Judge a message and, if it is new, mark it taken.

        Args:
            source: Who says it.
            bootid: Its boot.
            sequence: The number of the message in this boot.
            said_s: When it was said, by the source's clock, but not after it was heard, in seconds
                since the Unix epoch.
            telemetry: Whether it came by the topic that is read after the others.
        """
        shelf = self._shelf(source)
        stream = shelf.streams.get((source, bootid))
        if stream is None:
            since_s = shelf.since_s(source)
            if said_s <= since_s:
                return Verdict.FORGOTTEN
            stream = _Stream(since_s, resumed=since_s > _NEVER_S)
            shelf.add(source, bootid, stream)
        else:
            shelf.streams.move_to_end((source, bootid))
        if said_s > stream.said_s:
            stream.said_s = said_s
        if shelf.boots[source][0] != bootid:
            shelf.believe(source, bootid, stream)
        if said_s <= stream.since_s:
            return Verdict.FORGOTTEN
        if not stream.resumed and stream.taken and stream.taken[-1][1] == sequence - 1:
            stream.taken[-1][1] = sequence  # as most are
            verdict = Verdict.FRESH
        else:
            verdict = stream.take(sequence)
            if verdict is Verdict.LATE:
                stream.excused = min(stream.excused, stream.count())
            elif verdict is Verdict.FRESH and stream.resumed:
                stream.excused, stream.resumed = stream.count(), False
                stream.counted = sequence
        if telemetry or shelf is self._others:
            self._raise(stream, sequence)
        return verdict

    def _raise(self, stream: _Stream, sequence: int) -> None:
        """Take what has not come below a number for missing, and count it."""
        stream.floor = max(stream.floor, sequence)
        if stream.floor > stream.counted:
            self.gaps += stream.lacks(stream.counted)
            stream.counted = stream.floor

    def forgotten_s(self, source: str) -> float:
        """Give until when what such a source said is not remembered, if it is not known itself."""
        return self._shelf(source).since_s(source)

    def boot(self, source: str) -> int | None:
        """Give the boot of the source that is believed; None: none was heard."""
        boots = self._shelf(source).boots.get(source)
        return None if boots is None else boots[0]

    def missing(self, source: str) -> int:
        """Count the numbers of the boot that is believed that have not come and are not excused."""
        boot, streams = self.boot(source), self._shelf(source).streams
        stream = None if boot is None else streams.get((source, boot))
        return 0 if stream is None else max(0, stream.lacks() - stream.excused)

    def excuse(self) -> None:
        """Ask nobody for what is missing now: the journal does not keep all that was taken."""
        for shelf in (self._agents, self._others):
            for stream in shelf.streams.values():
                stream.excused, stream.resumed = stream.count(), True
                stream.counted = stream.top

    def forgive(self, source: str, bootid: int, sequence: int) -> None:
        """Ask nobody for what is missing before a message that said again all that matters."""
        stream = self._shelf(source).streams.get((source, bootid))
        if stream is not None:
            stream.excused = sum(count for first, count in stream.gaps() if first < sequence)

    def to_dict(self) -> dict[str, Any]:
        """Write what was taken by source, for a snapshot; and under no name what was forgotten."""
        found: dict[str, Any] = {"": [self._agents.forgotten_s, self._others.forgotten_s]}
        for shelf in (self._agents, self._others):
            for (source, bootid), one in sorted(shelf.streams.items(), key=lambda item: item[0]):
                taken = [list(piece) for piece in one.taken]
                found.setdefault(source, []).append([bootid, one.since_s, one.said_s, taken])
        return found

    def load(self, document: dict[str, Any]) -> None:
        """Read what `to_dict` wrote.

        Raises:
            TypeError, ValueError: something else wrote it.
        """
        streams = []
        for source, found in document.items():
            if source:
                streams += [
                    (said_s, source, bootid, since_s, taken)
                    for bootid, since_s, said_s, taken in found
                ]
            else:
                self._agents.forgotten_s, self._others.forgotten_s = map(float, found)
        for said_s, source, bootid, since_s, taken in sorted(streams):
            stream, shelf = _Stream(since_s, said_s, taken), self._shelf(source)
            shelf.add(source, bootid, stream)
            shelf.believe(source, bootid, stream)
