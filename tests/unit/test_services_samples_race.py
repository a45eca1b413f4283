"""A scrape while the event loop goes on counting: it has a thread of its own."""

import logging
import sys
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

from bus.clock import SystemClock
from bus.contract import Bus
from scheduler.service_config import ServiceConfig
from services.cell_leadership import CellLeadership
from services.logs import Log


def test_what_is_counted_meanwhile_ends_no_scrape() -> None:
    def no_bus() -> Bus:
        raise AssertionError

    cell = CellLeadership(
        ServiceConfig(cell="c"), no_bus, SystemClock(), None, Log(logging.getLogger())
    )
    counts, asked = Counter[str](), Counter[tuple[str, str]]()
    intake = SimpleNamespace(counts=counts, requests=SimpleNamespace(counts=asked))
    learning = SimpleNamespace(failures=0)
    service: Any = SimpleNamespace(
        intake=intake, invariant_violations=0, learning=learning, leads=False
    )
    cell._before["events"] = cell._asked_before["job.hold", "done"] = 1
    cell.service = service
    over = threading.Event()

    def count() -> None:
        number = 0
        while not over.is_set():
            number += 1
            counts[str(number % 2000)] += 1
            asked["job.hold", str(number % 2000)] += 1
            if not number % 2000:
                counts.clear()
                asked.clear()

    switches_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    counting = threading.Thread(target=count)
    counting.start()
    try:
        for _ in range(300):
            list(cell.samples())
    finally:
        over.set()
        counting.join()
        sys.setswitchinterval(switches_s)
