"""Scrapes the owner's replicas, each in a thread of its own, and keeps the last good reading.

Each has its own thread, so that one that hangs delays no other. No caller waits for a thread.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from runtime.http_client import HttpError, HttpTimeoutError, check_url
from runtime.metering.exposition import MalformedError, parse
from runtime.metering.fetch import fetch
from runtime.metering.rates import CounterHistory
from runtime.metering.reading import NoLoadError, ServerReading, read_page
from runtime.metering.servers import SERVERS, Server, recognise
from runtime.periodic import PeriodicThread, monotonic_s

_ALL_WANTED = frozenset().union(*(server.wanted for server in SERVERS))


@dataclass(frozen=True, slots=True)
class Replica:
    """One server of the owner's: a name for people, its metrics' address, the GPUs it holds."""

    name: str
    url: str
    gpus: int = 1
    #: What its metrics mean; None: recognise it.
    server: Server | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.gpus < 1:
            raise ValueError(f"gpus: {self.name} holds {self.gpus}; give at least one")


@dataclass(frozen=True, slots=True)
class TargetState:
    """What is known of a replica, which is the target of scrapes, now."""

    replica: Replica
    #: The last good reading; None if there has been none.
    reading: ServerReading | None
    #: Since that reading, or since the replica was first looked for.
    age_s: float
    #: Why the last scrape gave nothing; None if it did.
    error: str | None


@dataclass(slots=True)
class ScrapeCounters:
    """Counts of scrapes since the start, by outcome."""

    scrapes: int = 0
    good: int = 0
    timeouts: int = 0
    #: No answer, or another than a page.
    failures: int = 0
    #: A page that cannot be read, or does not say what the load is.
    useless: int = 0
    #: A page with something missing or absurd.
    doubtful: int = 0
    restarts: int = 0


class Scraper:
    """Keeps the last good reading of each replica, and its age."""

    EVERY_S = 5.0

    def __init__(
        self,
        *,
        every_s: float = EVERY_S,
        timeout_s: float = 2.0,
        window_s: float = 60.0,
        steady: Callable[[], float] = monotonic_s,
    ) -> None:
        """Scrape nothing yet.

        Args:
            every_s: Seconds between scrapes of one replica.
            timeout_s: Within which a page must come.
            window_s: Over which rates and latencies are means.
            steady: What ages are read from.
        """
        if timeout_s <= 0:
            raise ValueError("timeout_s: must be positive")
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._window_s = window_s
        self._steady = steady
        self._watches: dict[Replica, _Watch] = {}
        self._lock = threading.Lock()
        self.counters = ScrapeCounters()

    def watch(self, replicas: Sequence[Replica]) -> None:
        """Scrape these from now on, and no others."""
        wanted = dict.fromkeys(replicas)
        for replica in [one for one in self._watches if one not in wanted]:
            self._watches.pop(replica).beat.stop()
        for replica in wanted:
            if replica not in self._watches:
                watch = _Watch(replica, self._steady(), CounterHistory(self._window_s))
                work = partial(self._scrape, watch)
                watch.beat = PeriodicThread(work, self._every_s, f"scrape {replica.name}")
                self._watches[replica] = watch

    def targets(self) -> list[TargetState]:
        """Give what is known of each replica, in the order in which they were given."""
        now_s = self._steady()
        with self._lock:
            return [
                TargetState(replica, watch.reading, now_s - watch.since_s, watch.error)
                for replica, watch in self._watches.items()
            ]

    def close(self) -> None:
        """Scrape no more."""
        self.watch(())

    # --- in the threads ---

    def _scrape(self, watch: "_Watch") -> None:
        error: str | None = None
        reading: ServerReading | None = None
        outcome = "good"
        url = watch.replica.url
        try:
            text = fetch(url, self._timeout_s)
            reading = self._read(watch, text)
        except HttpTimeoutError as failure:
            outcome, error = "timeouts", str(failure)
        except HttpError as failure:
            outcome, error = "failures", str(failure)
        except (MalformedError, NoLoadError) as failure:
            outcome, error = "useless", f"{url}: {failure}"
        with self._lock:
            counters = self.counters
            counters.scrapes += 1
            setattr(counters, outcome, getattr(counters, outcome) + 1)
            watch.error = error
            if reading is not None:
                watch.reading, watch.since_s = reading, self._steady()
                counters.doubtful += bool(reading.doubts)
                counters.restarts += reading.restarted

    def _read(self, watch: "_Watch", text: str) -> ServerReading:
        fixed = watch.replica.server
        page = parse(text, _ALL_WANTED if fixed is None else fixed.wanted)
        server = fixed or recognise(page.names)
        if server is None:
            known = ", ".join(one.name for one in SERVERS)
            raise NoLoadError(
                f"not a page of {known}; say agent.load.mapping for this kind of server"
            )
        if server.name != watch.kind:  # another server at the same address: other counters
            watch.kind, watch.history = server.name, CounterHistory(self._window_s)
        try:
            return read_page(server, page, self._steady(), watch.history)
        except OverflowError:  # each is a number, and their sum is none
            raise NoLoadError("its figures are larger than those of any server") from None


@dataclass(slots=True)
class _Watch:
    replica: Replica
    #: When the last good reading was taken, or the replica first looked for.
    since_s: float
    history: CounterHistory
    beat: PeriodicThread = field(init=False)
    kind: str | None = None
    reading: ServerReading | None = None
    error: str | None = None
