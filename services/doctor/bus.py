"""Chooses the bus to check: MQTT, Kafka or a file, by the role that the configuration is for."""

import os
from collections.abc import Iterator
from pathlib import Path

from services.doctor import kafka, mqtt
from services.doctor.disk import existing, is_there
from services.doctor.finding import CheckContext, Finding, Reporter

_report = Reporter("bus")


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the bus that the agent uses; without an agent, the one of the other roles."""
    config = context.config
    if context.is_agents and config.agent.name is None:
        yield _report.problem(
            "agent.name is not set: no agent starts without it; what needs no name is checked",
            "write it below [agent], or say it with --set agent.name=NAME or TIDEGATE_AGENT__NAME; "
            "with a certificate, it is the certificate's common name",
        )
    if config.bus.startswith("sqlite:"):
        yield from _file(Path(config.bus.removeprefix("sqlite:")))
    elif "kafka" in context.brokers:
        yield from kafka.check(context)
    else:
        yield from mqtt.check(context)


def _file(path: Path) -> Iterator[Finding]:
    place = existing(path.absolute())
    may = os.access(place, os.R_OK | os.W_OK | (os.X_OK if place.is_dir() else 0))
    beside = os.access(place if place.is_dir() else place.parent, os.W_OK | os.X_OK)
    if not may or not beside:
        yield _report.problem(
            f"bus: {path} cannot be written here (nor files beside it, which SQLite makes)",
            f"let this user write in {path.absolute().parent}, or name another file in bus",
        )
    elif not is_there(path):
        yield _report.warning(
            f"bus: {path} is not there yet; whoever starts first makes it",
            "start the scheduler, with the same bus",
        )
    else:
        yield _report.ok(f"bus: {path} can be read and written")
