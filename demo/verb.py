"""`tidegate demo`: a simulated day, watched live, replayable; embedded, or on brokers."""

import asyncio
import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bus.clock import PacedClock
from bus.options import KafkaOptions, MqttOptions, kafka_options, mqtt_options
from bus.sqlite import SqliteBus
from bus.sqlite_file import create
from console.kafka import is_kafka
from console.output import JsonPath, emit_json, fail, out, plain, say, tell
from console.reading import DEFAULT_LOG
from demo.claim import Finished, Run, claim
from demo.play import introduce, play, play_on_brokers
from demo.result import said_on, summary
from explain.moments import DEMO_START_S
from scheduler import garbage
from scheduler.policies.registry import make_policy
from simulator.workload import WorkloadError

#: An interrupt reaches the demo and its gateway; so long the gateway may take to end, in seconds.
_GATEWAY_END_S = 10.0


def demo(
    hours: Annotated[
        float,
        typer.Option(
            help="Simulated hours; a whole day goes from noon to noon.", min=0.1, max=24 * 31
        ),
    ] = 24.0,
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
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the log beside it, as tidegate serve does.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="With --serve: where; 0 for any that is free.", min=0, max=65535)
    ] = 8321,
    json_path: JsonPath = None,
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
    if serve and places is not None:
        fail("--serve: goes with --bus sqlite; beside one on Kafka, run tidegate serve kafka:")
    gateway = None
    beside = contextlib.ExitStack()
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
            if serve:
                gateway = beside.enter_context(_served(path, port))
            if result is None:
                introduce(scenario, quiet)
                result = asyncio.run(play(path, run, scenario, seconds, live))
    if result is None:
        beside.close()
        tell(f"Stopped. {stopped} {name}")
        raise typer.Exit(0)
    emit_json(result, json_path)
    if not quiet:
        out().print(summary(result))
        out().print(
            f"Replay it, decision by decision:  [bold]tidegate replay {plain(name)}[/bold]",
            soft_wrap=True,
        )
    if gateway is not None:
        say("The gateway goes on; an interrupt (Ctrl-C) ends it.")
        with beside, contextlib.suppress(KeyboardInterrupt):
            gateway.wait()
    if result["invariant_violations"]:
        raise typer.Exit(1)


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
    waiting = asyncio.run(_said(path)) - finished.said
    if waiting <= 0:
        say(f"This run is finished; here is what came of it again. {path} is as it was.")
        return finished.result
    messages = "A message has" if waiting == 1 else f"{waiting} messages have"
    say(f"{messages} come since this run was finished: it goes on until they are taken up.")
    return None


async def _said(path: Path) -> int:
    bus = SqliteBus.open_readonly(path, PacedClock(DEMO_START_S, None))
    try:
        return await said_on(bus)
    finally:
        await bus.close()


@contextlib.contextmanager
def _served(log: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Serve a log meanwhile, by a process of its own, and say where.

    So neither waits for the other. Whoever waits for the process lets it go on.
    """
    if not log.exists():
        create(log)
    command = [sys.executable, "-m", "console.main", "serve", str(log), "--no-browser"]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        process.wait()
        fail("--serve: the gateway could not begin, as it says above; leave --serve out.")
    say(f"Served at {address}")
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GATEWAY_END_S)
        process.kill()
        process.stdout.close()
