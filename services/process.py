"""Runs a service process: start, probes, metrics, and a graceful end.

SIGTERM or SIGINT ends it gracefully, exit code 0; a second one at once.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from bus.contract import BusError
from bus.steady import MACHINE
from runtime.store import StoreError
from schemas.release import release
from services.config import Config
from services.http import HttpServer, as_json, as_metrics
from services.logs import Log, configure
from services.loop_monitor import STUCK_S, LoopMonitor
from services.metrics import AGENTS, Page, RoleName, Sample
from services.secret_files import open_to_all

#: A role's port if `http.port` is not set; agents have none, because there may be many.
PORTS: Mapping[RoleName, int] = {"scheduler": 9464, "bridge": 9465}
#: How often metrics that need a query are refreshed.
REFRESH_S = 2.0
#: The longest graceful end; container engines commonly kill after 30 s.
END_S = 20.0


class Role(Protocol):
    """What a process runs. Everything but `run` and `refresh` is asked from other threads too."""

    async def run(self) -> None:
        """Work until `stop`; return when all that was begun is finished."""
        ...

    def stop(self) -> None:
        """Begin no more, finish what was begun."""
        ...

    async def refresh(self) -> None:
        """Refresh the metrics that need a query."""
        ...

    def problems(self) -> list[str]:
        """Give why it is not ready; empty if it is."""
        ...

    def details(self) -> dict[str, object]:
        """Give more about its state, for the readiness page."""
        ...

    def samples(self) -> Iterable[Sample]:
        """Give the figures for the metrics page."""
        ...


def serve(role: RoleName, name: str, config: Config, make: Callable[[Log], Role]) -> int:
    """Run a role until it is told to end; give the exit code. `make` is called in the loop.

    Raises:
        BusError, StoreError, ValueError: it cannot begin; the text says what to change.
    """
    return asyncio.run(_serve(role, name, config, make))


async def _serve(role: RoleName, name: str, config: Config, make: Callable[[Log], Role]) -> int:
    about = {"cell": config.cell} if role in AGENTS else {}
    log = configure(config.log, role=role, name=name, **about)
    for sentence in config.deprecated:
        log.warning(sentence)
    for sentence in open_to_all(config, role):
        log.warning(sentence)
    running = make(log)
    monitor = LoopMonitor()
    server = _listen(role, name, config, running, monitor)
    log.info("started", version=release(), port=None if server is None else server.port)
    beside = [asyncio.create_task(monitor.run()), asyncio.create_task(_refresh(running, log))]
    try:
        return await _until_told(running, log)
    finally:
        for one in beside:
            one.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        if server is not None:
            server.close()


async def _until_told(role: Role, log: Log) -> int:
    told = asyncio.Event()

    def hear() -> None:
        if told.is_set():
            log.warning("ending at once")
            os._exit(1)
        told.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear)
    work, telling = asyncio.create_task(role.run()), asyncio.create_task(told.wait())
    await asyncio.wait({work, telling}, return_when=asyncio.FIRST_COMPLETED)
    if told.is_set():
        log.info("ending")
        role.stop()
        await asyncio.wait({work}, timeout=END_S)
        if not work.done():
            log.error("ended with work unfinished", waited_s=END_S)
            os._exit(1)  # what hangs would keep the loop from ending, too
    telling.cancel()
    try:
        work.result()
    except (BusError, StoreError, OSError) as error:
        log.error("cannot go on", error=str(error) or type(error).__name__)
        return 1
    except Exception:
        log.exception("ended by a bug")
        return 1
    log.info("ended")
    return 0


async def _refresh(role: Role, log: Log) -> None:
    """Refresh metrics, and log when the role becomes ready or stops being ready."""
    said: set[str] | None = set()  # of this outage; None: it is ready
    steps = 0
    while True:
        off_s = MACHINE.off_s()
        if MACHINE.steps > steps:
            steps = MACHINE.steps
            log.warning("the machine's clock was set; see its time service", off_s=round(off_s, 3))
        try:
            await role.refresh()
        except BusError as error:
            log.debug("figures not refreshed", error=str(error))
        found = role.problems()
        if not found:
            if said is not None:
                log.info("ready")
            said = None
        elif said is None or not said.issuperset(found):
            log.warning("not ready", reasons=found)
            said = {*found, *(said or ())}
        await asyncio.sleep(REFRESH_S)


def _listen(
    role: RoleName, name: str, config: Config, running: Role, monitor: LoopMonitor
) -> HttpServer | None:
    port = PORTS.get(role) if config.http.port is None else config.http.port
    if port is None or port == "off":
        return None

    def samples() -> Iterable[Sample]:
        yield Sample("tidegate_build_info", 1.0, (release(), role))
        yield Sample("tidegate_loop_lag_seconds", monitor.worst_lag_s())
        yield Sample("tidegate_clock_off_seconds", MACHINE.off_s())
        yield Sample("tidegate_clock_steps_total", MACHINE.steps)
        yield from running.samples()

    page = Page(role, samples)

    def stuck() -> list[str]:
        silent_s = monitor.silent_s()
        return [f"the event loop has been stuck for {silent_s:.0f} s"] if silent_s > STUCK_S else []

    def healthy() -> dict[str, object]:
        return {"role": role, "name": name, "reasons": stuck()}

    def ready() -> dict[str, object]:
        about = {"role": role, "name": name, **running.details()}
        return {**about, "reasons": [*stuck(), *running.problems()]}

    def probe(look: Callable[[], dict[str, object]], word: str) -> tuple[int, str, bytes]:
        found = look()
        good = not found["reasons"]
        return as_json(good, {word: good, **found})

    return HttpServer(
        config.http.host,
        port,
        {
            "/healthz": lambda: probe(healthy, "healthy"),
            "/readyz": lambda: probe(ready, "ready"),
            "/metrics": lambda: as_metrics(page.text()),
        },
    )
