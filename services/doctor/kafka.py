"""Whether Kafka answers, and knows the topics of this deployment."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from bus.clock import Clock
from bus.contract import Bus, BusError
from bus.options import KafkaOptions
from schemas.codec import Rejected, decode_cell
from schemas.topics import ALL_TOPICS, CELLS, COMMANDS, EVENTS, TELEMETRY
from services.backends import kafka_of, open_bus_of
from services.config import Config
from services.doctor import clock as clock_check
from services.doctor.finding import CheckContext, Finding, Reporter
from services.doctor.reach import Server, reach

if TYPE_CHECKING:
    from bus.kafka_topics import Unfit

_report = Reporter("bus")
_clock = Reporter("clock")
#: A scheduler sends a heartbeat once a minute; the rest is what leases allow clocks to differ.
_SILENT_S = 60.0 + clock_check.MARGIN_S


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the cluster of `[kafka]`: each server, then the topics."""
    try:
        options = kafka_of(context.config)
    except (BusError, OSError) as error:
        yield _report.problem(str(error), "set kafka.bootstrap to HOST:PORT of the cluster")
        return
    assert options is not None
    good = 0
    for address in options.bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not port.isdecimal() or not 0 < int(port) < 65_536:
            yield _report.problem(
                f"kafka.bootstrap: {address} is not HOST:PORT", "write it with its port, as k:9092"
            )
            continue
        host = host.removeprefix("[").removesuffix("]")  # of IPv6, as Kafka's client reads it
        server = Server(host, int(port), options.tls, "Kafka", "kafka.bootstrap", "kafka")
        found = list(reach(server, _report, context.clock.now_s()))
        yield from found
        good += all(one.verdict != "problem" for one in found)
    if good:
        yield from asyncio.run(_asked(context.config, options, context.clock))


async def _asked(config: Config, options: KafkaOptions, clock: Clock) -> list[Finding]:
    try:
        bus = open_bus_of(config, options, clock, config.cell)
    except BusError as error:
        return [_report.problem(str(error), "correct cell, or kafka.cells")]
    try:
        for topic in (EVENTS, TELEMETRY, COMMANDS):
            await bus.end(topic.name)
        clocks = await _clock_findings(bus, clock)
        settings = await _settings_findings(options)
    except BusError as error:
        return [
            _report.problem(
                f"Kafka does not serve us: {error}",
                "do what it says; or see kafka.sasl, kafka.username and kafka.password_file, "
                "kafka.tls, and the rights of this user (compose/kafka/secure-acls gives them)",
            )
        ]
    finally:
        await bus.close()
    good = _report.ok(f"Kafka has the topics of cell {config.cell}; we may read them")
    return [good, *settings, *clocks]


async def _settings_findings(options: KafkaOptions) -> list[Finding]:
    """Look for topics, made by hand say, that do not keep what is written to them."""
    from bus.kafka_topics import unfit_settings  # its client is not installed everywhere

    unfit = await unfit_settings(options, ALL_TOPICS)
    if unfit is None:
        return [
            _report.ok(
                "this user may not see how topics are set (DescribeConfigs), so that was not "
                "looked at; the scheduler's user may"
            )
        ]
    return [_of_topic(list(found)) for _, found in groupby(unfit, lambda one: one.topic)]


def _of_topic(unfit: "Sequence[Unfit]") -> Finding:
    topic = unfit[0].topic
    has = ", ".join(f"{one.setting} is {one.value}, not {one.wanted}" for one in unfit)
    wanted = ",".join(f"{one.setting}={one.wanted}" for one in unfit)
    mend = (
        f"kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics "
        f"--entity-name {topic} --add-config {wanted}"
    )
    if any(one.loses for one in unfit):
        return _report.problem(f"topic {topic} loses or refuses what it should keep: {has}", mend)
    return _report.warning(f"topic {topic} is less safe than it could be: {has}", mend)


async def _clock_findings(bus: Bus, clock: Clock) -> list[Finding]:
    """Compare this clock with the newest heartbeat of the scheduler."""
    said_s = None
    end = await bus.end(CELLS.name)
    async for record in bus.read(CELLS.name, max(0, end - 50)):
        heartbeat = decode_cell(record.value or b"")
        if not isinstance(heartbeat, Rejected):
            said_s = heartbeat.data.at_s
    return [] if said_s is None else [clock_against(said_s, clock.now_s())]


def clock_against(said_s: float, now_s: float) -> Finding:
    """Judge the clock by when the scheduler said last that it leads, both since the Unix epoch."""
    age_s = now_s - said_s
    if age_s < 0.0:
        return clock_check.against("the scheduler's last word", age_s)
    if age_s > _SILENT_S:
        return _clock.warning(
            f"the scheduler spoke {age_s:.0f} s ago last, by this machine's clock",
            "see that a scheduler runs; if one does, this clock is ahead: timedatectl",
        )
    return _clock.ok(f"the scheduler spoke {age_s:.0f} s ago, so the clocks agree as far as seen")
