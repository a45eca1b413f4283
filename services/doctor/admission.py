"""Takes a machine in: its configuration, its service, and the user to look as."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bus.clock import Clock
from services.agents import given
from services.config import ConfigError, load
from services.doctor.finding import Patient
from services.install import account, environment
from services.install.layout import CONFIG, UNIT, Layout
from services.install.status import ask, held
from services.install.systemd import Unit, find_unit


def config_file(named: Path | None, settings: Sequence[str]) -> Path | None:
    """Give the file to read: the one that is named, else the installed agent's.

    Raises:
        ConfigError: there is neither, and nothing is set by flags.
    """
    found = named or (CONFIG if CONFIG.exists() else None)
    if found is None and not settings:
        raise ConfigError(f"--config: name a configuration; there is no {CONFIG} on this machine")
    return found


def admit(file: Path | None, settings: Sequence[str], clock: Clock) -> Patient:
    """Read the configuration, as the service would; from here on we are the service's user.

    Raises:
        ConfigError: it cannot be read; each wrong key is named.
    """
    unit = find_unit(Layout(), UNIT) if file == CONFIG else None
    if unit is not None:
        _become(unit)
    patient = Patient(load(file, settings), clock, file, unit)
    _check_kind(patient)
    if patient.memory is None:
        return patient
    runs, _ = held(patient.memory)
    return replace(patient, runs=runs, ready=ask(patient.config) if runs else None)


def _check_kind(patient: Patient) -> None:
    """Stop at what the installed agent would stop at; elsewhere it need not be an edge server's."""
    if patient.unit is not None:
        given(patient.config, needed=("name",), foreign=("nodes", "gpus_per_node"))


def _become(unit: Unit) -> None:
    """Go on as the service's user, with what it finds in its environment."""
    environment.enter(Layout())
    if os.geteuid():
        return
    found = account.find(unit.get("User") or "root", Layout())
    if found is None:
        raise ConfigError(
            f"the service's user {unit.get('User')} is not on this machine; tidegate edge-agent "
            "install makes it"
        )
    account.become(found)
