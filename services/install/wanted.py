"""The request for an installation, and the files that result from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from services.config import Config

#: Modes of files: for everybody, and for root and the agent's group.
OPEN, CLOSED = 0o644, 0o640


class InstallError(ValueError):
    """It cannot be installed as asked; a sentence for each thing that is wrong."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class NotRoot(InstallError):
    """Only root may do that."""


@dataclass(frozen=True, slots=True)
class File:
    """A file to be installed."""

    path: Path
    content: bytes
    mode: int = OPEN


@dataclass(frozen=True, slots=True)
class Request:
    """The options of `install`; None: not given."""

    name: str | None = None
    broker: str | None = None
    checkpoints: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    #: KID=FILE, public keys of the scheduler.
    trusted_key: Sequence[str] = ()
    gpus: int | None = None
    gpu_type: str | None = None
    #: Who else needs the GPUs; `none` is the only value here.
    owner: str | None = None
    #: The user of jobs: `none`: the agent's; else one for each tenant.
    isolation: str | None = None
    #: A configuration of the operator's own, instead of all of the above.
    config: Path | None = None
    #: Lines NAME=VALUE for the agent's environment.
    environment: Path | None = None

    @property
    def said(self) -> list[str]:
        """The options that describe a server, as far as they were given."""
        given = [one.name for one in fields(self) if getattr(self, one.name) not in (None, ())]
        options = (f"--{name.replace('_', '-')}" for name in given)
        return [option for option in options if option not in ("--config", "--environment")]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The files of an installation, and its configuration."""

    config: Config
    files: Sequence[File]
    #: Warnings for the operator.
    remarks: Sequence[str] = field(default=())


def content_of(option: str, path: Path) -> bytes:
    """Read the file that an option names.

    Raises:
        InstallError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InstallError(f"{option}: {path}: {error.strerror}; correct the path") from None
