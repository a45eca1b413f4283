"""The environment of the service: that of its own file, without the operator's shell.

Otherwise a shell in which TIDEGATE_MQTT_URL is set would make us check another broker.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from services.install.layout import ENVIRONMENT, Layout

_is_name = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch


def service_environment(file: Path, ours: Mapping[str, str]) -> dict[str, str]:
    """Give the environment that the service has; without its file, if we may not read that."""
    try:
        content = file.read_bytes()
    except OSError:
        content = b""
    found = {name: value for name, value in ours.items() if not name.startswith("TIDEGATE_")}
    for line in _lines(content):
        name, sign, value = line.partition("=")
        if sign and _is_name(name) and "\0" not in value:  # systemd leaves other lines out, too
            found[name] = value.strip("\"'")
    return found


def wrong_lines(content: bytes) -> list[int]:
    """Give the numbers of the lines from which systemd makes no variable, though they say one."""
    return [
        number
        for number, line in enumerate(_lines(content), 1)
        if line
        and not line.startswith(("#", ";"))
        and not ("=" in line and _is_name(line.partition("=")[0]) and "\0" not in line)
    ]


@contextmanager
def as_service(layout: Layout, given: Path | None = None) -> Iterator[None]:
    """Have the service's environment for a while; `given` is to be its file, if it is named."""
    before = dict(os.environ)
    try:
        _have(given or layout.here(ENVIRONMENT))
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def enter(layout: Layout) -> None:
    """Have the service's environment from here on."""
    _have(layout.here(ENVIRONMENT))


def _have(file: Path) -> None:
    wanted = service_environment(file, os.environ)
    os.environ.clear()
    os.environ.update(wanted)


def _lines(content: bytes) -> list[str]:
    return [line.strip() for line in content.decode(errors="surrogateescape").split("\n")]
