"""Running a demo's services until its day is over, and painting what they do meanwhile."""

import asyncio
import signal

from rich.live import Live

from bus.clock import PacedClock
from console.fleet import Fleet
from console.live import LiveView
from console.output import out


async def drive(fleet: Fleet, clock: PacedClock, end_s: float, view: LiveView | None) -> bool:
    """Run all services until the end or an interrupt; tell which."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    services = [asyncio.create_task(fleet.scheduler.run())]
    services += [asyncio.create_task(agent.run()) for agent in fleet.agents]
    tenants = asyncio.create_task(fleet.tenants.run())
    timekeeper = asyncio.create_task(clock.run_until(end_s))
    stop = asyncio.create_task(interrupted.wait())
    painter = None if view is None else asyncio.create_task(paint(view, fleet))
    watched = {*services, tenants, timekeeper, stop}
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
        for task in (*services, tenants, timekeeper, stop, *([painter] if painter else [])):
            task.cancel()
        await asyncio.gather(
            *services,
            tenants,
            timekeeper,
            stop,
            *([painter] if painter else []),
            return_exceptions=True,
        )


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
