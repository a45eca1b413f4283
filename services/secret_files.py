"""The files that hold a secret, and whether others on the machine can read them."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from services.config import Config
from services.metrics import RoleName

#: The sections that each reads: a file may be for several roles.
_SECTIONS: dict[RoleName | Literal["gateway"], tuple[str, ...]] = {
    "scheduler": ("kafka", "scheduler"),
    "bridge": ("kafka", "mqtt"),
    "cloud-agent": ("kafka",),
    "edge-agent": ("mqtt",),
    "gateway": ("kafka", "gateway"),
}


def secret_files(config: Config) -> dict[str, Path]:
    """Give those that are configured, by their key."""
    files = {
        "mqtt.key_file": config.mqtt.key_file,
        "mqtt.password_file": config.mqtt.password_file,
        "kafka.key_file": config.kafka.key_file,
        "kafka.password_file": config.kafka.password_file,
        "scheduler.signing_key_file": config.scheduler.signing_key_file,
        "gateway.key_file": config.gateway.key_file,
        "gateway.auth.secret_file": config.gateway.auth.secret_file,
        "gateway.auth.client_secret_file": config.gateway.auth.client_secret_file,
    }
    return {key: Path(file) for key, file in files.items() if file}


def is_open(mode: int) -> bool:
    """Whether every user of the machine may read or write a file of this mode."""
    return bool(mode & (stat.S_IROTH | stat.S_IWOTH))


def open_to_all(config: Config, role: RoleName | Literal["gateway"]) -> Iterator[str]:
    """Say which secrets of a role every user of the machine can read, and what to do.

    Where they are in a container or the only program's, that is no harm: so nothing is refused.
    """
    for key, file in secret_files(config).items():
        try:
            mode = file.stat().st_mode if key.split(".")[0] in _SECTIONS[role] else 0
        except OSError:
            continue  # who needs it says so
        if is_open(mode):
            yield (
                f"{key}: every user of this machine can read {file} (mode "
                f"{stat.S_IMODE(mode):04o}); chmod o= {file}, or have it mounted so"
            )
