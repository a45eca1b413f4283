"""The status of an installed agent: its unit, configuration, link, spool and gangs."""

import fcntl
import json
import os
import re
import sqlite3
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.http_client import HttpError, HttpRequest
from services.agents import state_file
from services.config import Config, ConfigError, load
from services.install.environment import as_service
from services.install.gangs import RunningGang, named, running_gangs
from services.install.layout import CONFIG, STATE, UNIT, WORKERS, Layout
from services.install.systemd import Unit, booted, find_unit

_ANSWER_S = 3.0
#: An agent that was started has its connection within this long, on a slow machine.
_SETTLED_S, _LOOK_S = 15.0, 0.5
#: `struct flock` of fcntl(2) on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "hhxxxxqqixxxx"
#: Where SQLite puts its locks; source: sqlite.org/fileformat2.html, "The Lock-Byte Page".
_LOCKS_AT, _LOCKS = 0x40000000, 512
#: Of the agent's metrics page.
_REFUSED = re.compile(
    r'^tidegate_commands_refused_total\{(?:[^}]*,)?reason="([a-z_]+)"[^}]*\} ([0-9.e+]+)$',
    re.MULTILINE,
)
_LINK_UP = re.compile(r"^tidegate_link_up(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Status:
    """The status; None where something is unknown."""

    config_file: Path
    config: Config | None = None
    unit: Unit | None = None
    #: Whether an agent works with the configuration's state file; its process is `pid`.
    runs: bool | None = False
    pid: int | None = None
    #: The answer of the agent's own probe.
    ready: dict[str, Any] | None = None
    link_up: bool | None = None
    spool: int | None = None
    gangs: list[RunningGang] | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def installed(self) -> bool:
        """Whether there is anything."""
        return self.unit is not None or self.config is not None or self.config_file.exists()


def look(config_file: Path | None, layout: Layout) -> Status:
    """Give the status of the agent of a configuration, by default the installed one."""
    status = Status(config_file or layout.here(CONFIG))
    status.unit = find_unit(layout) if config_file is None else None
    if not status.installed:
        if config_file is None and not layout.staged:
            # Gangs that an agent left, which is no longer installed, may run on.
            status.gangs = running_gangs(WORKERS)
        return status
    if status.config_file.exists() and not os.access(status.config_file, os.R_OK):
        status.problems.append(
            f"{status.config_file} is closed to this user; ask as root: sudo tidegate edge-agent "
            "status"
        )
    elif config_file is None:
        with as_service(layout):
            _read(status)
    else:
        _read(status)
    _look_at_unit(status, layout)
    if status.config is not None:
        _look_at_agent(status, status.config, layout)
    elif not layout.staged:
        status.gangs = running_gangs(WORKERS)  # the default folder
    return status


def settled(layout: Layout) -> Status:
    """Wait until a just started agent answers its probe, or some seconds are over."""
    status = look(None, layout)
    for _ in range(round(_SETTLED_S / _LOOK_S)):
        if status.runs and not status.problems:
            break
        time.sleep(_LOOK_S)
        status = look(None, layout)
    return status


def _read(status: Status) -> None:
    try:
        status.config = load(status.config_file)
    except ConfigError as error:
        status.problems += error.lines


def _look_at_unit(status: Status, layout: Layout) -> None:
    unit = status.unit
    if unit is None or layout.staged:
        return
    if not booted():
        status.problems.append("a unit is installed, but systemd does not run this machine")
    elif not unit.active:
        state = f"{unit.get('ActiveState')} ({unit.get('SubState')}, {unit.get('Result')})"
        status.problems.append(
            f"the unit is {state}: see journalctl -u {UNIT.stem}, then: systemctl start {UNIT.stem}"
        )
    elif unit.get("UnitFileState") != "enabled":
        status.problems.append(
            f"the unit does not start with the machine: systemctl enable {UNIT.stem}"
        )


def _look_at_agent(status: Status, config: Config, layout: Layout) -> None:
    if layout.staged:
        return  # its paths are of another machine
    # A relative path is relative to the folder that the agent starts in.
    memory = state_file(config) if status.unit is None else STATE / state_file(config)
    status.runs, status.pid = held(memory)
    if config.agent.workers is not None:
        status.gangs = running_gangs(config.agent.workers.folder)
    status.ready = ask(config) if status.runs else None
    if status.ready is not None:
        status.link_up = ask_link(config)
        status.spool = status.ready.get("spool")
        status.problems += [str(reason) for reason in status.ready.get("reasons", ())]
    elif status.runs:
        if page := probe_of(config):
            status.problems.append(
                f"it runs, and nothing of it answers at {page}: see whether it hangs, in its log; "
                "restart it, also where http.port was changed since its start"
            )
    elif status.runs is None:
        status.problems.append(
            f"{memory} is closed to this user, so whether an agent runs is not known; ask as root: "
            "sudo tidegate edge-agent status"
        )
    else:
        status.spool = waiting(memory)
        left = f"; these gangs run on without it: {named(status.gangs)}" if status.gangs else ""
        status.problems.append(f"no agent runs with {memory}{left}")


def held(memory: Path) -> tuple[bool | None, int | None]:
    """Tell whether an agent has its state file open, and its process id if we can see it.

    None: this user may not look.
    """
    try:
        # A job may have put a pipe there; opening it would block for ever.
        descriptor = os.open(memory, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, _LOCKS_AT, _LOCKS, 0)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
    except PermissionError:
        return None, None
    except OSError:
        return False, None
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    return kind != fcntl.F_UNLCK, pid if pid > 0 else None


def waiting(memory: Path) -> int | None:
    """Count the messages that an agent left unsent; None if that cannot be read."""
    beside = memory.with_name(f"{memory.name}-wal")
    try:
        # What a killed agent wrote last is beside the file, and `immutable` passes over that.
        if not memory.is_file() or (beside.exists() and beside.stat().st_size > 0):
            return None
        # Makes no file, neither this one nor one beside it: it could be another user's.
        uri = f"{memory.absolute().as_uri()}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True)
    except (OSError, sqlite3.Error):
        return None
    try:
        (count,) = connection.execute("SELECT count(*) FROM spool").fetchone()
    except sqlite3.Error:
        return None
    finally:
        connection.close()
    return int(count)


def ask(config: Config) -> dict[str, Any] | None:
    """Ask the agent's probe; None if it has none, or it is not this agent that answers."""
    try:
        said = json.loads(_page(config, "/readyz") or b"")
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.get("name") == config.agent.name else None


def ask_link(config: Config) -> bool | None:
    """Ask the agent whether its bus takes its messages; None if it does not answer."""
    found = _LINK_UP.search((_page(config, "/metrics") or b"").decode(errors="replace"))
    return None if found is None else float(found[1]) > 0


def ask_refused(config: Config) -> dict[str, int]:
    """Ask the agent how many commands it has refused, by why; empty if it does not answer."""
    page = (_page(config, "/metrics") or b"").decode(errors="replace")
    return {why: int(float(count)) for why, count in _REFUSED.findall(page)}


def probe_of(config: Config) -> str | None:
    """Give the address at which an agent answers; None if it has none, or it is in its log."""
    port = config.http.port
    if not isinstance(port, int) or port == 0:
        return None
    host = "127.0.0.1" if config.http.host in ("", "0.0.0.0") else config.http.host  # noqa: S104
    place = f"[{host}]" if ":" in host else host
    return f"http://{place}:{port}"


def _page(config: Config, path: str) -> bytes | None:
    if (page := probe_of(config)) is None:
        return None
    try:
        return HttpRequest("GET", f"{page}{path}", timeout_s=_ANSWER_S)().body
    except HttpError:
        return None
