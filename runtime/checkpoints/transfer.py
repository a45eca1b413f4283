"""Rate limit, progress and cancellation of transfers to and from a store."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from runtime.checkpoints.errors import CheckpointError

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Transfer:
    """How far a commit or a fetch is."""

    done_bytes: int  #: Bytes of the checkpoint that are there and verified.
    total_bytes: int  #: Bytes of the whole checkpoint.
    file: str  #: The file that the newest part of it is of.
    moved_bytes: int  #: Bytes of it that this call moved; the others were there already.


Progress = Callable[[Transfer], None]


@dataclass(slots=True)
class Traffic:
    """Totals of the transfers of a store in one direction."""

    done: int = 0  #: Commits or fetches that succeeded, repeated ones too.
    failed: int = 0  #: Those that did not, stopped ones too.
    moved_bytes: int = 0
    under_way: "list[TransferFlow]" = field(default_factory=list)

    @property
    def left_bytes(self) -> int:
        """Bytes that the transfers under way still have to move."""
        return sum(flow.left_bytes for flow in tuple(self.under_way))

    @contextmanager
    def counting(self, flow: "TransferFlow") -> Iterator["TransferFlow"]:
        """Count a transfer."""
        self.under_way.append(flow)
        try:
            yield flow
        except BaseException:
            self.failed += 1
            raise
        else:
            self.done += 1
        finally:
            self.under_way.remove(flow)
            self.moved_bytes += flow.moved_bytes


class TokenBucket:
    """A token bucket, one token for each byte, that all transfers of a store share.

    It holds one part: the first transfer goes at once, the next ones wait for new tokens.
    """

    def __init__(
        self,
        mib_per_s: float | None,
        monotonic_s: Callable[[], float] = time.monotonic,  # noqa: TID251
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """Limit to `mib_per_s`, None for no limit.

        Raises:
            ValueError: the rate is not positive.
        """
        if mib_per_s is not None and not (mib_per_s > 0.0 and math.isfinite(mib_per_s)):
            raise ValueError(f"rate_mib_per_s is {mib_per_s}; give a positive number, or none")
        self.mib_per_s = mib_per_s
        self._monotonic_s = monotonic_s
        self._wait = wait
        self._lock = threading.Lock()
        self._paid_at_s = -math.inf

    def take(self, size_bytes: int, stop: threading.Event) -> bool:
        """Wait until so many bytes may flow; False at once when stopped."""
        if self.mib_per_s is None:
            return not stop.is_set()
        with self._lock:
            begin_s = max(self._paid_at_s, self._monotonic_s())
            self._paid_at_s = begin_s + size_bytes / (self.mib_per_s * MIB)
        while (left_s := begin_s - self._monotonic_s()) > 0.0:
            if self._wait(stop, left_s):
                break
        return not stop.is_set()


class TransferFlow:
    """The progress of one commit or fetch."""

    def __init__(
        self,
        rate: TokenBucket,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._rate = rate
        self._progress = progress
        self._stop = threading.Event() if stop is None else stop
        #: Set once a part of it failed: the others give up.
        self.failed = threading.Event()
        self._lock = threading.Lock()
        self._done_bytes = 0
        #: Bytes that this call moved.
        self.moved_bytes = 0
        #: Bytes of the whole checkpoint.
        self.total_bytes = 0

    @property
    def left_bytes(self) -> int:
        """Bytes that are not there yet."""
        return self.total_bytes - self._done_bytes

    def at_once(self, most: int) -> int:
        """How many parts to move at a time, if the store takes so many: one where a rate is set.

        Several would gain nothing there, and let other transfers wait for all of them.
        """
        return most if self._rate.mib_per_s is None else 1

    def take(self, size_bytes: int = 0) -> None:
        """Wait until so many bytes may flow.

        Raises:
            CheckpointError: it was stopped, or another part failed.
        """
        if self.failed.is_set() or not self._rate.take(size_bytes, self._stop):
            raise CheckpointError("stopped; the same call again goes on from here")

    def moved(self, size_bytes: int) -> None:
        """Count a part that was moved, from any thread."""
        with self._lock:
            self.moved_bytes += size_bytes

    def done(self, size_bytes: int, file: str) -> None:
        """Report that a part is there, and all before it."""
        self._done_bytes += size_bytes
        if self._progress is not None:
            self._progress(Transfer(self._done_bytes, self.total_bytes, file, self.moved_bytes))
