"""`tidegate submit` and `cancel`: what a tenant says, put on the log's topic of events."""

import asyncio
import secrets
import shlex
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from bus.clock import Clock, PacedClock, SystemClock
from bus.contract import Bus, Message
from console.asked import (
    NO_MODEL,
    checked,
    complete,
    deadline_s_of,
    file_or_command,
    from_file,
    hints,
    rates_of,
    sizes_of,
    without_command,
)
from console.kafka import is_kafka
from console.output import JsonPath, duration, emit_json, fail, out, say
from console.reading import (
    DEFAULT_LOG,
    CellName,
    LogAddress,
    Reading,
    ask_log,
    located,
    open_to_write,
    read_bus,
)
from console.response import ANSWER_S, publish_and_hear
from scheduler.core.transitions import TERMINAL
from schemas.codec import Rejected, decode_cell, encode, event
from schemas.events import JobCancelled, JobSubmitted
from schemas.parse import first_error
from schemas.topics import CELLS, EVENTS


def submit(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB.json|-|-- COMMAND...]",
            help="The job as JSON, or what its workers run; flags go before it.",
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Its id. [default: one is made up]")] = None,
    model: Annotated[str | None, typer.Option(help="What it trains.")] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N|MIN..MAX", help="Sizes it may run at, such as 1..8.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimiser steps in all. [default: until it ends]")
    ] = None,
    samples_per_step: Annotated[
        float | None, typer.Option(help="Samples that one step takes. [default: 1]")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="N=RATE,...", help="Samples/s by GPUs, such as 1=120,2=220."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="From now, such as 90m or 2h.")
    ] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Needed on each GPU.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher goes first.")] = None,
    edge: Annotated[
        bool | None, typer.Option("--edge/--no-edge", help="Whether edge servers may run it.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose it is. [default: operator]")] = None,
    workdir: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the command starts, on its machine.")
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="The command changes its size as it runs, on SIGUSR2."),
    ] = False,
    saves_on_signal: Annotated[
        bool,
        typer.Option("--saves-on-signal", help="The command saves and goes on, on SIGUSR1."),
    ] = False,
    log: LogAddress = DEFAULT_LOG,
    cell: CellName = None,
    json_path: JsonPath = None,
) -> None:
    """Submit a training job: a command that agents run, or one that they simulate.

    docs/jobs.md shows a whole file, whose fields say more than flags do.

    Example: tidegate submit --gpus 1..4 --steps 200 --workdir "$PWD" --log run.db --
    python examples/train_numpy.py

    Example: tidegate submit --model resnet50 --gpus 1..8 --steps 20000 --samples-per-step 256
    --rate 1=400,2=780,4=1500,8=2800 --deadline 2h --log run.db
    """
    file, command = file_or_command(what or [])
    fields = {} if file is None else from_file(file)
    given: dict[str, Any] = {
        "job": job,
        "model": model,
        "total_steps": steps,
        "samples_per_step": samples_per_step,
        "rates": None if rate is None else rates_of(rate),
        "memory_mib": memory_mib,
        "priority": priority,
        "edge_allowed": edge,
        "tenant": tenant,
    }
    if gpus is not None:
        given["gpus_min"], given["gpus_max"] = sizes_of(gpus)
    fields |= {name: value for name, value in given.items() if value is not None}
    asked = {
        "workdir": workdir,
        "resize": "in_place" if in_place else None,
        "saves": "on_signal" if saves_on_signal else None,
    }
    program = {name: value for name, value in asked.items() if value}
    if command:
        fields["program"] = {"argv": command, **program}
    elif program:
        without_command(next(iter(program)), has_file=file is not None)
    complete(fields)
    deadline_after_s = None if deadline is None else deadline_s_of(deadline)
    if deadline_after_s is not None:
        fields["deadline_s"] = 0.0
    submission = checked(fields, has_file=file is not None)
    log = located(log)
    reading, online = ask_log(log, lambda bus: _look(bus, cell))
    _open_to_requests(reading, log)
    known = reading.state.jobs.get(submission.job)
    if known is not None:
        fail(f"--job: {known.id} exists already ({known.state.value}); choose another id.")
    clock, now_s = _clock(reading)
    if deadline_after_s is not None:
        submission = submission.model_copy(update={"deadline_s": now_s + deadline_after_s})
    _publish(log, reading.cell, clock, now_s, submission, online=online)
    if json_path != "-":
        out().print(submission.job, markup=False)
        say(f"Submitted to {log}.")
    for hint in hints(submission, reading):
        say(hint)
    if submission.total_steps is None:
        if submission.model == NO_MODEL:
            say("--steps is not given: how long it takes is guessed as it runs; with a --model,")
            say("it is learned from jobs of that model, too.")
        else:
            say("--steps is not given: how long it takes is learned from jobs of its --model.")
        if submission.deadline_s is not None:
            say("So nobody can promise its deadline, and no policy is told of it.")
    _told(submission.job, log, online, json_path, simulated=reading.simulated)


