"""How much one subject may ask for: reads and writes a second, seeks, streams and waits at a time.

Who signs in is no subject yet; an address is counted then.
"""

import asyncio
import contextlib
import ipaddress
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from bus.clock import Clock
from gateway.problems import later

READS_PER_S = 20.0
READS_BURST = 60.0
#: Reads of a subject that are worked on at once; others of it wait for their turn.
READS_AT_ONCE = 4
WRITES_PER_S = 5.0
WRITES_BURST = 30.0
SEEKS_AT_ONCE = 4
STREAMS_EACH = 8
STREAMS_IN_ALL = 2000
#: Requests whose answers wait for the scheduler; of more, the answer comes at once.
WAITS_EACH = 8
WAITS_IN_ALL = 500
#: Of one address, which a whole office may share.
SIGN_INS_PER_S = 2.0
SIGN_INS_BURST = 60.0
#: Subjects whose allowance is remembered; one forgotten begins with a full one.
_SUBJECTS = 10_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


@dataclass(slots=True)
class Limits:
    """The allowances of all subjects, by name."""

    clock: Clock
    streams_in_all: int = STREAMS_IN_ALL
    waits_in_all: int = WAITS_IN_ALL
    _reads: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)
    _writes: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)
    _sign_ins: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)
    _turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    _reading: Counter[str] = field(default_factory=Counter)
    _waits: Counter[str] = field(default_factory=Counter)
    _seeks: Counter[str] = field(default_factory=Counter)
    _streams: Counter[str] = field(default_factory=Counter)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._streams.total()

    def read(self, subject: str) -> None:
        """Count a read.

        Raises:
            Problem: 429, it reads faster than it may.
        """
        self._take(
            self._reads, subject, READS_PER_S, READS_BURST,
            "reads a second; ask again after Retry-After, ask for more rows at once, or follow "
            "/api/v1/stream instead of polling",
        )  # fmt: skip

    def write(self, subject: str) -> None:
        """Count a request that changes something.

        Raises:
            Problem: 429, it asks for more than it may.
        """
        self._take(
            self._writes, subject, WRITES_PER_S, WRITES_BURST,
            "requests a second that change something; nothing of this one was done: ask again "
            "after Retry-After",
        )  # fmt: skip

    def sign_in(self, address: str) -> None:
        """Count a step of signing in that comes from an address.

        Raises:
            Problem: 429, too many come from there.
        """
        self._take(
            self._sign_ins, _network(address), SIGN_INS_PER_S, SIGN_INS_BURST,
            "sign-ins a second come from your address; open /login again after Retry-After",
        )  # fmt: skip

    def _take(
        self, buckets: OrderedDict[str, _Bucket], subject: str, rate: float, burst: float, of: str
    ) -> None:
        """Take one from what a subject has left; if nothing is, say `of` what it wants too much."""
        now_s = self.clock.now_s()
        bucket = buckets.pop(subject, None) or _Bucket(burst, now_s)
        buckets[subject] = bucket  # the newest is the last
        while len(buckets) > _SUBJECTS:
            buckets.popitem(last=False)
        passed_s = max(0.0, now_s - bucket.at_s)
        bucket.left = min(burst, bucket.left + rate * passed_s)
        bucket.at_s = now_s
        if bucket.left < 1.0:
            raise later(f"more than {rate:.0f} {of}", (1.0 - bucket.left) / rate, 429)
        bucket.left -= 1.0

    @contextlib.asynccontextmanager
    async def turn(self, subject: str) -> AsyncIterator[None]:
        """Wait until few reads of a subject are worked on, and be one of them.

        Reads that are let in at once take their turns one after another: of many large ones of one
        subject, all would come before another's small one.
        """
        turns = self._turns.setdefault(subject, asyncio.Semaphore(READS_AT_ONCE))
        try:
            with _counted(self._reading, subject):
                async with turns:
                    yield
        finally:
            if not self._reading[subject]:
                self._turns.pop(subject, None)

    @contextlib.contextmanager
    def seek(self, subject: str) -> Iterator[None]:
        """Hold one of the seeks that a subject may have under way.

        Raises:
            Problem: 429, it has as many as it may.
        """
        if self._seeks[subject] >= SEEKS_AT_ONCE:
            raise later(
                f"{SEEKS_AT_ONCE} past moments are being looked up for you already; ask again once "
                "one of them is answered",
                1.0,
                429,
            )
        with _counted(self._seeks, subject):
            yield

    @contextlib.contextmanager
    def wait(self, subject: str) -> Iterator[bool]:
        """Hold one of the waits for the scheduler; tell whether there was one left."""
        if self._waits[subject] >= WAITS_EACH or self._waits.total() >= self.waits_in_all:
            yield False
            return
        with _counted(self._waits, subject):
            yield True

    @contextlib.contextmanager
    def stream(self, subject: str) -> Iterator[None]:
        """Hold one of the streams.

        Raises:
            Problem: 429, the subject, or all together, have as many as there may be.
        """
        if self._streams[subject] >= STREAMS_EACH:
            raise later(f"you have {STREAMS_EACH} streams open already; close one", 5.0, 429)
        if self.streams >= self.streams_in_all:
            raise later(f"{self.streams_in_all} streams are open in all; try later", 30.0, 429)
        with _counted(self._streams, subject):
            yield


def _network(address: str) -> str:
    """Give what one machine has: an address, or, of IPv6, the network of 2**64 of them."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False))


@contextlib.contextmanager
def _counted(counter: Counter[str], name: str) -> Iterator[None]:
    counter[name] += 1
    try:
        yield
    finally:
        counter[name] -= 1
        if not counter[name]:
            del counter[name]
