"""`tidegate demo`: a simulated day on the embedded default, watched live, replayable afterwards."""

import asyncio
import gc
import math
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from bus.clock import PacedClock
from bus.sqlite import SqliteBus
from console.claim import START_S, Finished, Run, agents_dir, claim, finish
from console.fleet import Fleet, build_fleet
from console.live import LiveView
from console.output import emit_json, fail, out, say
from console.summary import summary
from scheduler.core.state import ClusterState, state_hash
from scheduler.core.transitions import TERMINAL, JobState
from scheduler.journal import recover
from scheduler.policies.registry import make_policy
from schemas.topics import ALL_TOPICS, CELLS, EVENTS, JOURNAL, TELEMETRY
from simulator.scenario import Scenario
from simulator.workload import WorkloadError

__all__ = ["START_S", "Run", "claim", "demo", "figures", "play"]

DEFAULT_LOG = "tidegate-demo.db"
#: Simulated time for what came after the end of a run.
_EXTRA_S = 60.0


def demo(
    hours: Annotated[float, typer.Option(help="Simulated hours.", min=0.1, max=24 * 31)] = 24.0,
    seconds: Annotated[
        float, typer.Option(help="Real seconds it shall take, if the machine can.", min=0.0)
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of jobs, tides and faults.", min=0)] = 7,
    log: Annotated[
        Path | None,
        typer.Option(help=f"Where to record it. [default: {DEFAULT_LOG}; the last one is kept]"),
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(help="A trace (CSV) instead of generated jobs.")
    ] = None,
    throughputs: Annotated[
        Path | None, typer.Option(help="Folder of throughput tables for the trace's models.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Scheduling policy.")] = "tide",
    failures: Annotated[
        float, typer.Option(help="Worker failures per GPU and hour.", min=0.0, max=10.0)
    ] = 1e-3,
    live: Annotated[bool, typer.Option(help="Draw the fleet while it runs.")] = True,
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the result as JSON; - is standard output.")
    ] = None,
) -> None:
    """Watch a day: idle inference and edge GPUs lent to training, and back before their users.

    Scheduler, agents with simulated GPUs and tenants run as separate services on one SQLite bus.
    A log that was not finished goes on where it stopped.

    Example: tidegate demo --hours 24 --seconds 40 --seed 7 --log run.db
    """
    try:
        make_policy(policy)
    except ValueError as error:
        fail(f"--policy: {error}")
    if throughputs is not None and workload is None:
        fail("--throughputs: needs --workload, the trace whose models it describes.")
    if not math.isfinite(hours) or not math.isfinite(seconds):
        fail("--hours and --seconds must be finite numbers.")
    run = Run(
        hours,
        seed,
        policy,
        None if workload is None else str(workload.resolve()),
        None if throughputs is None else str(throughputs.resolve()),
        failures,
    )
    path = log or Path(DEFAULT_LOG)
    try:
        scenario = run.scenario()
    except WorkloadError as error:
        fail(str(error))
    quiet = json_path == "-"
    with claim(path, run, anew=log is None) as held:
        result = _again(path, held.finished)
        if result is None:
            if not quiet:
                for note in scenario.notes:
                    out().print(f"[dim]{note}[/dim]")
            result = asyncio.run(play(path, run, scenario, seconds, live and not quiet))
    if result is None:
        out().print(f"Stopped. The same command goes on from here: its log is {path}.")
        raise typer.Exit(0)
    if json_path is not None:
        emit_json(result, json_path)
    if not quiet:
        out().print(summary(result))
        out().print(f"Replay it, decision by decision:  [bold]tidegate replay {path}[/bold]")
    if result["invariant_violations"]:
        raise typer.Exit(1)


def _again(path: Path, finished: Finished | None) -> dict[str, Any] | None:
    """Give the result of a run that is over, unless something came since."""
    if finished is None or not path.exists():
        return None
    waiting = asyncio.run(_events(path)) - finished.events
    if waiting <= 0:
        say(f"This run is finished; here is what came of it again. {path} is as it was.")
        return finished.result
    events = "An event has" if waiting == 1 else f"{waiting} events have"
    say(f"{events} come since this run was finished: it goes on until they are taken up.")
    return None


async def _events(path: Path) -> int:
    bus = SqliteBus.open_readonly(path, PacedClock(START_S, None))
    try:
        return await bus.end(EVENTS.name)
    finally:
        await bus.close()


