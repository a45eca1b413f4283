"""What the checks go by: the configuration, the installed service, and the user to check as."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bus.clock import Clock
from services.agents import machine_settings
from services.config import ConfigError, load
from services.doctor.finding import CheckContext
from services.install import account, environment
from services.install.layout import CONFIG, Layout
from services.install.status import ask, ask_refused, held
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


def load_context(file: Path | None, settings: Sequence[str], clock: Clock) -> CheckContext:
    """Read the configuration as the service would, and become the service's user.

    Raises:
        ConfigError: it cannot be read; each wrong key is named.
    """
    unit = find_unit(Layout()) if file == CONFIG else None
    if unit is not None:
        _become(unit)
    context = CheckContext(load(file, settings), clock, file, unit)
    if unit is not None:  # then of an edge server; others may be of any role
        machine_settings(context.config, needed=("name",), foreign=("nodes", "gpus_per_node"))
    if context.state_file is None:
        return context
    runs, _ = held(context.state_file)
    if not runs:
        return context
    refused = ask_refused(context.config)
    return replace(context, is_running=True, readiness=ask(context.config), refused=refused)


def _become(unit: Unit) -> None:
    """Become the service's user, with the service's environment."""
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
