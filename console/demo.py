"""`tidegate demo`: a simulated day, watched live, replayable; embedded, or on brokers."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from bus.clock import PacedClock
from bus.contract import BusError
from bus.options import KafkaOptions, MqttOptions, kafka_options, mqtt_options
from bus.sqlite import SqliteBus
from console.claim import START_S, Finished, Run, agents_dir, claim, finish
from console.drive import drive
from console.fleet import build_fleet
from console.kafka import is_kafka
from console.live import LiveView
from console.output import emit_json, fail, out, plain, say
from console.result import result_of
from console.summary import summary
from scheduler import garbage
from scheduler.journal import recover
from scheduler.policies.registry import make_policy
from schemas.topics import CELLS, EVENTS, JOURNAL
from simulator.scenario import Scenario
from simulator.workload import WorkloadError

__all__ = ["START_S", "Run", "claim", "demo", "play"]

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
        str | None,
        typer.Option(help=f"Where to record it ({DEFAULT_LOG}, whose last log is kept)."),
    ] = None,
    bus: Annotated[str, typer.Option(help="sqlite, or kafka: the real one.")] = "sqlite",
    mqtt: Annotated[
        bool, typer.Option("--mqtt", help="With --bus kafka: the edge speaks MQTT, over a bridge.")
    ] = False,
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
    """Watch a day: idle GPUs of inference and edge servers are lent to training, and returned.

    Scheduler, agents with simulated GPUs and tenants run as separate services on one SQLite bus,
    or on the brokers of $TIDEGATE_KAFKA_BOOTSTRAP and $TIDEGATE_MQTT_URL. A SQLite log that was
    not finished goes on where it stopped; on brokers each demo begins anew.

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
    places = _places(bus, mqtt, log)
    try:
        scenario = run.scenario()
    except WorkloadError as error:
        fail(str(error))
    garbage.put_off()
    quiet = json_path == "-"
    live = live and not quiet
    if places is not None:
        name, result = asyncio.run(play_on_brokers(places, run, scenario, seconds, live, quiet))
        stopped = "A stopped Kafka demo cannot be resumed; what it recorded: tidegate replay"
    else:
        name, stopped = (
            log or DEFAULT_LOG,
            "The same command goes on from here: its log is",
        )
        path = Path(name)
        with claim(path, run, anew=log is None) as held:
            result = _again(path, held.finished)
            if result is None:
                _introduce(scenario, quiet)
                result = asyncio.run(play(path, run, scenario, seconds, live))
    if result is None:
        out().print(f"Stopped. {stopped} {name}", markup=False, soft_wrap=True)
        raise typer.Exit(0)
    if json_path is not None:
        emit_json(result, json_path)
    if not quiet:
        out().print(summary(result))
        out().print(
            f"Replay it, decision by decision:  [bold]tidegate replay {plain(name)}[/bold]",
            soft_wrap=True,
        )
    if result["invariant_violations"]:
        raise typer.Exit(1)


def _introduce(scenario: Scenario, quiet: bool) -> None:
    for note in () if quiet else scenario.notes:
        out().print(f"[dim]{note}[/dim]")


def _places(
    bus: str, mqtt: bool, log: str | None
) -> tuple[KafkaOptions, MqttOptions | None] | None:
    """Read where a demo shall run; None if on SQLite."""
    if bus not in ("sqlite", "kafka"):
        fail(f"--bus: {bus!r} is no bus; say sqlite or kafka.")
    if bus == "sqlite":
        if mqtt:
            fail("--mqtt: needs --bus kafka, where the bridge takes what comes over MQTT.")
        if log is not None and is_kafka(log):
            fail(f"--log: {log} is on Kafka; add --bus kafka, or name a file.")
        return None
    if log is not None and not is_kafka(log):
        fail(f"--log: with --bus kafka the log is there; say kafka:/NAME or leave it out: {log}")
    # A demo's topics are thrown away; one copy will do, and one broker.
    kafka = replace(kafka_options(log or "kafka:"), replication=1)
    return kafka, mqtt_options("mqtt:") if mqtt else None


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
    clock = PacedClock(await _last_moment(path), _pace(run, seconds))
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
        finished = await drive(fleet, clock, until_s, view if live else None)
        if not finished:
            return None
        result = await result_of(bus, fleet)
        finish(path, run, result, await bus.end(EVENTS.name))
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
        from console.brokers import begin, carriers
    except ModuleNotFoundError as error:
        raise BusError(f"--bus kafka: {error}; pip install 'tidegate[console]'") from error
    place = await begin(*places)
    _introduce(scenario, quiet)
    name = place.kafka.address
    clock = PacedClock(START_S, _pace(run, seconds))
    view = LiveView(f"Tidegate · {run.policy}", START_S, run.end_s)
    with TemporaryDirectory() as folder:
        async with carriers(place, clock) as made:
            fleet = build_fleet(
                scenario,
                bus=made.bus,
                clock=clock,
                start_s=START_S,
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
            record = await bus.last(topic.name)
            newest_s = newest_s if record is None else max(newest_s, record.time_s)
        found = await recover(bus, "default")
        return max(newest_s, found.state.now_s)
    finally:
        await bus.close()
