"""Playing a demo: its services on a paced clock until the day is over, painted meanwhile."""

import asyncio
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.live import Live

from bus.clock import PacedClock
from bus.contract import BusError
from bus.options import KafkaOptions, MqttOptions
from bus.sqlite import SqliteBus
from console.output import out, say
from demo.claim import Run, agents_dir, finish
from demo.fleet import Fleet, build_fleet
from demo.live import LiveView
from demo.result import result_of, said_on
from explain.moments import day_clock
from scheduler.journal import recover
from schemas.topics import CELLS, JOURNAL
from simulator.scenario import Scenario

#: Simulated time for what came after the end of a run.
_EXTRA_S = 60.0


async def play(
    path: Path, run: Run, scenario: Scenario, seconds: float, live: bool
) -> dict[str, Any] | None:
    """Run to the end; None if interrupted before."""
    begin_s = await _last_moment(path, run)
    if run.start_s < begin_s < run.end_s:
        said = day_clock(begin_s, run.start_s)
        say(f"{path} has a run that was stopped: it goes on at {said}.")
    clock = PacedClock(begin_s, _pace(run, seconds))
    until_s = run.end_s
    if clock.now_s() >= until_s:
        until_s = clock.now_s() + _EXTRA_S
    bus = SqliteBus.open(path, clock, durability="process_crash")
    view = LiveView(f"Tidegate · {run.policy}", run.start_s, until_s)
    try:
        fleet = build_fleet(
            scenario,
            bus=bus,
            clock=clock,
            start_s=run.start_s,
            agents_dir=agents_dir(path),
            policy=run.policy,
            failures_per_gpu_hour=run.failures_per_gpu_hour,
            watch=view.note if live else None,
        )
        finished = await drive(fleet, clock, until_s, view if live else None)
        if not finished:
            return None
        result = await result_of(bus, fleet)
        finish(path, run, result, await said_on(bus))
        return result
    finally:
        await bus.close()


async def play_on_brokers(
    places: tuple[KafkaOptions, MqttOptions | None],
    run: Run,
    scenario: Scenario,
    seconds: float,
    live: bool,
    quiet: bool,
) -> tuple[str, dict[str, Any] | None]:
    """Run to the end; give the address of the log, and the result unless interrupted before."""
    try:
        from demo.brokers import begin, carriers
    except ModuleNotFoundError as error:
        raise BusError(f"--bus kafka: {error}; pip install 'tidegate[console]'") from error
    place = await begin(*places)
    introduce(scenario, quiet)
    name = place.kafka.address
    clock = PacedClock(run.start_s, _pace(run, seconds))
    view = LiveView(f"Tidegate · {run.policy}", run.start_s, run.end_s)
    with TemporaryDirectory() as folder:
        async with carriers(place, clock) as made:
            fleet = build_fleet(
                scenario,
                bus=made.bus,
                clock=clock,
                start_s=run.start_s,
                agents_dir=Path(folder),
                policy=run.policy,
                failures_per_gpu_hour=run.failures_per_gpu_hour,
                watch=view.note if live else None,
                link=made.link,
            )
            if not await drive(fleet, clock, run.end_s, view if live else None):
                return name, None
            result = await result_of(made.bus, fleet)
    return name, {**result, "bus": "kafka", "mqtt": place.mqtt is not None, "log": name}


def _pace(run: Run, seconds: float) -> float | None:
    return run.hours * 3600.0 / seconds if seconds > 0 else None


async def _last_moment(path: Path, run: Run) -> float:
    """Find where a log stopped: time goes on from what its scheduler said last.

    What others wrote does not count: a single record from the far future would end the day.
    """
    if not path.exists():  # noqa: ASYNC240 - nothing else runs yet
        return run.start_s
    bus = SqliteBus.open_readonly(path, PacedClock(run.start_s, None))
    try:
        newest_s = run.start_s
        for topic in (JOURNAL, CELLS):
            record = await bus.last(topic.name)
            newest_s = newest_s if record is None else max(newest_s, record.time_s)
        found = await recover(bus, "default")
        return max(newest_s, found.state.now_s)
    finally:
        await bus.close()


def introduce(scenario: Scenario, quiet: bool) -> None:
    """Say what a scenario leaves out or changes, unless nobody is to be told."""
    for note in () if quiet else scenario.notes:
        out().print(f"[dim]{note}[/dim]")


async def drive(fleet: Fleet, clock: PacedClock, end_s: float, view: LiveView | None) -> bool:
    """Run all services until the end or an interrupt; tell which."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    services = [asyncio.create_task(fleet.scheduler.run())]
    services += [asyncio.create_task(agent.run()) for agent in fleet.agents]
    tenants = asyncio.create_task(fleet.tenants())
    timekeeper = asyncio.create_task(clock.run_until(end_s))
    stop = asyncio.create_task(interrupted.wait())
    watched = {*services, tenants, timekeeper, stop}
    running = [*watched, *([] if view is None else [asyncio.create_task(paint(view, fleet))])]
    try:
        while not (timekeeper.done() or stop.done()):
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a service that failed ends the demo with its error
            watched -= done
        finished = timekeeper.done()
        timekeeper.cancel()
        stop.cancel()
        tenants.cancel()
        await asyncio.gather(*(agent.stop() for agent in fleet.agents))
        fleet.scheduler.stop()
        await asyncio.gather(*services)
        return finished
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def paint(view: LiveView, fleet: Fleet) -> None:
    """Redraw four times a real second; without a terminal, say how far it is now and then."""
    console = out()
    if not console.is_terminal:
        while True:
            await asyncio.sleep(5.0)
            if hasattr(fleet.scheduler, "engine"):
                console.print(view.progress(fleet.scheduler.engine.state))
    while True:
        size = console.size
        with Live(console=console, screen=False, auto_refresh=False, transient=True) as screen:
            while console.size == size:
                if hasattr(fleet.scheduler, "engine"):
                    screen.update(view.render(fleet.scheduler.engine.state), refresh=True)
                await asyncio.sleep(0.25)
        # Lines of the old size wrap in the new one, where nobody would overwrite them.
        console.clear()
