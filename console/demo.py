"""`tidegate demo`: a simulated day on the embedded default, watched live, replayable afterwards."""

import asyncio
import contextlib
import gc
import json
import math
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from bus.clock import PacedClock
from bus.sqlite import SqliteBus
from console.fleet import Fleet, build_fleet
from console.live import LiveView
from console.output import emit_json, fail, out
from console.summary import summary
from scheduler.core.state import ClusterState, state_hash
from scheduler.journal import recover
from scheduler.policies.registry import make_policy
from schemas.topics import EVENTS, TELEMETRY, TOPICS
from simulator.profiles import load_profiles
from simulator.scenario import Scenario, default_scenario, scenario_for
from simulator.workload import WorkloadError, read_workload

#: Simulated days begin on this Monday at midnight, UTC.
START_S = 1_767_571_200.0  # 2026-01-05T00:00:00Z
DEFAULT_LOG = "tidegate-demo.db"


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was begun with; kept beside its log, so that it can only go on as it began."""

    hours: float
    seed: int
    policy: str
    workload: str | None
    throughputs: str | None
    failures_per_gpu_hour: float

    @property
    def end_s(self) -> float:
        """When the simulated time is over."""
        return START_S + self.hours * 3600.0

    def scenario(self) -> Scenario:
        """Make the world of the run.

        Raises:
            WorkloadError: the workload or the throughputs cannot be read.
        """
        if self.workload is None:
            return default_scenario(self.seed, self.hours)
        profiles = None if self.throughputs is None else load_profiles(Path(self.throughputs))
        workload = read_workload(Path(self.workload), profiles=profiles).fit(self.hours)
        return scenario_for(workload, self.seed, self.hours)


def demo(
    hours: Annotated[float, typer.Option(help="Simulated hours.", min=0.1, max=24 * 31)] = 24.0,
    seconds: Annotated[
        float, typer.Option(help="Real seconds it shall take, if the machine can.", min=0.0)
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of jobs, tides and faults.", min=0)] = 7,
    log: Annotated[
        Path | None,
        typer.Option(help=f"Where to record it. [default: {DEFAULT_LOG}, anew each time]"),
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
    if log is None:
        _forget_finished(path, run)
    claim(path, run)
    quiet = json_path == "-"
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


def _parameters(path: Path) -> Path:
    return path.with_name(path.name + ".agents") / "run.json"


def _forget_finished(path: Path, run: Run) -> None:
    """Begin the default log anew, unless the same run was cut short and can go on."""
    parameters = _parameters(path)
    if parameters.exists():
        with contextlib.suppress(ValueError):
            known = json.loads(parameters.read_text())
            if known == asdict(run) | {"finished": False}:
                return
        for name in sorted(parameters.parent.iterdir()):
            name.unlink()
    if path.exists():
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def claim(path: Path, run: Run) -> None:
    """Keep the run's parameters beside its log, or check that they are the same."""
    parameters = _parameters(path)
    if not path.parent.is_dir():
        fail(f"--log: there is no folder {path.parent}.")
    if parameters.exists():
        known = json.loads(parameters.read_text())
        known.pop("finished", None)
        if known != asdict(run):
            different = [name for name, value in asdict(run).items() if known.get(name) != value]
            fail(
                f"{path} was begun with another {', '.join(different)}; "
                "give the same again, or another --log."
            )
    elif path.exists():
        fail(f"{path} exists and is not a demo's log; give another --log.")
    else:
        parameters.parent.mkdir(parents=True, exist_ok=True)
        _write_parameters(parameters, run, finished=False)


def _write_parameters(parameters: Path, run: Run, *, finished: bool) -> None:
    # Written whole or not at all: a crash in between must not leave a run that cannot go on.
    draft = parameters.with_suffix(".new")
    draft.write_text(json.dumps(asdict(run) | {"finished": finished}, indent=1) + "\n")
    draft.replace(parameters)


async def play(
    path: Path, run: Run, scenario: Scenario, seconds: float, live: bool
) -> dict[str, Any] | None:
    """Run to the end; None if interrupted before."""
    # Messages by the thousand live for a moment; looking through them for cycles all the time
    # took a third of what reading them costs.
    gc.set_threshold(50_000, 20, 20)
    parameters = _parameters(path)
    pace = run.hours * 3600.0 / seconds if seconds > 0 else None
    clock = PacedClock(await _last_moment(path), pace)
    bus = SqliteBus.open(path, clock, durability="process_crash")
    view = LiveView(f"Tidegate · {run.policy}", START_S, run.end_s)
    try:
        fleet = build_fleet(
            scenario,
            bus=bus,
            clock=clock,
            start_s=START_S,
            agents_dir=parameters.parent,
            policy=run.policy,
            failures_per_gpu_hour=run.failures_per_gpu_hour,
            watch=view.note if live else None,
        )
        finished = await _drive(fleet, clock, run.end_s, view if live else None)
        if not finished:
            return None
        result = await _result(bus, fleet)
        _write_parameters(parameters, run, finished=True)
        return result
    finally:
        await bus.close()


async def _last_moment(path: Path) -> float:
    """Find where a log stopped: time goes on from its newest record."""
    if not path.exists():  # noqa: ASYNC240 - nothing else runs yet
        return START_S
    bus = SqliteBus.open_readonly(path, PacedClock(START_S, None))
    try:
        newest_s = START_S
        for topic in TOPICS:
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
    with Live(console=console, screen=False, auto_refresh=False, transient=True) as screen:
        while True:
            if hasattr(fleet.scheduler, "engine"):
                screen.update(view.render(fleet.scheduler.engine.state), refresh=True)
            await asyncio.sleep(0.25)


async def _result(bus: SqliteBus, fleet: Fleet) -> dict[str, Any]:
    state = fleet.scheduler.engine.state
    return {
        **figures(state),
        "events": await bus.end(EVENTS.name) + await bus.end(TELEMETRY.name),
        "dead_letters": fleet.scheduler.intake.counts["dead_letters"],
        "invariant_violations": fleet.scheduler.invariant_violations,
        "state_hash": state_hash(state),
    }


def figures(state: ClusterState) -> dict[str, Any]:
    """Give the figures of a run, from the state alone. Times in seconds."""
    totals = state.totals
    return {
        "jobs_submitted": totals.jobs_submitted,
        "jobs_completed": totals.jobs_completed,
        "jobs_failed": totals.jobs_failed,
        "mean_jct_s": totals.jct_s / totals.jobs_completed if totals.jobs_completed else None,
        "mean_queueing_s": totals.queueing_s / totals.jobs_started if totals.jobs_started else None,
        "deadlines_total": totals.deadlines_total,
        "deadlines_met": totals.deadlines_met,
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
