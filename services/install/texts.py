"""The texts of a configuration and of a systemd unit, as pure functions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.install.layout import (
    CA,
    CERT,
    CONFIG,
    ENVIRONMENT,
    GANGS_UNIT,
    KEY,
    PORT,
    STATE,
    STATE_FILE,
    UNIT_NAME,
    WORKERS,
    trusted_key,
)


@dataclass(frozen=True, slots=True)
class Server:
    """An edge server: what a configuration must say of it."""

    name: str
    broker: str
    checkpoints: str
    gpus: int
    gpu_type: str
    gpu_memory_mib: int | None = None
    has_ca: bool = False
    has_cert: bool = False
    trusted: Sequence[str] = field(default=())
    isolation: str = "tenant"


def config_text(server: Server) -> str:
    """Write the configuration of an edge server."""
    mqtt: dict[str, object] = {"url": server.broker}
    if server.has_ca:
        mqtt["ca_file"] = str(CA)
    if server.has_cert:
        mqtt |= {"cert_file": str(CERT), "key_file": str(KEY)}
    agent: dict[str, object] = {"name": server.name, "state_file": str(STATE_FILE)}
    agent |= {"gpus": server.gpus, "gpu_type": server.gpu_type}
    if server.gpu_memory_mib is not None:
        agent["gpu_memory_mib"] = server.gpu_memory_mib
    sections: dict[str, Mapping[str, object]] = {
        "mqtt": mqtt,
        "http": {"port": PORT},
        "agent": {**agent, "runs": "processes", "owner": "none"},
        "agent.workers": {
            "folder": str(WORKERS),
            "checkpoints": server.checkpoints,
            "isolation": server.isolation,
        },
        "agent.trusted_keys": {key_id: str(trusted_key(key_id)) for key_id in server.trusted},
    }
    parts = [
        f"[{name}]\n" + "".join(f"{_key(key)} = {_toml(value)}\n" for key, value in keys.items())
        for name, keys in sections.items()
        if keys
    ]
    head = (
        "# Made by `tidegate edge-agent install`; docs/configuration.md has all other keys.\n"
        "# Changed? Run that again, without options: it keeps this file and restarts the agent.\n"
    )
    return head + "\n".join(parts)


def unit_text(name: str, program: Sequence[str], user: str, group: str) -> str:
    """Write the systemd unit of an agent.

    Args:
        name: The agent's name, for people.
        program: What starts `tidegate`: an absolute path, and arguments.
        user: Whom the agent runs as, and workers too where they are not kept apart.
        group: That user's group.
    """
    start = " ".join(_word(word) for word in (*program, "edge-agent", "--config", str(CONFIG)))
    held = f" {GANGS_UNIT.name}" if user == "root" else ""
    return f"""\
# Made by `tidegate edge-agent install`, which overwrites it; settings of your own:
# systemctl edit {UNIT_NAME}
[Unit]
Description=Tidegate edge agent {name.replace("%", "%%")}
Wants=network-online.target{held}
After=network-online.target{held}
# However often it fails: nobody may be near who could start it again.
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
Group={group}
WorkingDirectory={STATE}
# May hold the login of the checkpoint store.
EnvironmentFile=-{ENVIRONMENT}
ExecStart={start}
Restart=always
RestartSec=5
TimeoutStopSec=30
# Only the agent is ended: its gangs go on, and the next agent goes on with them.
KillMode=process
# A gang that has no memory left ends alone.
Delegate=yes
OOMPolicy=continue
# Workers live under these limits too.
TasksMax=infinity
LimitNOFILE=1048576
LimitMEMLOCK=infinity
UMask=0027
ProtectSystem=full
# Left out, because they would hold for the workers too: NoNewPrivileges (the NVIDIA driver makes
# its devices through a setuid program, and drain hooks may use sudo), PrivateDevices (no GPUs),
# PrivateTmp (it is emptied when the agent ends, under workers that go on), ProtectHome (code and
# data of jobs).

[Install]
WantedBy=multi-user.target
"""


def gangs_unit_text() -> str:
    """Write the unit that holds the cgroups of an agent's gangs."""
    return f"""\
# Made by `tidegate edge-agent install`, which overwrites it; settings of your own:
# systemctl edit {GANGS_UNIT.name}
[Unit]
Description=Cgroups of the gangs that Tidegate's agent runs
ConditionPathExists=/sys/fs/cgroup/cgroup.controllers

[Service]
Type=exec
# It holds a cgroup and does nothing. The kernel limits gangs in it only if it has no processes of
# its own, so this one goes into a cgroup below it.
ExecStart=/bin/sleep infinity
ExecStartPost=/bin/sh -c 'at=/sys/fs/cgroup$$(sed -n s/^0:://p /proc/$MAINPID/cgroup) && \
    mkdir -p "$$at/holder" && echo $MAINPID > "$$at/holder/cgroup.procs"'
Restart=always
RestartSec=5
# Gangs go on, whatever becomes of it. While they do, it cannot start again, and tries every 5 s.
KillMode=process
Delegate=yes
OOMPolicy=continue
TasksMax=infinity
"""


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if plain else json.dumps(key)


def _toml(value: object) -> str:
    # A string of JSON is one of TOML; DEL is the one character that JSON need not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _word(word: str) -> str:
    """Write a word so that systemd reads it as it is."""
    # Source: systemd.service(5), "Command lines"; a program's path may hold $ as it is, and none
    # of our other words has one.
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(char in " \t;'\"\\" for char in word) else escaped


def program_of(interpreter: Path) -> list[str]:
    """Give what starts `tidegate` with this interpreter: the command beside it, or a module."""
    beside = interpreter.parent / "tidegate"
    return [str(beside)] if beside.exists() else [str(interpreter), "-m", "console.main"]