async def play(
    path: Path, run: Run, scenario: Scenario, seconds: float, live: bool
) -> dict[str, Any] | None:
    """Run to the end; None if interrupted before."""
    # Messages by the thousand live for a moment; looking through them for cycles all the time
    # took a third of what reading them costs.
    gc.set_threshold(50_000, 20, 20)
    pace = run.hours * 3600.0 / seconds if seconds > 0 else None
    clock = PacedClock(await _last_moment(path), pace)
    until_s = run.end_s
    if clock.now_s() >= until_s:
        until_s = clock.now_s() + _EXTRA_S
    bus = SqliteBus.open(path, clock, durability="process_crash")
    view = LiveView(f"Tidegate · {run.policy}", START_S, until_s)
    try:
        fleet = build_fleet(
            scenario,
            bus=bus,
            clock=clock,
            start_s=START_S,
            agents_dir=agents_dir(path),
            policy=run.policy,
            failures_per_gpu_hour=run.failures_per_gpu_hour,
            watch=view.note if live else None,
        )
        finished = await _drive(fleet, clock, until_s, view if live else None)
        if not finished:
            return None
        result = await _result(bus, fleet)
        finish(path, run, result, await bus.end(EVENTS.name))
        return result
    finally:
        await bus.close()


async def _last_moment(path: Path) -> float:
    """Find where a log stopped: time goes on from what its scheduler said last.

    What others wrote does not count: a single record from the far future would end the day.
    """
    if not path.exists():  # noqa: ASYNC240 - nothing else runs yet
        return START_S
    bus = SqliteBus.open_readonly(path, PacedClock(START_S, None))
    try:
        newest_s = START_S
        for topic in (JOURNAL, CELLS):
            end = await bus.end(topic.name)
            async for record in bus.read(topic.name, max(0, end - 1)):
                newest_s = max(newest_s, record.time_s)
        found = await recover(bus, "default")
        return max(newest_s, found.state.now_s)
    finally:
        await bus.close()


async def _drive(fleet: Fleet, clock: PacedClock, end_s: float, view: LiveView | None) -> bool:
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
    painter = None if view is None else asyncio.create_task(_paint(view, fleet))
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


async def _paint(view: LiveView, fleet: Fleet) -> None:
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


async def _result(bus: SqliteBus, fleet: Fleet) -> dict[str, Any]:
    state = fleet.scheduler.engine.state
    dead = sum([await bus.end(name) for name in ALL_TOPICS if name.endswith(".dlq")])
    return {
        **figures(state),
        "events": await bus.end(EVENTS.name) + await bus.end(TELEMETRY.name),
        "dead_letters": dead,
        # Of this process: a run that was killed counts those since it went on.
        "duplicates": fleet.scheduler.intake.counts["duplicates"],
        "invariant_violations": fleet.scheduler.invariant_violations,
        "state_hash": state_hash(state),
    }


def figures(state: ClusterState) -> dict[str, Any]:
    """Give the figures of a run, from the state alone. Times in seconds."""
    totals = state.totals
    live = [job for job in state.jobs.values() if job.state not in TERMINAL]
    queued = sum(job.state is JobState.QUEUED for job in live)
    return {
        "jobs_submitted": totals.jobs_submitted,
        "jobs_completed": totals.jobs_completed,
        "jobs_failed": totals.jobs_failed,
        "jobs_running": len(live) - queued,
        "jobs_queued": queued,
        "mean_jct_s": totals.jct_s / totals.jobs_completed if totals.jobs_completed else None,
        "mean_queueing_s": totals.queueing_s / totals.jobs_started if totals.jobs_started else None,
        "deadlines_total": totals.deadlines_total,
        "deadlines_met": totals.deadlines_met,
        # Of unfinished jobs, not yet due; what is neither met nor open was missed.
        "deadlines_open": sum(
            job.deadline_s is not None and job.deadline_s > state.now_s for job in live
        ),
        "loans_granted": totals.loans_granted,
        "loans_reclaimed": totals.loans_reclaimed,
        "reclaims_late": totals.reclaims_late,
        "inference_shortfall_gpu_s": totals.inference_shortfall_gpu_s,
        "loaned_gpu_s": totals.loaned_gpu_s,
        "migrations": totals.migrations,
        "preemptions": totals.preemptions,
        "scale_outs": totals.scale_outs,
        "scale_ins": totals.scale_ins,
        "worker_failures": totals.failures,
        "policy_failures": totals.policy_failures,
        "gpu_utilisation": (
            (totals.training_gpu_s + totals.serving_gpu_s) / totals.gpu_s if totals.gpu_s else None
        ),
        "commands": totals.commands,
        "decisions": state.number,
    }
