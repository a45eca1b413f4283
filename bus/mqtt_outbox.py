"""What an edge agent has said and Kafka does not hold yet: a window, sent again until confirmed.

The broker's word is not enough: it may lose what it took. A message leaves the window when a
bridge has named it; what nobody names is sent again, so some arrive twice and none is lost.
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.clock import Clock, Waiter
from bus.contract import BusError
from bus.wire import Client, LinkDown, Outgoing
from schemas.horizon import Range

#: What is unconfirmed for so long is sent again.
RESEND_S = 15.0
#: If no bridge had subscribed when the broker took them, the oldest of them is sent again after so
#: long, and the others once one has: as many as a window holds each second would be all that a
#: narrow link carries while there is no bridge.
UNHEARD_S = 1.0
#: Without a connection for so long, whoever publishes is told.
DOWN_S = 30.0
#: How often the two are looked at.
_LOOK_S = 1.0

#: Boot and sequence number, as a horizon names them; of letters, which none names, boot -1.
Place = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Batch:
    """What one call published."""

    left: int
    #: Told when nothing is left, or when it failed.
    ended: Waiter
    error: BaseException | None = None
    entries: list["_Entry"] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Entry:
    place: Place
    outgoing: Outgoing
    batch: _Batch
    #: Its place among all that were sent for the first time.
    number: int = 0
    sent_s: float = 0.0
    unheard: bool = False  #: The broker took it, and no bridge had subscribed.


class Outbox:
    """Sends batches in order, none more than `window` messages after an unconfirmed one."""

    def __init__(self, client: Client, window: int, clock: Clock) -> None:
        """Send over `client`; wait by `clock`, the one that the connection goes by."""
        self._client, self._clock = client, clock
        self._window = window
        self._waiting: deque[_Entry] = deque()
        self._sent: dict[Place, _Entry] = {}
        self._batches: dict[_Batch, None] = {}
        self._letters = 0
        self._numbers = 0
        self._down_since_s: float | None = None
        self._looked_s = -math.inf

    @property
    def unconfirmed(self) -> int:
        """How many messages were sent and not confirmed."""
        return len(self._sent)

    async def send(self, messages: Sequence[tuple[Place | None, Outgoing]]) -> None:
        """Return when all are confirmed; a message without place is, by the broker.

        If it fails, or the caller is cancelled, none of them is sent again.

        Raises:
            LinkDown: there was no connection for `DOWN_S`.
            Refused: the broker does not take one of them.
        """
        batch = _Batch(len(messages), self._clock.waiter())
        for place, outgoing in messages:
            if place is None:
                self._letters += 1
                place = (-1, self._letters)
            batch.entries.append(_Entry(place, outgoing, batch))
        self._batches[batch] = None
        self._waiting.extend(batch.entries)
        try:
            self._pump()
            while batch.left and batch.error is None:
                if not await batch.ended.wait(self._clock.now_s() + _LOOK_S):
                    self._look()
            if batch.error is not None:
                raise batch.error
        finally:
            del self._batches[batch]
            if not self._batches:
                self._down_since_s = None
            if batch.left:
                self._forget(batch)

    def opened(self) -> None:
        """Send all that is unconfirmed again: a new connection knows nothing of the last one's."""
        for entry in list(self._sent.values()):
            self._send(entry)
        self._pump()

    def confirm(self, boot: int, stored: Sequence[Range]) -> None:
        """Let go of what Kafka holds."""
        for part in stored:
            if part.last - part.first < len(self._sent):
                places = [(boot, number) for number in range(part.first, part.last + 1)]
            else:  # as many numbers as it likes may be named
                places = [p for p in self._sent if p[0] == boot and part.first <= p[1] <= part.last]
            for place in places:
                self._confirmed(self._sent.get(place))
        self._pump()

    def _confirmed(self, entry: _Entry | None) -> None:
        if entry is None or self._sent.get(entry.place) is not entry:
            return  # long confirmed, or given up
        del self._sent[entry.place]
        entry.batch.left -= 1
        if not entry.batch.left:
            entry.batch.ended.notify()

    def _pump(self) -> None:
        """Send what waits, as far as the window lets it."""
        while self._waiting and self._client.connected and self._may_follow(self._waiting[0]):
            entry = self._waiting.popleft()
            if entry.place in self._sent:
                self._fail(entry.batch, BusError(_TWICE.format(*entry.place)))
            elif entry.batch.error is None:
                self._numbers += 1
                entry.number = self._numbers
                self._sent[entry.place] = entry
                self._send(entry)

    def _may_follow(self, entry: _Entry) -> bool:
        """Whether an entry keeps near the oldest unconfirmed one, and to its boot.

        Not the number of unconfirmed ones counts but how far they are apart: of two bridges one
        may hang while the other goes on. And of a source only two boots are remembered.
        """
        if not self._sent:
            return True
        oldest = next(iter(self._sent.values()))
        boot = entry.place[0]
        if boot >= 0 and any(place[0] not in (boot, -1) for place in self._sent):
            return False
        return self._numbers - oldest.number + 1 < self._window

    def _send(self, entry: _Entry) -> None:
        entry.sent_s, entry.unheard = self._clock.now_s(), False
        try:
            future = self._client.send(entry.outgoing)
        except BusError as error:
            self._failed(entry, error)
        else:
            future.add_done_callback(lambda done: self._answered(entry, done))

    def _answered(self, entry: _Entry, answer: "asyncio.Future[bool]") -> None:
        """Take the broker's word."""
        error = answer.exception()
        if error is None:
            entry.unheard = not answer.result()
            if not entry.unheard:
                self._heard(entry)
        else:
            self._failed(entry, error)

    def _heard(self, entry: _Entry) -> None:
        """Send again what nobody had heard: now there is a bridge."""
        if entry.place[0] < 0:
            self._confirmed(entry)
            self._pump()
        for one in [one for one in self._sent.values() if one.unheard]:
            self._send(one)

    def _failed(self, entry: _Entry, error: BaseException) -> None:
        """Give up what is refused; without connection, `opened` sends it again."""
        if not isinstance(error, LinkDown):
            self._fail(entry.batch, error)

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        if batch.error is None:
            batch.error = error
            batch.ended.notify()

    def _forget(self, batch: _Batch) -> None:
        for entry in batch.entries:
            if self._sent.get(entry.place) is entry:
                del self._sent[entry.place]
        self._waiting = deque(entry for entry in self._waiting if entry.batch is not batch)
        self._pump()

    # --- as time passes ---

    def _look(self) -> None:
        now_s = self._clock.now_s()
        if 0.0 <= now_s - self._looked_s < _LOOK_S:
            return  # another of many callers did
        self._looked_s = now_s
        if self._client.connected:
            self._down_since_s = None
            asks = next((entry for entry in self._sent.values() if entry.unheard), None)
            for entry in list(self._sent.values()):
                if not _within(UNHEARD_S if entry is asks else RESEND_S, entry.sent_s, now_s):
                    self._send(entry)
        elif self._down_since_s is None:
            self._down_since_s = now_s
        elif not _within(DOWN_S, self._down_since_s, now_s):
            for batch in self._batches:
                self._fail(batch, LinkDown(f"no link for {DOWN_S:.0f} s: {self._client.problem}"))


def _within(seconds: float, since_s: float, now_s: float) -> bool:
    """Whether less has passed; a clock that was set back must not make anybody wait for it."""
    return 0.0 <= now_s - since_s < seconds


_TWICE = "boot {0} sequence {1} is on its way already; give each message a number of its own"
