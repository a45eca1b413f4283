"""Replays the arrivals of a request trace against inference servers, as a tide.

The trace is a CSV with TIMESTAMP, ContextTokens and GeneratedTokens, as Azure publishes it (Azure
LLM inference traces 2023). How long a request takes follows from its tokens; how fast the trace is
replayed, from how many requests are to be in service at the moment.
"""

import csv
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path


@dataclass
class Request:
    gap_s: float  #: after the one before, in the trace.
    service_s: float


def trace(path: Path | None) -> list[Request]:
    """Read a trace; without one, make arrivals up (Poisson, lognormal lengths)."""
    if path is None:
        draw = random.Random(1)  # noqa: S311 - no secret
        return [
            Request(draw.expovariate(2.5), min(2.0, 0.1 + 0.02 * draw.lognormvariate(2.5, 1.0)))
            for _ in range(5000)
        ]
    with path.open() as file:
        rows = list(csv.DictReader(file))
    at_s = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    # The trace stands still for minutes now and then; here the tide is `wanted`'s to make.
    gaps = [0.0, *(min(after - before, 1.0) for before, after in pairwise(at_s))]
    return [
        Request(gap, min(2.0, 0.1 + 0.02 * int(row["GeneratedTokens"])))
        for gap, row in zip(gaps, rows, strict=True)
    ]


@dataclass(frozen=True)
class Served:
    """A request that was answered; moments in seconds since the Unix epoch."""

    began_s: float
    ended_s: float
    port: int

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.began_s


@dataclass
class Load:
    """Sends requests from threads of its own until it is stopped."""

    requests: Sequence[Request]
    ports: Sequence[int]
    wanted: Callable[[float], float]  #: requests in service, by seconds since the beginning.
    latency_target_s: float
    served: list[Served] = field(default_factory=list)
    lost: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0

    def start(self) -> None:
        """Begin when all servers are up."""
        self._open = dict.fromkeys(self.ports, 0)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.stopped.set()
        self._thread.join()

    @property
    def late(self) -> list[Served]:
        return [one for one in self.served if one.latency_s > self.latency_target_s]

    def _run(self) -> None:
        while not all(self._is_up(port) for port in self.ports):
            if self.stopped.wait(0.2):
                return
        self.began = time.monotonic()
        mean_s = sum(one.service_s for one in self.requests) / len(self.requests)
        mean_gap_s = sum(one.gap_s for one in self.requests) / len(self.requests)
        for request in self._forever():
            now_s = time.monotonic() - self.began
            speed = self.wanted(now_s) * mean_gap_s / mean_s
            if self.stopped.wait(request.gap_s / max(speed, 0.01)):
                return
            threading.Thread(target=self._send, args=(request.service_s,), daemon=True).start()

    def _forever(self) -> Iterator[Request]:
        while True:
            yield from self.requests

    @staticmethod
    def _is_up(port: int) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def _send(self, service_s: float) -> None:
        began, began_s, tried = time.monotonic(), time.time(), set[int]()
        while time.monotonic() - began < 30:
            if len(tried) == len(self.ports):  # all are leaving or coming: look again
                tried.clear()
                time.sleep(0.1)
            with self._lock:
                port = min((p for p in self.ports if p not in tried), key=self._open.__getitem__)
                self._open[port] += 1
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request("POST", "/generate", json.dumps({"service_s": service_s}))
                if connection.getresponse().status == 200:
                    ended_s = began_s + time.monotonic() - began
                    self.served.append(Served(began_s, ended_s, port))
                    return
            except (OSError, http.client.HTTPException):
                pass  # it has left, or is not yet there: the next one
            finally:
                with self._lock:
                    self._open[port] -= 1
            tried.add(port)
        self.lost += 1
