"""Which bus there is to look at: MQTT, Kafka or a file, as the configuration's role has it."""

import os
from collections.abc import Iterator
from pathlib import Path

from services.doctor import kafka, mqtt
from services.doctor.disk import existing, is_there
from services.doctor.finding import Finding, Patient, Teller

_tell = Teller("bus")


def look(patient: Patient) -> Iterator[Finding]:
    """Look at what the agent speaks over; a configuration without an agent has both brokers."""
    config = patient.config
    if config.bus.startswith("sqlite:"):
        yield from _file(Path(config.bus.removeprefix("sqlite:")))
        return
    if config.agent.name is None or patient.is_cluster:
        yield from kafka.look(patient)
    if config.agent.name is not None and not patient.is_cluster:
        yield from mqtt.look(patient)


def _file(path: Path) -> Iterator[Finding]:
    place = existing(path.absolute())
    may = os.access(place, os.R_OK | os.W_OK | (os.X_OK if place.is_dir() else 0))
    beside = os.access(place if place.is_dir() else place.parent, os.W_OK | os.X_OK)
    if not may or not beside:
        yield _tell.problem(
            f"bus: {path} cannot be written here (nor files beside it, which SQLite makes)",
            f"let this user write in {path.absolute().parent}, or name another file in bus",
        )
    elif not is_there(path):
        yield _tell.warning(
            f"bus: {path} is not there yet; whoever starts first makes it",
            "start the scheduler, with the same bus",
        )
    else:
        yield _tell.ok(f"bus: {path} can be read and written")
