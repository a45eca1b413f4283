"""The files that hold a secret, and what others on the machine can do with them."""

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


def holds_private_key(path: Path) -> bool:
    """Whether a file, such as one of certificates, has a private key in it; False if unreadable."""
    try:
        # A pipe is left to whom it is for: what we read of it, nobody else gets.
        return path.is_file() and b"PRIVATE KEY-----" in path.read_bytes()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False


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
    # Some keep certificate and key in one file, which may then be named for both.
    files |= {
        f"{section}.cert_file": file
        for section, file in (
            ("mqtt", config.mqtt.cert_file),
            ("kafka", config.kafka.cert_file),
            ("gateway", config.gateway.cert_file),
        )
        if file and holds_private_key(Path(file))
    }
    return {key: Path(file) for key, file in files.items() if file}


def open_to(mode: int) -> str:
    """Say what every user of the machine can do with a file of this mode; empty: nothing."""
    allowed = {"read": stat.S_IROTH, "write": stat.S_IWOTH}
    return " and ".join(verb for verb, bit in allowed.items() if mode & bit)


def open_to_all(config: Config, role: RoleName | Literal["gateway"]) -> Iterator[str]:
    """Say which secrets of a role every user of the machine can read or write, and what to do.

    In a container, or where no other program runs, this does no harm; so the role starts all the
    same.
    """
    for key, file in secret_files(config).items():
        try:
            mode = file.stat().st_mode if key.split(".")[0] in _SECTIONS[role] else 0
        except (OSError, ValueError):  # also a name that no file can have
            continue  # who needs it says so
        if may := open_to(mode):
            yield (
                f"{key}: every user of this machine can {may} {file} (mode "
                f"{stat.S_IMODE(mode):04o}); chmod o= {file}, or have it mounted so"
            )
