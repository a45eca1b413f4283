"""Where an installed agent has its things; in a staged tree, below the tree's root."""

from dataclasses import dataclass
from pathlib import Path

from runtime.executors.cgroups import GANGS

UNIT_NAME = "tidegate-edge-agent.service"
UNIT = Path("/etc/systemd/system") / UNIT_NAME
#: The service that holds the cgroups of gangs, for an agent that is root.
GANGS_UNIT = UNIT.with_name(GANGS.name)
#: What `systemctl enable` makes.
ENABLED = Path("/etc/systemd/system/multi-user.target.wants") / UNIT_NAME
ETC = Path("/etc/tidegate")
CONFIG = ETC / "edge-agent.toml"
#: Lines NAME=VALUE that the agent finds in its environment, such as the checkpoint store's login.
ENVIRONMENT = ETC / "edge-agent.env"
CA, CERT, KEY = (ETC / f"edge-agent.{end}" for end in ("ca.pem", "pem", "key"))
STATE = Path("/var/lib/tidegate")
STATE_FILE = STATE / "agent.db"
WORKERS = STATE / "workers"
#: The user that the agent runs as, unless another is named.
USER = "tidegate"
#: Where an installed agent answers probes, on this machine alone.
PORT = 9466


def trusted_key(key_id: str) -> Path:
    """Name the file of a public key of the scheduler's."""
    return ETC / f"trusted-{key_id}.pem"


@dataclass(frozen=True, slots=True)
class Layout:
    """A machine, or a tree that is to become one."""

    root: Path = Path("/")

    @classmethod
    def of(cls, root: Path) -> "Layout":
        """Make that of a root as it was named: `//` and `/tmp/..` are this machine, too."""
        here = root.exists() and root.samefile("/")
        return cls() if here else cls(root.absolute())

    @property
    def staged(self) -> bool:
        """Whether it is a tree, so that nothing of this machine may be touched."""
        return self.root != Path("/")

    def here(self, path: Path) -> Path:
        """Give where a file of the machine is now."""
        return self.root / path.relative_to("/")