def cancel(
    job: Annotated[str, typer.Argument(help="The job's id, as `tidegate jobs` shows it.")],
    reason: Annotated[str, typer.Option(help="Why, for those who ask later.")] = "",
    log: LogAddress = DEFAULT_LOG,
    cell: CellName = None,
    json_path: JsonPath = None,
) -> None:
    """Cancel a job; if it runs, its gang is told to leave.

    Example: tidegate cancel job-0042 --log run.db
    """
    log = located(log)
    reading, online = ask_log(log, lambda bus: _look(bus, cell))
    _open_to_requests(reading, log)
    known = reading.state.jobs.get(job)
    if known is None:
        fail(f"{job}: no such job in this log; `tidegate jobs --all` lists those there are.")
    if known.state in TERMINAL:
        fail(f"{job} is {known.state.value} already; there is nothing to cancel.")
    try:
        request = JobCancelled(job=job, reason=reason)
    except ValidationError as error:
        wrong = first_error(error)
        fail(f"--{wrong.field}: {wrong.reason}.")
    clock, now_s = _clock(reading)
    _publish(log, reading.cell, clock, now_s, request, online=online)
    ran_s = reading.state.now_s - known.submit_s
    if json_path != "-":
        asked = f"{job}: asked to be cancelled, {duration(ran_s)} after it came, in {log}."
        out().print(asked, markup=False, soft_wrap=True)
    _told(job, log, online, json_path, simulated=reading.simulated)


# --- saying it -----------------------------------------------------------------------------------


async def _look(bus: Bus, cell: str | None) -> tuple[Reading, bool]:
    """Read the state, and whether a scheduler says that it leads."""
    reading = await read_bus(bus, cell)
    record = await bus.latest(CELLS.name, reading.cell)
    word = None if record is None or record.value is None else decode_cell(record.value)
    online = word is not None and not isinstance(word, Rejected) and word.data.online
    return reading, online


def _open_to_requests(reading: Reading, log: str) -> None:
    if reading.virtual and reading.state.number:
        fail(f"--log: {log} is the record of a simulation, with which nobody goes on.")


def _clock(reading: Reading) -> tuple[Clock, float]:
    """Give the time that the log lives in: simulated logs have their own."""
    if not reading.simulated:
        clock = SystemClock()
        return clock, clock.now_s()
    return PacedClock(reading.newest_s, None), reading.newest_s


def _publish(
    log: str,
    cell: str,
    clock: Clock,
    now_s: float,
    said: JobSubmitted | JobCancelled,
    *,
    online: bool,
) -> None:
    # A name of its own, so that sequence 0 is fresh whoever said something before.
    source = f"/operators/cli-{secrets.token_hex(8)}"
    envelope = event(said, source=source, sequence=0, bootid=0, time_s=now_s, cell=cell)
    message = Message(EVENTS.name, cell, encode(envelope))

    async def run() -> str:
        bus = open_to_write(log, clock)
        try:
            return await publish_and_hear(bus, message, envelope, ANSWER_S if online else 0.0)
        finally:
            await bus.close()

    if refused := asyncio.run(run()):
        fail(f"The scheduler refused it: {refused}.", code=1)


def _told(job: str, log: str, online: bool, json_path: str | None, *, simulated: bool) -> None:
    """Say whether anybody takes it up now, and for programs all of it."""
    if not online and simulated and not is_kafka(log):
        say("The demo of this log has ended or stopped. It takes this up if it goes on, by its own")
        say(f"options and --log, as in: tidegate demo --log {shlex.quote(log)}")
    elif not online:
        say("No scheduler runs on this log now; it is taken up when one starts.")
    if json_path is not None:
        emit_json({"job": job, "log": log, "scheduler_online": online}, json_path)
